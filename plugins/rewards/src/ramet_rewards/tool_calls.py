"""`tool_calls`: are a rollout's calls the gold ones? Nothing is run; names and arguments are compared.

A gold answer is JSON: a list of calls in one of two forms, an empty list where no call is right.

* `{"name": …, "arguments": {…}}`: these arguments.
* `{NAME: {ARGUMENT: [VALUE, …]}}` (BFCL's `ground_truth`): each argument is one of the values; `""` among them says
  that it may be left out. An object among the values has lists of values itself.

Several calls may come in any order, and one that could not be made is one too many. Of several gold answers any is
right. An argument that is null counts as left out.
Where the row describes the tool and an argument as a whole number, it must be written as one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramet import ConfigError, Rollout, Score, StopReason, Task, ToolRecord
from ramet_rewards.config import ToolCallsConfig

LEFT_OUT = ""
_LOOSE = re.compile(r"[ ,./\-_*^]")  # what BFCL leaves out of texts that it compares


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldCall:
    name: str
    arguments: Mapping[str, Sequence[Any]]  # the values that each may have
    listed: bool  # BFCL's form, in which an object as a value has lists of values too


class ToolCalls:
    per_rollout = True

    def __init__(self, config: ToolCallsConfig) -> None:
        self.config = config

    def check_task(self, task: Task) -> str | None:
        if not task.answer:
            return "no gold answer; give a JSON list of calls"
        try:
            golds = [gold_calls(gold) for gold in task.answer]
        except ConfigError as error:
            return str(error)
        if task.schemas is None:
            return None
        names = {schema.name for schema in task.schemas}
        unknown = next((call.name for gold in golds for call in gold if call.name not in names), None)
        return None if unknown is None else f"a gold answer calls {unknown!r}, which the row does not describe"

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        golds = [gold_calls(gold) for gold in group[0].task.answer]
        return [max((self._score(gold, rollout) for gold in golds), key=lambda score: score.value) for rollout in group]

    def _score(self, gold: Sequence[GoldCall], rollout: Rollout) -> Score:
        calls = rollout.tool_calls
        described = {schema.name: schema.parameters for schema in rollout.task.schemas or ()}
        matched = _most_pairs([[self._fits(one, call, described.get(one.name)) for call in calls] for one in gold])
        most = max(len(gold), len(calls) + _not_made(rollout))
        share = matched / most if most else 1.0
        value = share if self.config.partial else float(share == 1)
        return Score(value=value, parts={"matched": float(matched), "calls": float(len(calls))})

    def _fits(self, gold: GoldCall, call: ToolRecord, described: Any) -> bool:
        """`described`: the schema of the arguments, if the row has one."""
        return call.name == gold.name and self._all(gold.arguments, call.arguments, gold.listed, described)

    def _all(
        self, allowed: Mapping[str, Sequence[Any]], arguments: Mapping[str, Any], listed: bool, described: Any
    ) -> bool:
        """Whether each value is an allowed one, and none is there that is unknown, or missing that must be there."""
        given = {name: value for name, value in arguments.items() if value is not None}
        return given.keys() <= allowed.keys() and all(
            any(self._same(value, given[name], listed, _part(described, "properties", name)) for value in values)
            if name in given
            else None in values or (listed and LEFT_OUT in values)
            for name, values in allowed.items()
        )

    def _same(self, gold: Any, given: Any, listed: bool, described: Any) -> bool:
        if isinstance(gold, bool) or isinstance(given, bool):
            return gold is given
        if isinstance(gold, int) and isinstance(given, float) and _part(described, "type") == "integer":
            return False
        if isinstance(gold, str) and isinstance(given, str):
            return gold == given if self.config.exact_text else _loose(gold) == _loose(given)
        if isinstance(gold, list) and isinstance(given, list):
            pairs = zip(gold, given, strict=False)
            items = _part(described, "items")
            return len(gold) == len(given) and all(self._same(one, other, listed, items) for one, other in pairs)
        if isinstance(gold, Mapping) and isinstance(given, Mapping):
            has_lists = listed and all(isinstance(values, list) for values in gold.values())
            allowed = gold if has_lists else {name: [value] for name, value in gold.items()}
            return self._all(allowed, given, has_lists, described)
        return bool(gold == given)


def _not_made(rollout: Rollout) -> int:
    """Calls that no tool was given: malformed ones, and those at the limit, which may end the rollout."""
    written: int = sum(info.get("calls_not_made", 0) for info in rollout.infos)  # by the rollout step `hermes`
    return written + (rollout.stop is StopReason.CALL_LIMIT)


def gold_calls(gold: str) -> list[GoldCall]:
    """The calls of a gold answer. Raises `ConfigError`."""
    try:
        value = json.loads(gold)
    except (ValueError, RecursionError):
        value = None
    calls = [value] if isinstance(value, dict) else value
    if not isinstance(calls, list):
        raise ConfigError(f"expected a JSON list of calls, got {gold[:80]!r}")
    return [_gold_call(call) for call in calls]


def _gold_call(call: Any) -> GoldCall:
    if (plain := _plain(call)) is not None:
        return plain
    if isinstance(call, dict) and len(call) == 1:
        ((name, arguments),) = call.items()
        if isinstance(arguments, dict) and all(isinstance(values, list) for values in arguments.values()):
            return GoldCall(name=name, arguments=arguments, listed=True)
    raise ConfigError(
        'expected calls as {"name": NAME, "arguments": {…}} or {NAME: {ARGUMENT: [VALUE, …]}}, got '
        f"{json.dumps(call, ensure_ascii=False)[:80]}"
    )


def _plain(call: Any) -> GoldCall | None:
    """A call of the first form, perhaps as OpenAI has it: within `function`, and with its arguments as JSON text."""
    inner = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        return None
    arguments = inner.get("arguments")
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    return GoldCall(name=inner["name"], arguments={name: [value] for name, value in arguments.items()}, listed=False)


def _part(described: Any, *path: str) -> Any:
    """A part of a schema, which in rows of data may have any form; None: it has no such part."""
    for name in path:
        described = described.get(name) if isinstance(described, Mapping) else None
    return described


def _loose(text: str) -> str:
    return _LOOSE.sub("", text).lower().replace("'", '"')


def _most_pairs(fits: Sequence[Sequence[bool]]) -> int:
    """The most pairs of a gold call and a call that fits it, each in one pair at most."""
    partner: dict[int, int] = {}  # call -> gold call

    def pair(gold: int, tried: set[int]) -> bool:
        for call, fitting in enumerate(fits[gold]):
            if fitting and call not in tried:
                tried.add(call)
                if call not in partner or pair(partner[call], tried):
                    partner[call] = gold
                    return True
        return False

    return sum(pair(gold, set()) for gold in range(len(fits)))
