"""Whether what a component returned keeps the contract: one set of checks and words for runs and for `ramet.testing`.

Each gives the first problem as a sentence without its subject ("returned NoneType: return a StepResult"), or None.
Tensors are known by their class's name, since the contract must import without torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ramet.io.json_values import json_fault
from ramet.types import (
    AdvantageInputs,
    AdvantageOutput,
    AgentResult,
    AgentStatus,
    LossInputs,
    LossOutput,
    Markup,
    Message,
    Rollout,
    Score,
    StepResult,
    StopReason,
    Task,
    ToolResult,
    Untrusted,
)

# In tuples, since `A | B` would be built at each of the calls, of which a step has many.
INSERTS = (Markup, Untrusted)
NUMBERS = (int, float)
LISTS = (tuple, list)
FLOAT32_MAX = 3.4028234e38
LOGGED_OF_TRAINING = frozenset({"loss", "grad_norm", "lr", "entropy", "kl_reference", "tokens"})  # as train/NAME


def stop_problem(stop: object) -> str | None:
    """Check the stops that a rollout step gave `ctx.generate`: a single text would be taken as its characters."""
    if isinstance(stop, str):
        return f"calls generate with stop={stop!r}: give a list of texts, stop=[{stop!r}]"
    return None


def advantage_problem(output: object, batch: AdvantageInputs) -> str | None:
    """Type, shape `[N, T]`, float32, no gradient, finite within the mask, zero outside, metrics that are numbers."""
    if not isinstance(output, AdvantageOutput):
        return f"returned {type(output).__name__}: return an AdvantageOutput"
    for name in ("advantages", "returns", "weights"):
        tensor = getattr(output, name)
        if (tensor is not None or name == "advantages") and (problem := _tensor_problem(name, tensor, batch.mask)):
            return problem
    if output.weights is not None and bool(((output.weights < 0) & batch.mask).any()):
        return "weights are negative: a token counts 0 or more"
    if bool(((output.advantages != 0) & ~batch.mask).any()):
        return "advantages are not zero outside the mask: multiply by the mask at the end"
    for name, value in output.metrics.items():
        if not isinstance(name, str):
            return f"names a metric {name!r:.80}: give a string, such as 'advantage/mean_size'"
        if not (isinstance(value, int | float) and math.isfinite(value)):
            return f"metric {name!r} is {value!r}: give finite Python numbers (tensor.item())"
    return None


def absent_hint(error: BaseException, batch: AdvantageInputs | LossInputs) -> str:
    """Return the fields that are None, if that may be why an algorithm raised."""
    absent = [field.name for field in fields(batch) if getattr(batch, field.name) is None]
    if "None" not in str(error) or not absent:
        return ""
    return f"; absent from the batch, because `needs` does not name them or nothing gave them: {', '.join(absent)}"


def _tensor_problem(name: str, tensor: Any, mask: Any) -> str | None:
    if not _is_tensor(tensor):
        return f"{name} is {type(tensor).__name__}: return a tensor [N, T]"
    if tensor.shape != mask.shape:
        return f"{name} has shape {list(tensor.shape)}: return [N, T], here {list(mask.shape)}"
    if str(tensor.dtype) != "torch.float32":
        return f"{name} is {tensor.dtype}: return float32"
    if tensor.requires_grad:
        return f"{name} carries a gradient: detach it"
    if not bool((tensor.isfinite() | ~mask).all()):
        return f"{name} is not finite: guard divisions (std may be 0)"
    return None


def loss_problem(output: object, batch: LossInputs) -> str | None:
    """Type, shapes `[T]`, a gradient of the loss, none of the metrics. Reads no numbers: a GPU would be waited for."""
    if not isinstance(output, LossOutput):
        return f"returned {type(output).__name__}: return a LossOutput"
    per_token, shape = output.per_token, batch.logprobs.shape
    if not _is_tensor(per_token):
        return f"per_token is {type(per_token).__name__}: return a tensor [T]"
    if per_token.shape != shape:
        returned_shape = list(per_token.shape)
        return (
            f"per_token has shape {returned_shape}: return one value per token, here {list(shape)}; the core aggregates"
        )
    if not per_token.requires_grad:
        return "per_token carries no gradient: compute it from batch.logprobs, without no_grad"
    for name, metric in output.metrics.items():
        if name in LOGGED_OF_TRAINING:
            return f"metric {name!r}: the run logs train/{name} itself, and both would be mixed; choose another name"
        if not _is_tensor(metric):
            return f"metric {name!r} is {type(metric).__name__}: give a tensor [T]"
        if metric.requires_grad:
            return f"metric {name!r} is attached to the graph: detach it"
        if metric.shape != shape:
            return f"metric {name!r} has shape {list(metric.shape)}: give [T]; the core averages it over the mask"
    return None


def step_problem(result: object) -> str | None:
    """Check what a rollout step gave for one turn."""
    if not isinstance(result, StepResult):
        return f"returned {type(result).__name__}: return a StepResult"
    if not _are_inserts(result.insert):
        return f"insert has {result.insert!r:.200}: use Markup and Untrusted"
    if result.stop is not None and not isinstance(result.stop, StopReason):
        return f"stop is {result.stop!r}: use a StopReason"
    if result.stop is StopReason.FAULT:
        return "stop is StopReason.FAULT: let the InfraError pass instead"
    if result.answer is not None and not isinstance(result.answer, str):
        return f"answer is {result.answer!r:.200}: give a string"
    return _outcome_problem(result)


def _outcome_problem(result: StepResult) -> str | None:
    """Whether the other results of a rollout step (info, reward, metrics) can be recorded."""
    if result.stop is StopReason.PRUNED:
        return "stop is StopReason.PRUNED: only a branch policy prunes; use StopReason.DONE"
    if (problem := _json_problem(result.info)) is not None:
        return f"info is not a JSON object ({problem}): use strings, finite numbers, lists and mappings"
    if result.reward is not None and not _is_finite(result.reward):
        return f"reward is {result.reward!r:.80}: give a finite number, or None for none"
    wrong = [f"{name!r} as {value!r:.80}" for name, value in result.metrics.items() if not _is_finite(value)]
    return f"metrics has {wrong[0]}: give finite numbers" if wrong else None


def _json_problem(info: object) -> str | None:
    if type(info) is dict and not info:  # of most steps and turns; asking whether it is a Mapping costs more
        return None
    if not isinstance(info, Mapping):
        return f"it is {type(info).__name__}"
    try:
        json.dumps(dict(info), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return None


def _is_finite(value: object) -> bool:
    return isinstance(value, NUMBERS) and not isinstance(value, bool) and _holds(value)


def _holds(number: float) -> bool:
    """Whether it is finite as the float32 that it becomes."""
    return abs(number) <= FLOAT32_MAX


def agent_problem(result: object) -> str | None:
    """Check the form of what the `run` of an agent gave."""
    if not isinstance(result, AgentResult):
        return f"run returned {result!r:.80}: return an AgentResult"
    if not isinstance(result.status, AgentStatus):
        return f"status of the result is {result.status!r:.80}: use an AgentStatus"
    return None


def agent_value_problem(result: AgentResult) -> str | None:
    """Check the values in it, which may come from what the policy wrote."""
    if not isinstance(result.answer, str | None):
        return f"answer of the result is {result.answer!r:.80}: give a string, or None for none"
    if result.reward is not None and not _is_finite(result.reward):
        return f"reward of the result is {result.reward!r:.80}: give a finite number, or None for none"
    if (problem := _json_problem(result.info)) is not None:
        return f"info of the result is not a JSON object ({problem}): use strings, finite numbers, lists, mappings"
    if (fault := json_fault({"answer": result.answer, "info": dict(result.info)})) is not None:
        return f"the result cannot be recorded: it has {fault}"
    return None


def begin_problem(inserts: object) -> str | None:
    """Check what the `begin` of an environment gave."""
    if _are_inserts(inserts) or (isinstance(inserts, LISTS) and all([isinstance(part, Message) for part in inserts])):
        return None
    return (
        f"begin returned {inserts!r:.200}: return a list of Markup and Untrusted, or of Messages only; [] for nothing"
    )


def state_key_problem(key: object) -> str | None:
    """Check what the `state_key` of an environment gave."""
    return None if isinstance(key, str) else f"state_key returned {key!r:.200}: return a string, equal for equal states"


def _are_inserts(value: object) -> bool:
    return isinstance(value, LISTS) and all([isinstance(part, INSERTS) for part in value])


def tool_problem(result: object) -> str | None:
    """Check what a tool gave for one call."""
    if not isinstance(result, ToolResult):
        return f"returned {result!r:.200}: return a ToolResult with a text"
    if not isinstance(result.text, str):
        return f"returned a ToolResult whose text is {result.text!r:.200}: return a ToolResult with a text"
    return None


def scores_problem(scores: object, n: int) -> str | None:
    """Check what a reward gave for a group of `n` rollouts, before its numbers are looked at."""
    if not isinstance(scores, Sequence) or isinstance(scores, str):
        return f"returned {type(scores).__name__}: return a list with one score per rollout"
    if len(scores) != n:
        return f"returned {len(scores)} scores for {n} rollouts: return one per rollout, None where it cannot judge"
    return None


def score_problem(score: object, rollout: Rollout) -> str | None:
    """One score of a rollout. Takes the scalars of numpy and torch for numbers, but no text."""
    if score is None:
        return None
    if not isinstance(score, Score):
        return _number_problem(score, f"the reply {rollout.reply!r:.80}")
    if not (isinstance(score.parts, Mapping) and isinstance(score.token_rewards, Mapping)):
        return "scored with a Score whose parts or token_rewards are not a mapping of names or positions to numbers"
    if not isinstance(score.masked, bool):
        return f"scored with Score(masked={score.masked!r:.80}): give True or False"
    if not isinstance(score.reason, str | None):
        return f"scored with Score(reason={score.reason!r:.80}): give a text or None"
    numbers = {f"the reply {rollout.reply!r:.80}": score.value}
    numbers |= {f"part {name!r}": part for name, part in score.parts.items()}
    for position, extra in score.token_rewards.items():
        if not isinstance(position, int) or not 0 <= position < rollout.n_response_tokens:
            return f"token_rewards names position {position!r} of a response of {rollout.n_response_tokens} tokens"
        numbers[f"token {position}"] = extra
    return next((p for of, value in numbers.items() if (p := _number_problem(value, of))), None)


def _number_problem(value: object, of: str) -> str | None:
    number = as_number(value)
    if number is None:
        return f"scored {of} with {value!r:.80}: give a float, a Score, or None for not judged"
    if not math.isfinite(number):
        return f"scored {of} with {value!r:.80}: give a finite number, or None for not judged"
    if not _holds(number):
        return f"scored {of} with {value!r:.80}: give a number that fits float32, up to 3.4e38"
    return None


def as_number(value: object) -> float | None:
    """Return a number, finite or not, as a float. Takes the scalars of numpy and torch."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # arrays of several elements; enormous integers
        return None


def tasks_problem(tasks: Sequence[object]) -> str | None:
    """Check what the `load` of a benchmark gave."""
    odd = next((task for task in tasks if not isinstance(task, Task)), None)
    return (
        None if odd is None else f"load gave {odd!r:.80}, a {type(odd).__name__}: give Task(id=…, prompt=…, answer=…)"
    )


def metrics_problem(scores: object, metrics: Sequence[str], *, judged: bool) -> str | None:
    """Check what a benchmark gave for one rollout."""
    if not isinstance(scores, Mapping):
        return f"score returned {type(scores).__name__}: return a mapping of metrics"
    if set(scores) != set(metrics):
        return f"score gave {sorted(map(str, scores))}, info.metrics names {sorted(metrics)}"
    for name, value in scores.items():
        if value is None:
            if not judged:
                return f"{name!r} is None (not judged), but info.judged is False"
        elif not (isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1):
            return f"{name!r} is {value!r:.80}: a metric is a number in [0, 1]"
    return None


def _is_tensor(value: object) -> bool:
    return any(cls.__module__ == "torch" and cls.__name__ == "Tensor" for cls in type(value).__mro__)
