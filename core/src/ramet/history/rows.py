"""Recorded runs as rows: dicts of plain values, one table each, for notebooks.

They are made of what `ramet.rollout.record` and `ramet.evaluate.files` read. A tool call and a segment is in one row,
the row of the rollout in which it happened: what a fork shares with its parent is in its parent's rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from ramet.evaluate.agreement import with_verdicts
from ramet.evaluate.files import load_results
from ramet.rollout.scoring import ScoredRollout
from ramet.types import CallStatus, Rollout

Row = dict[str, Any]


def rollout_row(step: int, scored: ScoredRollout) -> Row:
    """One rollout: how it ended, its reward with its parts (`reward/NAME`), why (`reason/NAME`), numbers and texts.
    `entropy` is the mean over its own sampled tokens, in nats; `masked` says why it has no reward, None: it has one.
    """
    rollout = scored.rollout
    own = [segment for segment in rollout.segments[rollout.n_shared :] if segment.entropies is not None]
    entropies = [value for segment in own for value in segment.entropies or ()]
    calls = rollout.tool_calls
    return {
        **_place(step, rollout),
        "data_source": rollout.task.data_source,
        "parent": rollout.parent,
        "fork_turn": rollout.fork_turn,
        **{f"fork_reason/{name}": value for name, value in rollout.fork_reason.items()},
        "reward": scored.reward,
        **{f"reward/{name}": value for name, value in scored.parts.items()},
        **{f"reason/{name}": text for name, text in scored.reasons.items()},
        "stop": rollout.stop.value,
        "answer": rollout.answer,
        "gold": list(rollout.task.answer),
        "turns": 1 + max((segment.turn for segment in rollout.segments if segment.is_sampled), default=-1),
        "calls": len(calls),
        "failed_calls": sum(call.status is not CallStatus.OK for call in calls),
        "response_tokens": rollout.n_response_tokens,
        "sampled_tokens": rollout.n_sampled_tokens,
        "entropy": fmean(entropies) if entropies else None,
        "masked": rollout.left_out if rollout.fault is None else f"{rollout.fault.where}: {rollout.fault.message}",
        **{f"stats/{name}": value for name, value in rollout.stats.items()},
        "response": rollout.response,
    }


def call_rows(step: int, rollout: Rollout) -> Iterator[Row]:
    """Yield the tool calls of a rollout's own turns. `reason` is why a call failed: what the model was shown, or what
    failed around it; None: it did not fail.
    """
    for call in rollout.tool_calls:
        if call.turn >= rollout.first_turn:
            failed = call.status is not CallStatus.OK
            yield {
                **_place(step, rollout),
                "turn": call.turn,
                "name": call.name,
                "arguments": dict(call.arguments),
                "result": call.text,
                "status": call.status.value,
                "failed": failed,
                "reason": call.text if failed else None,
                "seconds": call.run_s,
                "wait_s": call.wait_s,
                "attempts": call.attempts,
                "cached": call.cached,
                "truncated": call.truncated,
            }


def segment_rows(step: int, rollout: Rollout) -> Iterator[Row]:
    """Yield the segments of a rollout that it does not share with its parent. `logprobs` and `entropies` (nats) are
    lists as long as `token_ids`, or None where nothing was sampled.
    """
    for index, segment in enumerate(rollout.segments):
        if index >= rollout.n_shared:
            yield {
                **_place(step, rollout),
                "segment": index,
                "origin": segment.origin.value,
                "kind": segment.kind.value,
                "turn": segment.turn,
                "text": segment.text,
                "token_ids": segment.token_ids.tolist(),
                "logprobs": None if segment.logprobs is None else segment.logprobs.tolist(),
                "entropies": None if segment.entropies is None else segment.entropies.tolist(),
                "version": segment.policy_version,
            }


def score_rows(results: Path) -> list[Row]:
    """The metrics of an evaluation: mean over tasks with its 95 % interval, pass@k, maj@k, counts. What `ramet judge`
    wrote next to the results is a metric `judge-NAME`. Raises `ConfigError` if there are no results.
    """
    file, body = load_results(results)
    return [
        _score_row(result["name"], body["k"], metric)
        for result in with_verdicts(file, body)["results"]
        for metric in result["metrics"]
    ]


def result_rows(results: Path) -> list[Row]:
    """Each rollout of an evaluation: answer, gold answers, scores by metric (`score/NAME`, None: not judged) and texts.

    Raises `ConfigError` if there are no results.
    """
    file, body = load_results(results)
    return [
        _result_row(task, rollout)
        for result in with_verdicts(file, body)["results"]
        for task in result["tasks"]
        for rollout in task["rollouts"]
    ]


def _place(step: int, rollout: Rollout) -> Row:
    return {"step": step, "task": rollout.task.id, "rollout": rollout.id}


def _score_row(benchmark: str, k: int, metric: Mapping[str, Any]) -> Row:
    avg, maj = metric["avg"], metric.get("maj") or {}
    mean, margin = avg["mean"], avg["half_width"]
    known = mean is not None and margin is not None and math.isfinite(margin)
    return {
        "benchmark": benchmark,
        "metric": metric["metric"],
        "mean": mean,
        "low": mean - margin if known else None,
        "high": mean + margin if known else None,
        "k": k,
        **{f"pass@{passes['k']}": passes["estimate"]["mean"] for passes in metric["passes"]},
        f"maj@{k}": maj.get("mean"),
        "tasks": metric["n_tasks"],
        "rollouts": metric["n_rollouts"],
        "judged": metric["n_judged"],
    }


def _result_row(task: Mapping[str, Any], rollout: Mapping[str, Any]) -> Row:
    calls = rollout["tool_calls"]
    return {
        "benchmark": task["benchmark"],
        "task": task["task"],
        "data_source": task["data_source"],
        "rollout": rollout["id"],
        **{f"score/{name}": value for name, value in rollout["scores"].items()},
        "answer": rollout["answer"],
        "gold": list(task["gold"]),
        "stop": rollout["stop"],
        "masked": rollout["masked"],
        "calls": len(calls),
        "failed_calls": sum(call["status"] != CallStatus.OK for call in calls),
        "response_tokens": rollout["response_tokens"],
        "sampled_tokens": rollout["sampled_tokens"],
        "prompt": task["prompt"],
        "response": rollout["response"],
    }
