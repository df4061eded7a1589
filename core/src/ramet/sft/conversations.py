"""SFT files: JSON lines in UTF-8, one sharegpt row per line. Every bad row of every file is reported, together.

A row becomes a conversation, which is a list of exchanges: what the user said, and the reply, which may hold tool
results as turns of their own. Tool results written *inside* an assistant's text are not looked for here: only the
rollout step knows its format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ramet.data.files import TOO_DEEP
from ramet.io.json_values import too_deep

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
    "tool": ("assistant",),
}
SHOWN = 80  # characters of a wrong value in a message
MAX_SHOWN = 20  # problems that one message lists; the others are counted


@dataclass(slots=True, kw_only=True)
class SftData:
    """What the files hold. `problems` is empty exactly if training may start."""

    conversations: list[Conversation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    fingerprint: str = ""  # of the files' bytes in order; a resume must find the same


def read_data(paths: Sequence[str]) -> SftData:
    """Read and validate all files. Raises nothing for bad data: the caller reports it with its other problems."""
    data = SftData()
    digest = hashlib.sha256()
    problems: list[str] = []
    for path in map(Path, paths):
        if not path.is_file():
            data.problems.append(f"sft.data: no file {str(path)!r} (working directory {str(Path.cwd())!r})")
            continue
        before = len(data.conversations) + len(problems)
        for conversation, found in _rows(path, digest):
            problems += found
            if conversation is not None:
                data.conversations.append(conversation)
        if len(data.conversations) + len(problems) == before:
            data.problems.append(f"sft.data: {str(path)!r} has no rows")
    data.problems += _first(problems)
    data.fingerprint = digest.hexdigest()
    return data


def _rows(path: Path, digest: Any) -> Iterator[tuple[Conversation | None, list[str]]]:
    """Rows count from 0; blank lines are no rows."""
    row = 0
    with path.open("rb") as lines:
        for line in lines:
            digest.update(line)
            if not line.strip():
                continue
            yield _decoded(line, f"{path}, row {row}")
            row += 1


def _decoded(line: bytes, where: str) -> tuple[Conversation | None, list[str]]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return None, [f"{where}: not UTF-8 at byte {error.start} of the line"]
    except (json.JSONDecodeError, RecursionError) as error:
        return None, [f"{where}: not JSON: {error}"]
    if too_deep(record):
        return None, [f"{where}: {TOO_DEEP}"]
    return read_row(record, where)


def _first(problems: list[str]) -> list[str]:
    more = len(problems) - MAX_SHOWN
    return [*problems[:MAX_SHOWN], f"and {more} more problems in the rows of sft.data"] if more > 0 else problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Text of an assistant's turn."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A tool result that was a turn of its own, without any wrapper."""

    text: str


Piece: TypeAlias = Written | Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    user: str
    reply: tuple[Piece, ...]  # begins and ends with `Written`


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One row. `where` names its file and row for messages."""

    where: str
    system: str | None
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class _Turn:
    role: str
    text: str


def read_row(record: Any, where: str) -> tuple[Conversation | None, list[str]]:
    """The conversation of one decoded row, or None and what is wrong, each message beginning with `where`."""
    if not isinstance(record, dict):
        return None, [f"{where}: expected a JSON object, got {_show(record)}"]
    turns, problems = _turns(record)
    system, more = _row_system(record)
    problems += more
    if not problems:
        problems = _order_problems([turn.role for turn in turns])
    if system is not None and any(turn.role == "system" for turn in turns):
        problems.append("two system prompts: the row's key 'system' and a turn of role 'system'")
    if problems:
        return None, [f"{where}: {problem}" for problem in problems]
    if turns[0].role == "system":
        system, turns = turns[0].text, turns[1:]
    return Conversation(where=where, system=system, exchanges=_exchanges(turns)), []


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
        turn, found = _turn(item)
        problems += [f"{key}[{index}]: {one}" for one in found]
        if turn is not None:
            turns.append(turn)
    return turns, problems


def _turn(item: Any) -> tuple[_Turn | None, list[str]]:
    if not isinstance(item, dict):
        return None, [f"expected an object with role and text, got {_show(item)}"]
    role_key, role_problem = _one_key(item, ROLE_KEYS)
    text_key, text_problem = _one_key(item, TEXT_KEYS)
    if role_key is None or text_key is None:
        return None, [problem for problem in (role_problem, text_problem) if problem]
    role, text = item[role_key], item[text_key]
    problems = []
    if not isinstance(role, str) or role not in ROLES:
        problems.append(f"unknown role {_show(role)}; allowed: {', '.join(ROLES)}")
    problems += _text_problems(text, text_key)
    if problems:
        return None, problems
    if not text and ROLES[role] != "tool":  # a tool may well return nothing
        return None, [f"{text_key!r} of role {role!r} is empty"]
    return _Turn(ROLES[role], text), []


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
    found: list[tuple[str, list[Piece]]] = []
    for turn in turns:
        if turn.role == "user":
            found.append((turn.text, []))
        else:
            found[-1][1].append(Written(text=turn.text) if turn.role == "assistant" else Returned(text=turn.text))
    return tuple(Exchange(user=user, reply=tuple(reply)) for user, reply in found)


def _one_key(record: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str | None, str]:
    present = [name for name in names if name in record]
    if len(present) == 1:
        return present[0], ""
    wanted = " or ".join(repr(name) for name in names)
    if present:
        return None, f"both {' and '.join(repr(name) for name in names)} are there; give one"
    return None, f"no key {wanted}; found {', '.join(map(str, record)) or 'none'}"


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
