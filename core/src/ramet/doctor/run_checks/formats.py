"""Texts of the model that the rollout step does not read: calls and answers in another form, none, cut ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ramet.doctor import thresholds as t
from ramet.doctor.reading import Seen, by_step, finding, finite, mean, percent, quoted, severity, shown, unmasked
from ramet.types import Finding, SegmentKind, Severity, StopReason, StoredRun

# Calls as chat templates and agents write them. The time of each pattern grows only with the text's length.
CALLS = {
    "hermes": re.compile(r"<tool_call>\s*\{"),
    "JSON": re.compile(r'^[ \t]*(?:<\|python_tag\|>\s*)?\{\s*"name"\s*:', re.MULTILINE),
    "<function=…>": re.compile(r"<function=[\w.-]+>"),
    "a fenced block of code": re.compile(r"```(?:python|tool_code|json|search)\b"),
    "[TOOL_CALLS]": re.compile(r"\[TOOL_CALLS\]|<\|tool_call\|>|<\|tool_calls_section_begin\|>|<｜tool▁call"),
    "ReAct": re.compile(r"^Action\s*:.*\n\s*Action Input\s*:", re.MULTILINE),
}
TAGS = re.compile(r"<(/?)([A-Za-z_][\w.-]*)>")
TURN_END = 20_000  # characters of a turn in which forms are looked for: its end, where calls and answers are
OWN_FORMS = {"tags": {"tags"}, "hermes": {"hermes", "JSON"}}  # of the rollout steps whose forms are known here
PLAIN = frozenset("b i em strong code pre p br ul ol li sub sup table tr td th a span div".split())  # HTML in prose


def other_form(run: StoredRun) -> Iterator[Finding]:
    """The model writes calls or answers in a form that the rollout step does not read."""
    step = run.option("rollout_step.name", "tags")
    if step not in OWN_FORMS:
        return
    unread = {one.ref: (one, form) for one in unmasked(run) if (form := _unread_form(run, one, step)) is not None}
    seen = [one for one, _ in unread.values()]
    n = len(unmasked(run))
    level = severity(len(seen) / max(n, 1), t.FORM_LOOK, t.FORM_WRONG)
    if level is None or n < t.FEWEST_ROLLOUTS:
        return
    form, times = Counter(form for _, form in unread.values()).most_common(1)[0]
    written = next(one for one, its in unread.values() if its == form).rollout.sampled
    yield finding(
        "other-form",
        level,
        "calls or answers in another form",
        f"{len(seen)} of {n} rollouts hold {form}, which the step {step!r} does not read"
        f" ({times} of them this form); one writes {quoted(written)}",
        _fix_of_form(step, form),
        seen,
    )


def _fix_of_form(step: str, form: str) -> str:
    if step == "tags" and form in ("hermes", "JSON"):
        return "rollout_step=hermes, or teach the tags by ramet sft"
    if step == "hermes" and form.startswith("<"):
        return "rollout_step=tags, or teach the chat template's calls by ramet sft"
    return (
        "the names of tags are the names of the tools (tools.NAME) and rollout_step.params.answer, think, result: make "
        "them agree with what the model was taught, or teach the step's form by ramet sft"
    )


def _unread_form(run: StoredRun, one: Seen, step: str) -> str | None:
    """The form of a call or answer that no call of the same turn answers; None without one."""
    called, names = {call.turn for call in one.rollout.tool_calls}, _names(run, step)
    for segment in one.rollout.segments:
        if segment.kind is not SegmentKind.TURN or segment.turn in called:
            continue
        text = segment.text[-TURN_END:]
        for name, pattern in CALLS.items():
            if name not in OWN_FORMS[step] and pattern.search(text):
                return name
        unknown = next((name for name in _closed_tags(text) if name not in names), None)
        if unknown is not None:
            return f"<{unknown}>"
    return None


def _closed_tags(text: str) -> list[str]:
    """The names of tags that are opened and later closed, in the order of their opening."""
    opened: dict[str, bool] = {}  # name -> whether it is closed
    for slash, name in TAGS.findall(text):
        if not slash:
            opened.setdefault(name, False)
        elif name in opened:
            opened[name] = True
    return [name for name, closed in opened.items() if closed]


def _names(run: StoredRun, step: str) -> frozenset[str]:
    """The tags that the step reads, and those that mean nothing."""
    params = [run.option(f"rollout_step.params.{name}", name) for name in ("think", "result", "answer")]
    own = {*params, *run.option("rollout_step.params.other_tags", []), *run.option("tools", {})}
    return PLAIN | (own if step == "tags" else {"think", "answer", "tool_call", "tool_response", "tools"})


def no_format(run: StoredRun) -> Iterator[Finding]:
    """Rollouts end without an answer, or show no mark of the format."""
    seen = unmasked(run)
    if len(seen) < t.FEWEST_ROLLOUTS or run.option("rollout_step.name", "tags") not in OWN_FORMS:
        return
    entropy = finite(run, "rollout/entropy")
    noise = bool(entropy) and entropy[0] >= t.NOISE_ENTROPY
    bare = [one for one in seen if not one.rollout.answer and (noise or _is_bare(run, one))]
    if len(bare) / len(seen) >= t.NO_MARK_WRONG:
        temperature = shown(run, "rollout.temperature", 1.0)
        yield finding(
            "no-format",
            Severity.PROBLEM,
            "the rollouts are noise" if noise else "the format is never used",
            f"{len(bare)} of {len(seen)} rollouts hold no answer, and "
            + (f"have {entropy[0]:.2g} nats a token in the first step" if noise else "no call and no tag either")
            + f" (rollout.temperature={temperature}); one writes {quoted(bare[0].rollout.sampled)}",
            "teach the format first (ramet sft), or describe it: rollout_step.system_prompt=always"
            + ("; the model's weights and tokenizer (model.path), rollout.temperature=1" if noise else ""),
            bare,
        )
        return
    ended = [one for one in seen if one.rollout.stop is StopReason.END and not one.rollout.answer]
    level = severity(len(ended) / len(seen), t.NO_ANSWER_LOOK, t.NO_ANSWER_WRONG)
    if level is not None:
        yield finding(
            "no-format",
            level,
            "no answer in the format",
            f"{len(ended)} of {len(seen)} rollouts end by themselves without an answer; one ends "
            f"{quoted(ended[0].rollout.reply[-60:])}",
            "teach the format first (ramet sft), or describe it: rollout_step.system_prompt=always; "
            "rollout_step.params.answer is the name of the tag",
            ended,
        )


def _is_bare(run: StoredRun, one: Seen) -> bool:
    """Whether a rollout holds no call, and no tag of the format."""
    names = _names(run, "tags") - PLAIN
    return not one.rollout.tool_calls and not any(name in names for _, name in TAGS.findall(one.rollout.sampled))


def cut(run: StoredRun) -> Iterator[Finding]:
    """Rollouts are cut by the limit of tokens, turns or calls, from the beginning of the run."""
    keys = {
        StopReason.LENGTH: "rollout.max_response_tokens",
        StopReason.TURN_LIMIT: "rollout.max_turns",
        StopReason.CALL_LIMIT: "rollout.max_tool_calls",
    }
    seen = unmasked(run)
    shares = {stop: mean(run.values(f"rollout/stop/{stop}")) or _share(seen, stop) for stop in keys}
    stop = max(shares, key=lambda reason: shares[reason])
    level = severity(shares[stop], t.CUT_LOOK, t.CUT_WRONG)
    if level is None or len(seen) < t.FEWEST_ROLLOUTS:
        return
    first = next(iter(by_step(seen)))[1]
    if _share(first, stop) < t.CUT_LOOK / 2:
        return  # see `length_grows`
    yield finding(
        "cut",
        level,
        f"rollouts are cut by {keys[stop]}",
        f"{percent(shares[stop])} end by {keys[stop]}={run.option(keys[stop], 'its default')}"
        f" ({percent(_share(first, stop))} in the first step that was read); of {len(first)} rollouts there the "
        f"longest has {max(one.rollout.n_response_tokens for one in first)} tokens",
        f"raise {keys[stop]}" + (", or teach shorter answers" if stop is StopReason.LENGTH else ""),
        [one for one in seen if one.rollout.stop is stop],
    )


def _share(seen: list[Seen], stop: StopReason) -> float:
    return sum(one.rollout.stop is stop for one in seen) / max(1, len(seen))
