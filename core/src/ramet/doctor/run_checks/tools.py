"""Tools that are never called, always fail, or whose results are cut."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ramet.doctor import thresholds as t
from ramet.doctor.reading import Seen, finding, mean, number, percent, quoted, rises, severity, unmasked
from ramet.types import CallStatus, Finding, Severity, StoredRun, ToolRecord

ERROR = re.compile(r"\s*(?:error|exception|traceback|failed)\b", re.IGNORECASE)  # as a tool's text that is one begins


def tool_unused(run: StoredRun) -> Iterator[Finding]:
    """The tools of the run are never called."""
    names = list(run.option("tools", {}))
    seen = unmasked(run)
    share = mean(run.values("rollout/tool_use"))
    share = _share_that_calls(seen) if share is None else share
    if not names or share > t.TOOL_UNUSED or len(seen) < t.FEWEST_ROLLOUTS:
        return
    limit = "" if number(run, "rollout.max_tool_calls", 1) else " (rollout.max_tool_calls=0)"
    yield finding(
        "tool-unused",
        Severity.WARNING if rises(run) else Severity.PROBLEM,
        f"no tool is called: {', '.join(names)}",
        f"{percent(share)} of the rollouts call a tool{limit}; one writes {quoted(seen[0].rollout.sampled)}",
        "show the model how: rollout_step.system_prompt=auto, or traces with calls (ramet sft); "
        "rollout_step=hermes for a model whose chat template has tools",
        seen,
    )


def _share_that_calls(seen: list[Seen]) -> float:
    return sum(bool(one.rollout.tool_calls) for one in seen) / max(1, len(seen))


def tool_fails(run: StoredRun) -> Iterator[Finding]:
    """The calls of a tool fail, or return the same text whatever they ask."""
    for name, calls in _calls(run).items():
        failed = [(one, call) for one, call in calls if call.status is CallStatus.ERROR or ERROR.match(call.text)]
        failed = failed if len(failed) >= t.TOOL_SAME_LOOK * len(calls) else _same_result(calls)
        text, times = Counter(call.text for _, call in failed).most_common(1)[0] if failed else ("", 0)
        look = t.TOOL_SAME_LOOK if times >= t.TOOL_SAME_ERROR * len(failed) else t.TOOL_ERRORS_LOOK
        level = severity(len(failed) / len(calls), look, t.TOOL_ERRORS_WRONG)
        if level is None or len(failed) < t.FEWEST_CALLS:
            continue
        call = next(call for _, call in failed if call.text == text)
        yield finding(
            "tool-fails",
            level,
            f"the tool {name} fails",
            f"{len(failed)} of {len(calls)} calls fail or all return the same; {times} times {quoted(text, 120)}, as "
            f"of {quoted(str(dict(call.arguments)))}",
            f"try the call by hand (ramet tool call {name} …); tools.{name}.params, the tool's code, or the "
            "arguments that the model was taught",
            [one for one, _ in failed],
        )


def _same_result(calls: list[tuple[Seen, ToolRecord]]) -> list[tuple[Seen, ToolRecord]]:
    """The calls that got the most frequent text, if that is the text of most, whatever they ask."""
    text, _ = Counter(call.text for _, call in calls).most_common(1)[0]
    same = [(one, call) for one, call in calls if call.text == text and not call.truncated]
    asked = {str(call.arguments) for _, call in same}
    return same if len(same) >= t.SAME_RESULT * len(calls) and len(asked) >= t.SAME_RESULT_ARGUMENTS else []


def tool_cut(run: StoredRun) -> Iterator[Finding]:
    """The results of a tool are cut."""
    for name, calls in _calls(run).items():
        cut = [one for one, call in calls if call.truncated]
        level = severity(len(cut) / len(calls), t.TOOL_CUT_LOOK, t.TOOL_CUT_WRONG)
        if level is None or len(calls) < t.FEWEST_CALLS:
            continue
        key = f"tools.{name}.max_result_tokens"
        harmless = rises(run) or number(run, key) >= t.TOOL_CUT_SHORT
        yield finding(
            "tool-cut",
            Severity.WARNING if harmless else level,
            f"results of the tool {name} are cut",
            f"{len(cut)} of {len(calls)} results are longer than {key}={run.option(key, 'its default')}",
            f"raise {key} (and rollout.max_response_tokens with it), or have the tool return less",
            cut,
        )


def _calls(run: StoredRun) -> dict[str, list[tuple[Seen, ToolRecord]]]:
    """The calls of each tool; calls of forks' parents count once."""
    calls: dict[str, list[tuple[Seen, ToolRecord]]] = {}
    for one in unmasked(run):
        for call in one.rollout.tool_calls:
            if call.turn >= one.rollout.first_turn:
                calls.setdefault(call.name, []).append((one, call))
    return calls
