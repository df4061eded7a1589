from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.sft.conversations import Returned, Written, read_data, read_row


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": role, "value": text} for role, text in pairs]


def problems(record: Any) -> str:
    conversation, found = read_row(record, "f.jsonl, row 3")
    assert conversation is None
    assert all(problem.startswith("f.jsonl, row 3: ") for problem in found)
    return "\n".join(found)


@pytest.mark.parametrize(
    ("key", "role", "text", "user", "assistant"),
    [("conversations", "from", "value", "human", "gpt"), ("messages", "role", "content", "user", "assistant")],
)
def test_both_spellings_of_a_row_give_the_same_conversation(
    key: str, role: str, text: str, user: str, assistant: str
) -> None:
    record = {key: [{role: user, text: "1+1?"}, {role: assistant, text: "2"}]}
    conversation, found = read_row(record, "x")
    assert found == []
    assert conversation is not None and conversation.system is None
    assert [(e.user, e.reply) for e in conversation.exchanges] == [("1+1?", (Written(text="2"),))]


def test_tool_turns_join_the_assistant_turns_around_them() -> None:
    record = {"conversations": turns(("human", "q"), ("gpt", "call"), ("observation", "4"), ("gpt", "so 4"))}
    conversation, _ = read_row(record, "x")
    assert conversation is not None
    assert conversation.exchanges[0].reply == (Written(text="call"), Returned(text="4"), Written(text="so 4"))


def test_a_conversation_of_two_exchanges_keeps_both() -> None:
    record = {"messages": turns(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))}
    conversation, _ = read_row(record, "x")
    assert conversation is not None and conversation.system == "s"
    assert [exchange.user for exchange in conversation.exchanges] == ["a", "c"]


@pytest.mark.parametrize(("value", "system"), [("be brief", "be brief"), ("", None), (None, None)])
def test_a_row_level_system_prompt_counts_unless_it_is_empty(value: str | None, system: str | None) -> None:
    conversation, _ = read_row({"system": value, "messages": turns(("user", "a"), ("assistant", "b"))}, "x")
    assert conversation is not None and conversation.system == system


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([], "expected a JSON object, got []"),
        ({"text": "x"}, "no key 'conversations' or 'messages'; found text"),
        ({"messages": [], "conversations": []}, "both 'conversations' and 'messages' are there"),
        ({"messages": "hi"}, "'messages' must be a list, got 'hi'"),
        ({"messages": []}, "'messages' is empty"),
        ({"messages": ["hi"]}, "messages[0]: expected an object with role and text, got 'hi'"),
        ({"messages": [{"role": "user"}]}, "messages[0]: no key 'value' or 'content'; found role"),
        ({"messages": turns(("robot", "x"), ("gpt", "y"))}, "messages[0]: unknown role 'robot'; allowed: system, user"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0]: 'content' must be a string, got 7"),
        ({"messages": turns(("user", ""), ("gpt", "y"))}, "messages[0]: 'value' of role 'user' is empty"),
        ({"messages": turns(("user", "\ud800"), ("gpt", "y"))}, "lone surrogate at character 0"),
        ({"messages": turns(("user", "a"))}, "no assistant turn"),
        (
            {"messages": turns(("gpt", "a"))},
            "turn 0 has role assistant at the beginning; allowed there: system or user",
        ),
        ({"messages": turns(("user", "a"), ("user", "b"), ("gpt", "c"))}, "turn 1 has role user after user"),
        ({"messages": turns(("user", "a"), ("gpt", "b"), ("gpt", "c"))}, "turn 2 has role assistant after assistant"),
        ({"messages": turns(("user", "a"), ("tool", "b"), ("gpt", "c"))}, "turn 1 has role tool after user"),
        ({"messages": turns(("user", "a"), ("gpt", "b"), ("user", "c"))}, "ends with role user"),
        ({"messages": turns(("user", "a"), ("gpt", "b"), ("tool", "c"))}, "ends with role tool"),
        ({"system": 1, "messages": turns(("user", "a"), ("gpt", "b"))}, "'system' must be a string, got 1"),
        ({"system": "s", "messages": turns(("system", "t"), ("user", "a"), ("gpt", "b"))}, "two system prompts"),
    ],
)
def test_a_bad_row_says_what_is_wrong_with_it(record: Any, said: str) -> None:
    assert said in problems(record)


def test_a_long_wrong_value_is_shown_cut() -> None:
    assert len(problems({"messages": [{"role": "user", "content": ["x" * 10_000]}]})) < 250


def test_every_bad_turn_of_a_row_is_reported() -> None:
    found = problems({"messages": [{"role": "boss", "content": 1}, {"role": "user"}]})
    assert "unknown role 'boss'" in found
    assert "'content' must be a string" in found
    assert "messages[1]: no key" in found


def write(path: Path, *lines: Any) -> str:
    path.write_bytes(b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines) + b"\n")
    return str(path)


GOOD = {"messages": turns(("user", "a"), ("gpt", "b"))}


def test_all_bad_rows_of_all_files_are_reported_together_with_file_and_row(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", GOOD, {"messages": []}, b"{broken")
    second = write(tmp_path / "b.jsonl", b"\xff\xfe", GOOD)
    data = read_data([first, str(tmp_path / "none.jsonl"), second])
    assert len(data.conversations) == 2
    text = "\n".join(data.problems)
    assert f"{first}, row 1: 'messages' is empty" in text
    assert f"{first}, row 2: not JSON" in text
    assert f"{second}, row 0: not UTF-8 at byte 0" in text
    assert f"no file '{tmp_path / 'none.jsonl'}'" in text


def test_after_twenty_bad_rows_the_others_are_counted(tmp_path: Path) -> None:
    data = read_data([write(tmp_path / "a.jsonl", *[{"messages": []}] * 33)])
    assert len(data.problems) == 21
    assert data.problems[-1] == "and 13 more problems in the rows of sft.data"


def test_a_file_without_rows_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    assert "has no rows" in read_data([str(tmp_path / "empty.jsonl")]).problems[0]


def test_the_fingerprint_follows_the_bytes_and_the_order_of_the_files(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", GOOD), write(tmp_path / "b.jsonl", GOOD, GOOD)
    assert read_data([a, b]).fingerprint == read_data([a, b]).fingerprint
    assert len({read_data(paths).fingerprint for paths in ([a], [b], [a, b, b])}) == 3
