"""One finished task of an evaluation, as it is in the results file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from ramet.config.secrets import hide
from ramet.evaluate.statistics import CORRECT
from ramet.helpers.openai.exchanges import ChatExchange
from ramet.rollout.record import GroupRecord
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import CallStatus, Group, Rollout, SegmentKind, StopReason, ToolRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """One tool call."""

    name: str
    arguments: str  # JSON text; what the model wrote may hold NaN, so it stays text
    status: str
    run_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A benchmark's scores of one rollout, and what it asked a model for them."""

    scores: Mapping[str, float | None] = field(default_factory=dict)  # by metric; None: not judged
    asked: tuple[ChatExchange, ...] = ()
    unjudged: str = ""  # why the benchmark gave no score, if it raised


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """One rollout. `masked` says what failed; None: it counts."""

    id: str
    scores: Mapping[str, float | None]  # by metric; None: not judged
    answer: str | None
    response: str  # everything after the prompt, tool results included
    stop: str
    masked: str | None
    tool_calls: tuple[CallResult, ...]
    sampled_tokens: int
    response_tokens: int
    asked: tuple[ChatExchange, ...] = ()  # of models, to score it: prompts and raw answers of judges
    unjudged: str = ""  # why the benchmark gave no score, if it raised

    def without_texts(self) -> RolloutResult:
        calls = tuple(replace(call, arguments="") for call in self.tool_calls)
        return replace(self, response="", tool_calls=calls, asked=())

    def why_missing(self, metric: str) -> str | None:
        """Why it has no score in this metric; None: it has one."""
        return None if self.scores.get(metric) is not None else self.masked or self.unjudged or "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One task with its rendered prompt and its rollouts."""

    benchmark: str
    task: str
    data_source: str
    prompt: str
    gold: tuple[str, ...]
    rollouts: tuple[RolloutResult, ...]

    def missing(self, metric: str, k: int) -> tuple[int, ...]:
        """Return the numbers of the k rollouts without a score in this metric: not run, masked, or not judged."""
        judged = {int(r.id) for r in self.rollouts if r.why_missing(metric) is None}
        return tuple(number for number in range(k) if number not in judged)

    def superseded(self, by: TaskResult) -> TaskResult:
        """Return the result with the rollouts of `by`, also instead of those with the same numbers."""
        newer = {rollout.id: rollout for rollout in by.rollouts}
        merged = {rollout.id: rollout for rollout in self.rollouts} | newer
        return replace(self, rollouts=tuple(merged[id] for id in sorted(merged, key=int)))

    def without_texts(self) -> TaskResult:
        """Return only what statistics read, a small part: without prompt, responses, arguments of calls and what models
        were asked.
        """
        return replace(self, prompt="", gold=(), rollouts=tuple(rollout.without_texts() for rollout in self.rollouts))

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> TaskResult:
        rollouts = tuple(map(_rollout_from_body, body["rollouts"]))
        return cls(**{**body, "gold": tuple(body["gold"]), "rollouts": rollouts})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStatistics:
    """How tools were used. Shares and means are over rollouts that are not masked; None: there was none."""

    share_using: float | None  # rollouts with at least one call
    calls_per_rollout: float | None
    calls: Mapping[str, int]  # by tool, over all rollouts
    errors: Mapping[str, int]  # the model's own doing
    infra: Mapping[str, int]  # faults of infrastructure
    success: Mapping[str, float]  # share of a tool's calls that were neither
    mean_s: Mapping[str, float]  # of a call, by tool
    calls_if_right: float | None  # per rollout with a score of 1 in the main metric
    calls_if_wrong: float | None  # per rollout with a lower score
    sampled_tokens: float | None  # per rollout
    inserted_tokens: float | None  # per rollout: results with their wrappers


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutEnds:
    """How rollouts ended that are not masked."""

    answered: int  # with an answer
    done: int  # without one, by the environment, which needs none
    cut: int  # without one, by the limit of tokens
    unanswered: int  # without one, otherwise


def task_result(benchmark: str, group: Group, judged: Sequence[Judgement]) -> TaskResult:
    """The result of a group. `judged` holds one judgement per rollout, in order, all checked (`measure.judge`); scores
    of masked rollouts are ignored.
    """
    pairs = zip(group.rollouts, judged, strict=True)
    prompt = (s.text for s in group.rollouts[0].segments if s.kind is SegmentKind.PROMPT)
    return TaskResult(
        benchmark=benchmark,
        task=group.task.id,
        data_source=group.task.data_source,
        prompt="".join(prompt),
        gold=group.task.answer,
        rollouts=tuple(_rollout_result(rollout, judgement) for rollout, judgement in pairs),
    )


def group_record(group: Group, scores: Sequence[Mapping[str, float | None]], metric: str) -> GroupRecord:
    """Return the group's record with the scores of the benchmark; the main one is the reward."""
    scored = tuple(
        ScoredRollout(
            rollout=rollout,
            reward=rollout_scores.get(metric),
            parts={name: value for name, value in rollout_scores.items() if value is not None},
        )
        for rollout, rollout_scores in zip(group.rollouts, scores, strict=True)
    )
    return GroupRecord(step=0, group=ScoredGroup(task=group.task, rollouts=scored))


def scores_of(tasks: Iterable[TaskResult], metric: str) -> dict[str, list[float | None]]:
    """Task id -> scores of its rollouts in this metric; None where masked or not judged."""
    return {t.task: [r.scores.get(metric) for r in t.rollouts] for t in tasks}


def answers_of(tasks: Iterable[TaskResult]) -> dict[str, list[str | None]]:
    """Task id -> answers of its rollouts."""
    return {t.task: [r.answer for r in t.rollouts] for t in tasks}


def tool_statistics(tasks: Iterable[TaskResult], metric: str) -> ToolStatistics:
    """`metric` says which rollouts are right."""
    rollouts = [rollout for task in tasks for rollout in task.rollouts]
    valid = [r for r in rollouts if r.masked is None]
    judged = [(r, score) for r in valid if (score := r.scores.get(metric)) is not None]
    calls = [call for r in rollouts for call in r.tool_calls]
    by_tool = {name: [call for call in calls if call.name == name] for name in _count(calls)}
    return ToolStatistics(
        share_using=_mean(bool(r.tool_calls) for r in valid),
        calls_per_rollout=_mean(len(r.tool_calls) for r in valid),
        calls_if_right=_mean(len(r.tool_calls) for r, score in judged if score >= CORRECT),
        calls_if_wrong=_mean(len(r.tool_calls) for r, score in judged if score < CORRECT),
        sampled_tokens=_mean(r.sampled_tokens for r in valid),
        inserted_tokens=_mean(r.response_tokens - r.sampled_tokens for r in valid),
        success={name: fmean(c.status == CallStatus.OK for c in of_tool) for name, of_tool in by_tool.items()},
        mean_s={name: fmean(call.run_s for call in of_tool) for name, of_tool in by_tool.items()},
        calls=_count(calls),
        errors=_count(call for call in calls if call.status == CallStatus.ERROR),
        infra=_count(call for call in calls if call.status == CallStatus.INFRA),
    )


def rollout_ends(tasks: Iterable[TaskResult]) -> RolloutEnds:
    valid = [rollout for task in tasks for rollout in task.rollouts if rollout.masked is None]
    without_answer = Counter(rollout.stop for rollout in valid if rollout.answer is None)
    done, cut = without_answer.pop(StopReason.DONE, 0), without_answer.pop(StopReason.LENGTH, 0)
    answered = sum(rollout.answer is not None for rollout in valid)
    return RolloutEnds(answered=answered, done=done, cut=cut, unanswered=without_answer.total())


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None


def _count(calls: Iterable[CallResult]) -> dict[str, int]:
    return dict(Counter(call.name for call in calls))


def _rollout_from_body(body: Mapping[str, Any]) -> RolloutResult:
    calls = tuple(CallResult(**call) for call in body["tool_calls"])
    # Results of earlier versions lack it.
    asked = tuple(ChatExchange.from_body(exchange) for exchange in body.get("asked", ()))
    return RolloutResult(**{**body, "tool_calls": calls, "asked": asked})


def _rollout_result(rollout: Rollout, judged: Judgement) -> RolloutResult:
    fault = rollout.fault
    return RolloutResult(
        id=rollout.id,
        scores=dict(judged.scores) if rollout.valid else {},
        answer=rollout.answer,
        response=rollout.response,
        stop=str(rollout.stop),
        masked=None if fault is None else f"{fault.where}: {hide(fault.message)}",
        tool_calls=tuple(_call_result(call) for call in rollout.tool_calls),
        sampled_tokens=rollout.n_sampled_tokens,
        response_tokens=rollout.n_response_tokens,
        asked=tuple(map(without_secrets, judged.asked)),
        unjudged=hide(judged.unjudged),
    )


def without_secrets(exchange: ChatExchange) -> ChatExchange:
    """Hide secrets: what a client raises may quote its URL, with the key in it."""
    return exchange if exchange.error is None else replace(exchange, error=hide(exchange.error))


def _call_result(call: ToolRecord) -> CallResult:
    arguments = json.dumps(dict(call.arguments), default=repr)
    return CallResult(name=call.name, arguments=arguments, status=str(call.status), run_s=call.run_s)
