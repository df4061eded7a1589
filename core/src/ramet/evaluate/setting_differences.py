"""Settings that differ between two evaluations, apart from the model: a difference may come from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ramet.config.keys import REPLACED
from ramet.config.stored import stored_names
from ramet.evaluate.header import IMPORTED, SELECTION
from ramet.runs.resume import ABSENT, config_differences, is_safe

SECTIONS = ("rollout", "rollout_step", "tools")
KEYS = ("data.max_prompt_tokens", "run.seed")  # outside of those sections and of the benchmarks
PLAYED, UNKNOWN = "sampling, tools and limits", "not known (imported)"
RULES = ("tools", "limits", "sampling", "prompt", "system_prompt")  # of a benchmark: as they held is in its rules


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One setting. Values as the configuration writes them, `(absent)` where there is none."""

    setting: str  # its dotted key, or `NAME: RULE` of a benchmark
    before: str
    after: str


def setting_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[SettingDifference]:
    """List what differs between two results files in k, sampling, rollout step, tools and limits of shared benchmarks.

    What cannot alter a score is left out, and what belongs to the model: its files, template, engine and hardware; that
    it was chosen on the very tasks is listed, and that imported outputs do not say how they were made.
    """
    both = {result["name"] for result in before["results"]} & {result["name"] for result in after["results"]}
    settings = [("evaluate.k", before.get("k"), after.get("k"))]
    for name in sorted(both):
        rules = [(body.get("rules") or {}).get(name) or {} for body in (before, after)]
        settings += _rule_differences(name, rules[0], rules[1])
        settings.append((f"{name}: model chosen on its tasks by", _chosen_by(before, name), _chosen_by(after, name)))
    configured = _configured(_config(before), _config(after), both)
    imported = [IMPORTED in (body.get("settings") or {}) for body in (before, after)]
    if any(imported):  # the configuration of an import is only about its scores
        configured = (change for change in configured if change[0].startswith("benchmarks."))
        known = [UNKNOWN if is_imported else "recorded" for is_imported in imported]
        settings.append((PLAYED, known[0], known[1]))
    settings += configured
    return [SettingDifference(setting=key, before=as_text(a), after=as_text(b)) for key, a, b in settings if a != b]


def _chosen_by(body: Mapping[str, Any], benchmark: str) -> Any:
    selection = (body.get("settings") or {}).get(SELECTION) or {}
    return selection["metric"] if benchmark in selection.get("benchmarks", ()) else ABSENT


def _rule_differences(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the rules of a benchmark on both sides, each value of its sampling for itself."""
    if not before or not after:
        return []
    flat = [
        {**{key: rules[key] for key in rules if key != "sampling"}, **rules["sampling"]} for rules in (before, after)
    ]
    return [(f"{name}: {key}", flat[0].get(key, ABSENT), flat[1].get(key, ABSENT)) for key in {**flat[0], **flat[1]}]


def _configured(before: str, after: str, benchmarks: set[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what the configurations differ in. Of a tool or step that only one has, no options are listed."""
    changes = {key: (a, b) for key, a, b in config_differences(before, after) if _counts(key, a, b, benchmarks)}
    tools = [stored_names(text, "tools") for text in (before, after)]
    for name in sorted(tools[0] ^ tools[1]):
        is_first = name in tools[0]
        yield f"tools.{name}", "given" if is_first else ABSENT, ABSENT if is_first else "given"
    one_sided = tuple(f"tools.{name}." for name in tools[0] ^ tools[1])
    other_step = ("rollout_step.params.",) if "rollout_step.name" in changes else ()
    for key, (a, b) in changes.items():
        if not key.startswith((*one_sided, *other_step)):
            yield key, a, b


def _counts(key: str, before: Any, after: Any, benchmarks: set[str]) -> bool:
    """Whether a change of this key, in either direction, may alter the scores of these benchmarks."""
    if key in REPLACED["eval"] or is_safe("eval", key, before, after) or is_safe("eval", key, after, before):
        return False
    section, _, rest = key.partition(".")
    if section == "benchmarks":
        name, _, option = rest.partition(".")
        return name in benchmarks and option.partition(".")[0] not in RULES
    return section in SECTIONS or key in KEYS


def _config(body: Mapping[str, Any]) -> str:
    return str((body.get("settings") or {}).get("config") or "")


def as_text(value: Any) -> str:
    """Return a value as JSON writes it; a text without quotation marks."""
    return value if isinstance(value, str) else json.dumps(value)
