"""Ten changes of an agent, planted by keys of `ramet test`, and the turn at which each must be found in a rollout.

The turns follow from the records alone; of other weights they come from a plain forward pass of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from changed_agent import FIRST_HALF
from transformers import AutoModelForCausalLM, PreTrainedModel

from ramet import Rollout, SegmentKind, StopReason
from ramet.engines.torch.sampler import uniforms
from ramet.models.tiny import CHAT_TEMPLATE
from ramet.rollout.keys import RolloutKey, request_seed

Found = tuple[str, int] | None  # kind and turn of the first difference; None: the rollout is as recorded
Expected = Callable[[Rollout, Mapping[str, Rollout]], Found]  # of a rollout, and of all rollouts of its group by id
SEED, STEP = 1, 1
RESULT_TOKENS = 12
NOISE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`kind`: prompt, template, parser, tool or weights."""

    kind: str
    name: str
    arguments: Sequence[str]
    expected: Expected


def changes(work: Path, trained: Path, noisy: Path) -> list[Change]:
    """Return the changes. `work` gets their files; `trained` and `noisy` are other weights of the model."""
    template = work / "template.jinja"
    template.write_text(CHAT_TEMPLATE.replace("+ '|>' +", "+ '|>\\n' +"), encoding="utf-8")
    return [
        Change(kind="prompt", name="an instruction", expected=at_the_prompt,
               arguments=["rollout_step.instruction='Look it up.'"]),
        Change(kind="prompt", name="the system prompt that describes the tools", expected=at_the_prompt,
               arguments=["rollout_step.system_prompt=always", "data.max_prompt_tokens=900"]),
        Change(kind="template", name="a line break after each role", expected=at_the_prompt,
               arguments=[f"model.chat_template={template}"]),
        Change(kind="template", name="another tag around results", expected=at_the_first_insert,
               arguments=["rollout_step.params.result=results"]),
        Change(kind="parser", name="arguments in lower case", expected=at_the_first_upper_call,
               arguments=["rollout_step=lower_tags"]),
        Change(kind="parser", name="another tag around the answer", expected=at_the_answer,
               arguments=["rollout_step.params.answer=final"]),
        Change(kind="tool", name="a version that ends some results with a dot", expected=at_the_first_dot,
               arguments=["tools.search.use=dotted_search", "tools.search.params.max_results=1", "--tools", "run"]),
        Change(kind="tool", name=f"results cut to {RESULT_TOKENS} tokens", expected=at_the_first_long_result,
               arguments=[f"tools.search.max_result_tokens={RESULT_TOKENS}", "--tools", "run"]),
        Change(kind="weights", name="the weights after the run", expected=Weights(trained),
               arguments=["--model", str(trained)]),
        Change(kind="weights", name=f"noise of {NOISE} on one layer", expected=Weights(noisy),
               arguments=["--model", str(noisy)]),
    ]  # fmt: skip


def write_noisy(model: Path, folder: Path) -> None:
    """Write the model with noise on the output of its last block."""
    from transformers import AutoTokenizer

    changed = AutoModelForCausalLM.from_pretrained(model)
    weight = changed.model.layers[-1].mlp.down_proj.weight
    with torch.no_grad():
        weight += NOISE * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    changed.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def at_the_prompt(rollout: Rollout, group: Mapping[str, Rollout]) -> Found:
    return "prompt", 0


def at_the_first_insert(rollout: Rollout, group: Mapping[str, Rollout]) -> Found:
    """A text that the rollout step inserts without a call is the parser's."""
    turns = (s.turn for s in rollout.segments if s.kind is SegmentKind.RESULT)
    turn = next(turns, None)
    called = any(call.turn == turn for call in rollout.tool_calls)
    return None if turn is None else ("prompt" if called else "call", turn)


def at_the_first_upper_call(rollout: Rollout, group: Mapping[str, Rollout]) -> Found:
    upper = (c.turn for c in rollout.tool_calls if c.arguments["query"] != c.arguments["query"].lower())
    turn = next(upper, None)
    return None if turn is None else ("call", turn)


def at_the_answer(rollout: Rollout, group: Mapping[str, Rollout]) -> Found:
    return ("call", rollout.segments[-1].turn) if rollout.stop is StopReason.ANSWER else None


def at_the_first_dot(rollout: Rollout, group: Mapping[str, Rollout]) -> Found:
    turn = next((c.turn for c in rollout.tool_calls if c.arguments["query"][:1] in FIRST_HALF), None)
    return None if turn is None else ("tool", turn)


def at_the_first_long_result(rollout: Rollout, group: Mapping[str, Rollout]) -> Found:
    """The tokenizer has a token for each byte."""
    turn = next((c.turn for c in rollout.tool_calls if len(c.text.encode()) > RESULT_TOKENS), None)
    return None if turn is None else ("tool", turn)


class Weights:
    """Where the uniform numbers of the recorded requests choose another token with these weights."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model: PreTrainedModel | None = None

    def __call__(self, rollout: Rollout, group: Mapping[str, Rollout]) -> Found:
        if self._model is None:
            self._model = AutoModelForCausalLM.from_pretrained(self._folder)
        ids = [token for segment in rollout.segments for token in segment.token_ids]
        with torch.no_grad():
            shares = self._model(input_ids=torch.tensor([ids])).logits[0].softmax(-1).double().cumsum(-1)  # [T, V]
        position = 0
        for segment in rollout.segments:
            for token in segment.token_ids:
                if segment.is_sampled:
                    drawn = uniforms(self._seed(rollout, group, segment.turn), position, 1)
                    if int((shares[position - 1] <= drawn).sum()) != token:
                        return "sampled", segment.turn
                position += 1
        return None

    def _seed(self, rollout: Rollout, group: Mapping[str, Rollout], turn: int) -> int:
        """Return the seed of the request of a turn; turns before a fork are its parent's."""
        while rollout.parent is not None and turn < (rollout.fork_turn or 0):
            rollout = group[rollout.parent]
        return request_seed(SEED, RolloutKey("train", STEP, rollout.task.id, rollout.id), turn)
