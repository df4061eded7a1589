"""How the rows of an SFT file are laid out. Rows of other layouts become those that `sft/conversations` reads.

The layouts come from LLaMA-Factory (alpaca, sharegpt, openai) and TRL (prompt and completion). Names of columns and
tags come from LLaMA-Factory's `dataset_info.json`. Rows of other trainings are refused by name.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.config.schema_sft import COLUMNS, SftConfig
from ramet.data.dataset_info import OTHER_ROWS, SFT_ONLY
from ramet.data.layout import ABSENT, value_at
from ramet.io.json_values import cut

LISTS = ("conversations", "messages")
ROLE_KEYS = ("from", "role")
TEXT_KEYS = ("value", "content")
ALPACA = {"prompt": "instruction", "query": "input", "response": "output", "history": "history"}
ROLE_OF_TAG = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "function_call",
    "system_tag": "system",
}
Standard = tuple[Mapping[str, Any], list[str]]  # a row with `messages` or `conversations`, and its problems


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """The places where a row has what. `formatting` None: recognised row by row. `columns` of None are not read; a dot
    reaches into nested ones."""

    formatting: str | None = None
    columns: Mapping[str, str | None] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sft: SftConfig) -> RowLayout:
        """The layout of files that are named directly."""
        return cls(columns=sft.columns, tags=sft.tags)

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any]) -> RowLayout:
        """The layout of an entry of a `dataset_info.json`. As there, columns that it does not name are not read."""
        named = entry.get("columns")
        default = {**ALPACA, "history": None, "messages": "conversations"} if named is None else named
        return cls(
            formatting=entry.get("formatting", "alpaca"),
            columns={name: default.get(name) for name in COLUMNS},
            tags={tag: name for tag, name in (entry.get("tags") or {}).items() if name},
        )

    def column(self, name: str) -> str | None:
        return self.columns.get(name, ALPACA.get(name, name))

    def value(self, row: Mapping[str, Any], name: str) -> Any:
        column = self.column(name)
        value = ABSENT if column is None else value_at(row, column)
        return None if value is ABSENT else value

    def rest(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The rest of a row, without its messages."""
        return {name: value for name in ("system", "tools") if (value := self.value(row, name)) is not None}


def standard_row(row: Mapping[str, Any], layout: RowLayout) -> Standard:
    """The row with `messages` (or `conversations`), `system` and `tools`, or its problems."""
    if layout.formatting is None and (refusal := _refusal(row, layout)) is not None:  # an entry names its keys
        return row, [refusal]
    kind = layout.formatting or _recognised(row, layout)
    if kind == "alpaca":
        return _of_alpaca(row, layout)
    if kind == "completion":
        return _of_completion(row, layout)
    if kind == "text":
        return row, [f"a pre-training row, with only the key 'text'; {SFT_ONLY}"]
    return _of_messages(row, layout)


def absent_columns(named: Mapping[str, Any], columns: Container[str]) -> list[str]:
    """The names of columns that no row has. Without them a column of another name would silently not be read."""
    return [f"{key}={name}: no row has this column" for key, name in named.items() if name and name not in columns]


def is_sft_row(row: Mapping[str, Any], prompt: str, layout: RowLayout) -> bool:
    """Whether a row is one of these, and not a task, which has its prompt in the column `prompt`."""
    if prompt in row and prompt not in layout.columns.values() and not _names_both(row, layout):
        return "completion" in row
    lists = [_named_messages(row, layout), *(row.get(name) for name in LISTS)]
    return any(isinstance(value, list) for value in lists) or _recognised(row, layout) == "alpaca"


def _names_both(row: Mapping[str, Any], layout: RowLayout) -> bool:
    """Whether the layout names columns for prompt and response, and the row has them."""
    named = {"prompt", "response"} <= layout.columns.keys()
    return named and all(isinstance(layout.value(row, name), str) for name in ("prompt", "response"))


def _refusal(row: Mapping[str, Any], layout: RowLayout) -> str | None:
    """The other training that a row is for. Columns that the layout names are read, whatever they are called."""
    others = OTHER_ROWS.keys() - layout.columns.values()
    name = next((name for name in OTHER_ROWS if name in others and row.get(name) not in (None, [], "")), None)
    if name is not None:
        return f"{OTHER_ROWS[name]}, by its key {name!r}; {SFT_ONLY}"
    if "completion" in row and isinstance(row.get("label"), bool):
        return f"a KTO row, by its keys 'completion' and 'label'; {SFT_ONLY}"
    return None


def _recognised(row: Mapping[str, Any], layout: RowLayout) -> str:
    if _named_messages(row, layout) is not None or any(row.get(name) is not None for name in LISTS):
        return "messages"
    if isinstance(layout.value(row, "response"), str) and isinstance(layout.value(row, "prompt"), str):
        return "alpaca"
    if row.get("completion") is not None:
        return "completion"
    return "text" if isinstance(row.get("text"), str) and "prompt" not in row else "messages"


def _of_alpaca(row: Mapping[str, Any], layout: RowLayout) -> Standard:
    """The instruction and the input, a line below it, are the user's. Replies of the history are trained too."""
    asked, more, answer, history = (layout.value(row, name) for name in ALPACA)
    problems = [
        f"{layout.column(name)!r} must be a string, got {cut(text)}"
        for name, text in (("prompt", asked), ("query", more), ("response", answer))
        if not isinstance(text, str) and (text is not None or name == "response")
    ]
    pairs = history or []
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        expected = "a list of pairs of question and answer"
        problems.append(f"{layout.column('history')!r} must be {expected}, got {cut(history)}")
    if problems:
        return row, problems
    said = [*pairs, ["\n".join(text for text in (asked, more) if text), answer]]
    messages = [
        {"role": role, "content": text} for pair in said for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return {"messages": messages, **layout.rest(row)}, []


def _of_completion(row: Mapping[str, Any], layout: RowLayout) -> Standard:
    """TRL's rows: texts or lists of messages. Replies in the prompt are not trained."""
    prompt, completion = row.get("prompt"), row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
        return {"messages": turns, **layout.rest(row)}, []
    if not isinstance(prompt, list) or not isinstance(completion, list):
        return row, [f"'prompt' and 'completion' must both be texts or both lists of messages, got {cut(prompt)}"]
    before = [
        {**item, "loss_weight": 0} if isinstance(item, dict) and item.get("role") == "assistant" else item
        for item in prompt
    ]
    return {"messages": [*before, *completion], **layout.rest(row)}, []


def _named_messages(row: Mapping[str, Any], layout: RowLayout) -> Any:
    """The messages in the column that the layout names; None without one."""
    return layout.value(row, "messages") if layout.columns.get("messages") else None


def _of_messages(row: Mapping[str, Any], layout: RowLayout) -> Standard:
    named = layout.columns.get("messages")
    if named is None:
        lists = {name: row[name] for name in LISTS if name in row}
    elif (messages_there := _named_messages(row, layout)) is None:
        return row, [f"no key {named!r}, which has the messages; found {', '.join(map(str, row)) or 'none'}"]
    else:
        lists = {named if named in LISTS else LISTS[-1]: messages_there}
    messages = {
        name: [_item(item, layout.tags) for item in items] if isinstance(items, list) else items
        for name, items in lists.items()
    }
    rest = layout.rest(row)
    if layout.formatting is not None and any(map(_begins_with_system, messages.values())):
        rest.pop("system", None)  # in LLaMA-Factory's sets the turn's counts
    others = {name: value for name, value in row.items() if name not in (*LISTS, "system", "tools")}
    return {**others, **messages, **rest}, []


def _begins_with_system(messages: Any) -> bool:
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and "system" in (first.get("role"), first.get("from"))


def _item(item: Any, tags: Mapping[str, str]) -> Any:
    """A message under the usual names, whatever the tags call them. Roles that no tag names stay as they are."""
    if not tags or not isinstance(item, dict):
        return item
    renamed = dict(item)
    for tag, usual in (("role_tag", ROLE_KEYS), ("content_tag", TEXT_KEYS)):
        if (key := tags.get(tag)) is not None:  # other keys of this meaning are not read
            renamed = {name: value for name, value in renamed.items() if name not in usual}
            renamed |= {usual[-1]: item[key]} if key in item else {}
    roles = {tags[tag]: role for tag, role in ROLE_OF_TAG.items() if tag in tags}
    return renamed | {
        key: roles[role] for key in ROLE_KEYS if isinstance(role := renamed.get(key), str) and role in roles
    }
