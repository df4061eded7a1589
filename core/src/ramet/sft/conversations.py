"""SFT files: sharegpt rows, as JSON or parquet. Every bad row of every file is found.

A row becomes a conversation, which is a list of exchanges: what the user said, and the reply, which may hold tool
results as turns of their own. Tool results written *inside* an assistant's text are not looked for here: only the
rollout step knows its format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet.data.files import find_files, read_rows
from ramet.data.row_problems import RowProblem
from ramet.errors import ConfigError
from ramet.io.json_rows import DataRow
from ramet.sft.exchanges import Conversation, Exchange, Piece, Returned, Written, WrittenCall

LISTS = ("conversations", "messages")
ROLE_KEYS = ("from", "role")
TEXT_KEYS = ("value", "content")
ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
FOLLOWS = {  # which roles may follow a role (None: the beginning); an assistant's turn is the last
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),  # several calls of one turn
}
CALLS = "tool_calls"
SHOWN = 80  # characters of a wrong value in a message
CHUNK = 1 << 20  # bytes hashed at once


@dataclass(slots=True, kw_only=True)
class SftData:
    """What the files hold."""

    conversations: list[Conversation] = field(default_factory=list)
    bad: list[RowProblem] = field(default_factory=list)  # rows that hold no conversation; a row may have several
    rows: int = 0
    problems: list[str] = field(default_factory=list)  # of whole files
    fingerprint: str = ""  # of the files' bytes in order; a resume must find the same


def read_data(patterns: Sequence[str]) -> SftData:
    """Read the files that paths and patterns name. Raises nothing for bad data: the caller reports all of it."""
    files, problems = find_files(patterns)
    data = read_files(files)
    data.problems = [*(f"sft.data: {problem}" for problem in problems), *data.problems]
    return data


def read_files(files: Sequence[Path]) -> SftData:
    """Read what `read_data` reads, from files that exist."""
    data, digest = SftData(), hashlib.sha256()
    for file in files:
        before = data.rows
        try:
            for row in read_rows(file):
                data.rows += 1
                _read(row, str(file), data)
        except ConfigError as error:
            data.problems.append(f"sft.data: {error}")
        else:
            data.problems += [f"sft.data: {str(file)!r} has no rows"] if data.rows == before else []
        _hash(file, digest)
    data.fingerprint = digest.hexdigest()
    return data


def _read(row: DataRow, file: str, data: SftData) -> None:
    conversation, reasons = (None, [row.problem]) if row.problem else read_row(row.values, file, row.number)
    data.bad += [RowProblem(file=file, row=row.number, reason=reason) for reason in reasons]
    if conversation is not None:
        data.conversations.append(conversation)


def _hash(file: Path, digest: hashlib._Hash) -> None:
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            digest.update(chunk)


def is_trace(values: Mapping[str, Any], prompt: str) -> bool:
    """Whether a row is one of these, and no task, which has its prompt in the column `prompt`."""
    return prompt not in values and any(isinstance(values.get(name), list) for name in LISTS)


@dataclass(frozen=True, slots=True)
class _Turn:
    role: str
    text: str
    calls: tuple[WrittenCall, ...] = ()


def read_row(values: Mapping[str, Any], file: str, row: int) -> tuple[Conversation | None, list[str]]:
    """The conversation of one row, or None and what is wrong, without file and row."""
    turns, problems = _turns(values)
    system, more = _row_system(values)
    problems += more
    if not problems:
        problems = _order_problems([turn.role for turn in turns])
    if system is not None and any(turn.role == "system" for turn in turns):
        problems.append("two system prompts: the row's key 'system' and a turn of role 'system'")
    if problems:
        return None, problems
    if turns[0].role == "system":
        system, turns = turns[0].text, turns[1:]
    return Conversation(file=file, row=row, system=system, exchanges=_exchanges(turns)), []


def _turns(record: Mapping[str, Any]) -> tuple[list[_Turn], list[str]]:
    key, problem = _one_key(record, LISTS)
    if key is None:
        return [], [problem]
    items = record[key]
    if not isinstance(items, list):
        return [], [f"{key!r} must be a list, got {_show(items)}"]
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
        return None, [f"expected an object with role and text, got {_show(item)}"]
    calls, call_problems = _calls(item)
    role_key, role_problem = _one_key(item, ROLE_KEYS)
    if item.get(CALLS) is not None and all(item.get(name) is None for name in TEXT_KEYS):
        item = {**item, TEXT_KEYS[-1]: ""}
    text_key, text_problem = _one_key(item, TEXT_KEYS)
    if role_key is None or text_key is None:
        return None, [problem for problem in (role_problem, text_problem) if problem]
    role, text = item[role_key], item[text_key]
    problems = []
    if not isinstance(role, str) or role not in ROLES:
        problems.append(f"unknown role {_show(role)}; allowed: {', '.join(ROLES)}")
    problems += [*_text_problems(text, text_key), *call_problems]
    if problems:
        return None, problems
    if not text and not calls and ROLES[role] != "tool":  # a tool may well return nothing
        return None, [f"{text_key!r} of role {role!r} is empty"]
    if calls and ROLES[role] != "assistant":
        return None, [f"{CALLS!r} of role {role!r}; only an assistant calls tools"]
    return _Turn(ROLES[role], text, calls), []


def _calls(item: Mapping[str, Any]) -> tuple[tuple[WrittenCall, ...], list[str]]:
    written_calls = item.get(CALLS)
    if written_calls is None:
        return (), []
    if not isinstance(written_calls, list):
        return (), [f"{CALLS!r} must be a list, got {_show(written_calls)}"]
    calls: list[WrittenCall] = []
    problems: list[str] = []
    for index, call in enumerate(written_calls):
        function = call.get("function", call) if isinstance(call, dict) else {}
        name, arguments = (
            (function.get(key) for key in ("name", "arguments")) if isinstance(function, dict) else ("", 0)
        )
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if not isinstance(name, str) or not name or not isinstance(_read_json(text), dict):
            expected = "a function with a name and arguments, which are a JSON object"
            problems.append(f"{CALLS}[{index}]: expected {expected}, got {_show(call)}")
        else:
            calls.append(WrittenCall(name=name, arguments=text))
    return tuple(calls), problems


def _row_system(record: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """The row-level system prompt; an empty or null one is none, as sharegpt files often carry it."""
    system = record.get("system")
    if system is None or system == "":
        return None, []
    problems = _text_problems(system, "system")
    return (None, problems) if problems else (system, [])


def _text_problems(text: Any, key: str) -> list[str]:
    if not isinstance(text, str):
        return [f"{key!r} must be a string, got {_show(text)}"]
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return [f"{key!r} holds a lone surrogate at character {error.start}, which no tokenizer can encode"]
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
            piece = Written(text=turn.text, calls=turn.calls) if is_written else Returned(text=turn.text)
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


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
