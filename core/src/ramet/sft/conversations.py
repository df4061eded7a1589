"""SFT files, as JSON or parquet, in the layouts of `sft/layouts`. Every bad row of every file is found.

A row becomes a conversation, which is a list of exchanges: the user's message, and the reply, which may have tool
results as separate turns. Tool results written *inside* an assistant's text are not looked for here: only the rollout
step knows its format.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ramet.data.dataset_info import DataSet, find_sets
from ramet.data.files import PARQUET, read_rows
from ramet.data.row_problems import RowProblem
from ramet.data.tool_schemas import read_tools, without_nulls
from ramet.errors import ConfigError
from ramet.io.json_rows import DataRow
from ramet.io.json_values import cut, json_fault, read_json
from ramet.sft.exchanges import Conversation, Exchange, Piece, Returned, Written, WrittenCall
from ramet.sft.layouts import LISTS, ROLE_KEYS, TEXT_KEYS, RowLayout, absent_columns, standard_row
from ramet.sft.mixing import mixed, mixing_problem
from ramet.types import ToolSchema

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "developer": "system",  # OpenAI's later name
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function": "tool",  # of OpenAI's older form
    "function_call": "assistant",
}
FOLLOWS = {  # which roles may follow a role (None: the beginning); an assistant's turn is the last
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),  # several calls of one turn
}
CALLS = "tool_calls"
REASONING = "reasoning_content"
FUNCTION_CALL = "function_call"  # the role whose text is the JSON of its calls, and the key of OpenAI's older form
OTHER_FORMS = (
    "; rows may also have 'instruction' and 'output', or 'prompt' and 'completion', and sft.columns names columns of "
    "other names"
)
WEIGHTS = ("loss_weight", "weight")  # LLaMA-Factory's and OpenAI's names
THOUGHTS = "<think>\n{}\n</think>\n\n"  # how reasoning that is apart from the text is written
AS_USUAL = RowLayout()
CHUNK = 1 << 20  # bytes hashed at once


@dataclass(slots=True, kw_only=True)
class SftData:
    """The contents of the files."""

    conversations: list[Conversation] = field(default_factory=list)
    bad: list[RowProblem] = field(default_factory=list)  # rows without a conversation; a row may have several
    rows: int = 0
    problems: list[str] = field(default_factory=list)  # of complete files
    fingerprint: str = ""  # of the files' bytes and entries in order; a resume must find the same
    columns: set[str] = field(default_factory=set)  # of the rows of files that were named directly


def read_data(
    patterns: Sequence[str],
    layout: RowLayout = AS_USUAL,
    mixing: Mapping[str, Any] | None = None,
    seed: int = 0,
    max_samples: int | None = None,
) -> SftData:
    """Read what paths, patterns and names of data sets stand for. Raises nothing for bad data: the caller reports all
    of it. `layout` applies to files that are named directly, `mixing` is `sft.mixing`. `max_samples`: rows that are
    taken of each of `patterns`.
    """
    found, mixing = find_sets(patterns), mixing or {}
    data, digest = SftData(problems=[f"sft.data: {problem}" for problem in found.problems]), hashlib.sha256()
    rows: dict[str, list[Conversation]] = {pattern: [] for pattern in patterns}
    for one in found.sets:
        rows[one.source] += _read_set(one, layout if one.entry is None else RowLayout.of_entry(one.entry), data, digest)
    data.fingerprint = digest.hexdigest()
    if (problem := mixing_problem(mixing, len(rows))) is not None:
        data.problems.append(problem)
    else:
        data.conversations = mixed([conversations[:max_samples] for conversations in rows.values()], mixing, seed)
    return data


def _read_set(one: DataSet, layout: RowLayout, data: SftData, digest: hashlib._Hash) -> list[Conversation]:
    """The conversations of a data set. Its files' bytes and its entry go into the fingerprint."""
    conversations: list[Conversation] = []
    columns: set[str] = set()
    for file in one.files:
        before = data.rows
        try:
            for row in read_rows(file):
                data.rows += 1
                columns.update(_names(row.values))
                conversations += _read(row, file, layout, data)
        except ConfigError as error:
            data.problems.append(f"sft.data: {error}")
            continue
        data.problems += [f"sft.data: {str(file)!r} has no rows"] if data.rows == before else []
        _hash(file, digest)
    if one.entry is None:
        data.columns |= columns
        return conversations
    absent = absent_columns(one.entry.get("columns") or {}, columns) if columns else []
    data.problems += [f"sft.data: {one.name}: columns.{problem}" for problem in absent]
    digest.update(json.dumps(one.entry, sort_keys=True).encode())
    samples = one.entry.get("num_samples")
    return conversations if samples is None else _drawn(conversations, samples, one.name)


def _names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of columns, nested ones with dots."""
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{name}.")


def _drawn(conversations: list[Conversation], count: int, name: str) -> list[Conversation]:
    """Draw that many of a set, always the same ones, in their order; all of them several times if it has fewer."""
    if not conversations:
        return []
    rounds, rest = divmod(count, len(conversations))
    chosen = sorted(random.Random(Path(name).name).sample(range(len(conversations)), rest))
    return [*conversations * rounds, *(conversations[index] for index in chosen)]


def _read(row: DataRow, file: Path, layout: RowLayout, data: SftData) -> list[Conversation]:
    """The conversation of a row, or none, and then `data` has the problems."""
    values = without_nulls(row.values) if file.suffix == PARQUET else row.values  # parquet fills absent keys with nulls
    conversation, reasons = (None, [row.problem]) if row.problem else read_row(values, str(file), row.number, layout)
    data.bad += [RowProblem(file=str(file), row=row.number, reason=reason) for reason in reasons]
    return [] if conversation is None else [conversation]


def _hash(file: Path, digest: hashlib._Hash) -> None:
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            digest.update(chunk)


@dataclass(frozen=True, slots=True)
class _Turn:
    role: str
    text: str
    calls: tuple[WrittenCall, ...] = ()
    trained: bool = True
    ids: tuple[str | None, ...] = (None,)  # of the calls, or of the one that it is the result of


def read_row(
    values: Mapping[str, Any], file: str, row: int, layout: RowLayout = AS_USUAL
) -> tuple[Conversation | None, list[str]]:
    """The conversation of one row, or None and the problems, without file and row."""
    record, problems = standard_row(values, layout)
    if problems:
        return None, problems
    turns, problems = _turns(record)
    system, more = _row_system(record)
    tools, about_tools = _row_tools(record.get("tools"))
    problems += [*more, *about_tools]
    if not problems:
        problems = _order_problems([turn.role for turn in turns])
    if system is not None and any(turn.role == "system" and turn.text for turn in turns):
        problems.append("two system prompts: the row's key 'system' and a turn of role 'system'")
    if not problems and not any(turn.trained for turn in turns if turn.role == "assistant"):
        problems.append("no assistant turn is trained: all have loss_weight 0")
    if problems:
        return None, problems
    if turns[0].role == "system":
        system, turns = turns[0].text or system, turns[1:]  # an empty one does not count
    exchanges = _exchanges(_split_results(_by_calls(turns)))
    return Conversation(file=file, row=row, system=system, tools=tools, exchanges=exchanges), []


def _turns(record: Mapping[str, Any]) -> tuple[list[_Turn], list[str]]:
    key, problem = _one_key(record, LISTS)
    if key is None:
        return [], [problem if any(record.get(name) is not None for name in LISTS) else f"{problem}{OTHER_FORMS}"]
    items = record[key]
    if not isinstance(items, list):
        return [], [f"{key!r} must be a list, got {cut(items)}"]
    if not items:
        return [], [f"{key!r} is empty"]
    turns: list[_Turn] = []
    problems: list[str] = []
    for index, item in enumerate(items):
        turn, turn_problems = _turn(item)
        problems += [f"{key}[{index}]: {reason}" for reason in turn_problems]
        if turn is not None:
            turns.append(turn)
    return turns, problems


def _turn(item: Any) -> tuple[_Turn | None, list[str]]:
    if not isinstance(item, dict):
        return None, [f"expected an object with role and text, got {cut(item)}"]
    if (call := item.get(FUNCTION_CALL)) is not None:
        if item.get(CALLS):
            return None, [f"both {CALLS!r} and {FUNCTION_CALL!r} are there; give one"]
        item = {**item, CALLS: [call]}
    if item.get(CALLS) is not None and all(item.get(name) is None for name in TEXT_KEYS):
        item = {**item, TEXT_KEYS[-1]: ""}
    role_key, role_problem = _one_key(item, ROLE_KEYS)
    text_key, text_problem = _one_key(item, TEXT_KEYS)
    if role_key is None or text_key is None:
        return None, [problem for problem in (role_problem, text_problem) if problem]
    role = item[role_key]
    problems = []
    if not isinstance(role, str) or role not in ROLES:
        problems.append(f"unknown role {cut(role)}; allowed: {', '.join(ROLES)}")
    text, calls, content_problems = _content(item, text_key, role)
    trained, weight_problems = _trained(item, ROLES.get(role) if isinstance(role, str) else None)
    problems += [*content_problems, *weight_problems]
    if problems:
        return None, problems
    if not text and not calls and ROLES[role] not in ("tool", "system"):  # a tool may well return nothing
        return None, [f"{text_key!r} of role {role!r} is empty"]
    if calls and ROLES[role] != "assistant":
        return None, [f"{CALLS!r} of role {role!r}; only an assistant calls tools"]
    return _Turn(ROLES[role], text, calls, trained=trained, ids=_ids(item)), []


def _ids(item: Mapping[str, Any]) -> tuple[str | None, ...]:
    """OpenAI's ids of a message's calls, or of the call that it is the result of."""
    ids = [call.get("id") for call in item.get(CALLS) or () if isinstance(call, dict)] or [item.get("tool_call_id")]
    return tuple(name if isinstance(name, str) else None for name in ids)


def _content(item: Mapping[str, Any], text_key: str, role: Any) -> tuple[str, tuple[WrittenCall, ...], list[str]]:
    """A message's text and calls, whether they are parts, keys of the message, or JSON of the role `function_call`."""
    calls, problems = _calls(item.get(CALLS))
    text, content = "", item[text_key]
    for index, part in enumerate(content if isinstance(content, list) else [{"type": "text", "value": content}]):
        where = f"{text_key}[{index}]: " if isinstance(content, list) else ""
        kind = part.get("type") if isinstance(part, dict) else None
        value = part.get("value", part.get(kind)) if isinstance(kind, str) else None
        if kind in ("text", "reasoning"):
            wrong = _text_problems(value, text_key)
            problems += [where + problem for problem in wrong]
            text += THOUGHTS.format(value) if kind == "reasoning" else str(value)
        elif kind == "tool_call":
            more, wrong = _calls([read_json(value) if isinstance(value, str) else value])
            calls, problems = (*calls, *more), [*problems, *(where + problem for problem in wrong)]
        else:
            problems.append(f"{where}expected a part of type text, reasoning or tool_call, got {cut(part)}")
    if thoughts := item.get(REASONING):
        problems += _text_problems(thoughts, REASONING)
        text = THOUGHTS.format(thoughts) + text
    if role == FUNCTION_CALL and not problems and not calls:
        return _function_call(text)
    return text, calls, problems


def _function_call(written: str) -> tuple[str, tuple[WrittenCall, ...], list[str]]:
    """Calls of a message whose text is their JSON, one object or a list, perhaps after reasoning."""
    end = written.find("</think>") if written.lstrip().startswith("<think>") else -1
    start = 0 if end < 0 else end + len("</think>")
    value = read_json(written[start:])
    calls, problems = _calls(value if isinstance(value, list) else [value])
    if not calls and not problems:
        problems = ["has no call"]
    return written[:start], calls, [f"role {FUNCTION_CALL!r}: {problem}" for problem in problems]


def _trained(item: Mapping[str, Any], role: str | None) -> tuple[bool, list[str]]:
    """Whether a message is trained, by its weight: 0 masks it, 1 trains it, as where it has none."""
    key = next((name for name in WEIGHTS if item.get(name) is not None), None)
    weight = 1 if key is None else item[key]
    if isinstance(weight, bool) or weight not in (0, 1):
        return True, [f"{key!r} must be 0 (masked) or 1 (trained), got {cut(weight)}"]
    if key is not None and weight and role not in (None, "assistant"):
        return True, [f"{key!r} of role {role!r} is {cut(weight)}; only what an assistant writes is trained"]
    return bool(weight), []


def _calls(written_calls: Any) -> tuple[tuple[WrittenCall, ...], list[str]]:
    if written_calls is None:
        return (), []
    if not isinstance(written_calls, list):
        return (), [f"{CALLS!r} must be a list, got {cut(written_calls)}"]
    calls: list[WrittenCall] = []
    problems: list[str] = []
    for index, call in enumerate(written_calls):
        function = call.get("function", call) if isinstance(call, dict) else None
        function = function if isinstance(function, dict) else {}
        name, arguments = function.get("name"), function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
        read = read_json(text)
        if not isinstance(name, str) or not name or not isinstance(read, dict):
            expected = "a function with a name and arguments, which are a JSON object"
            problems.append(f"{CALLS}[{index}]: expected {expected}, got {cut(call)}")
        elif (fault := json_fault({name: read})) is not None:
            problems.append(f"{CALLS}[{index}]: contains {fault}: {cut(call)}")
        else:
            calls.append(WrittenCall(name=name, arguments=text))
    return tuple(calls), problems


def _by_calls(turns: list[_Turn]) -> list[_Turn]:
    """The turns with results that name their calls in the order of the calls, in which the step inserts them."""
    ordered: list[_Turn] = []
    for _, alike in groupby(turns, key=lambda turn: turn.role):
        places = {name: place for place, name in enumerate(ordered[-1].ids)} if ordered else {}
        ordered += sorted(alike, key=lambda turn: places.get(turn.ids[0], 0))
    return ordered


def _split_results(turns: list[_Turn]) -> list[_Turn]:
    """One result for several calls is cut where it is a JSON list of as many, as LLaMA-Factory's files have it."""
    split: list[_Turn] = []
    for index, turn in enumerate(turns):
        calls = turns[index - 1].calls if turn.role == "tool" else ()
        results = read_json(turn.text) if len(calls) > 1 and turns[index + 1].role != "tool" else None
        if isinstance(results, list) and len(results) == len(calls) and json_fault(results) is None:
            texts = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in results)
            split += [_Turn("tool", text) for text in texts]
        else:
            split.append(turn)
    return split


def _row_tools(value: Any) -> tuple[tuple[ToolSchema, ...] | None, list[str]]:
    """The tools that a row describes. Mere names, as tasks have them, describe none and are not read."""
    if isinstance(value, list) and value and all(isinstance(name, str) and "{" not in name for name in value):
        return None, []
    tools, problems = read_tools(value)
    return tools, [f"{problem}; sft.columns.tools=null leaves the column out" for problem in problems]


def _row_system(record: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """The row-level system prompt; an empty or null one, frequent in sharegpt files, does not count."""
    system = record.get("system")
    if system is None or system == "":
        return None, []
    problems = _text_problems(system, "system")
    return (None, problems) if problems else (system, [])


def _text_problems(text: Any, key: str) -> list[str]:
    if not isinstance(text, str):
        return [f"{key!r} must be a string, got {cut(text)}"]
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return [f"{key!r} contains a lone surrogate at character {error.start}, which no tokenizer can encode"]
    return []


def _order_problems(roles: list[str]) -> list[str]:
    if "assistant" not in roles:
        return ["no assistant turn, so there is nothing to learn"]
    before: str | None = None
    for index, role in enumerate(roles):
        if role not in FOLLOWS[before]:
            position = f"after {before}" if before else "at the beginning"
            return [f"turn {index} has role {role} {position}; allowed there: {' or '.join(FOLLOWS[before])}"]
        before = role
    if before != "assistant":
        return [f"ends with role {before}; the last turn must be an assistant's"]
    return []


def _exchanges(turns: list[_Turn]) -> tuple[Exchange, ...]:
    exchanges: list[tuple[str, list[Piece]]] = []
    for turn in turns:
        if turn.role == "user":
            exchanges.append((turn.text, []))
        else:
            is_written = turn.role == "assistant"
            written = Written(text=turn.text, calls=turn.calls, trained=turn.trained)
            piece = written if is_written else Returned(text=turn.text)
            exchanges[-1][1].append(piece)
    return tuple(Exchange(user=user, reply=tuple(reply)) for user, reply in exchanges)


def _one_key(record: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str | None, str]:
    present = [name for name in names if record.get(name) is not None]  # parquet fills absent fields with null
    if len(present) == 1:
        return present[0], ""
    wanted = " or ".join(repr(name) for name in names)
    if present:
        return None, f"both {' and '.join(repr(name) for name in names)} are there; give one"
    return None, f"no key {wanted}; found {', '.join(map(str, record)) or 'none'}"
