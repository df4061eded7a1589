from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.sft.conversations import AS_USUAL, read_data, read_row
from ramet.sft.exchanges import Returned, Written
from ramet.sft.layouts import RowLayout, is_sft_row


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": role, "value": text} for role, text in pairs]


def problems(record: Any) -> str:
    conversation, found = read_row(record, "f.jsonl", 3)
    assert conversation is None
    return "\n".join(found)


@pytest.mark.parametrize(
    ("key", "role", "text", "user", "assistant"),
    [("conversations", "from", "value", "human", "gpt"), ("messages", "role", "content", "user", "assistant")],
)
def test_both_spellings_of_a_row_give_the_same_conversation(
    key: str, role: str, text: str, user: str, assistant: str
) -> None:
    record = {key: [{role: user, text: "1+1?"}, {role: assistant, text: "2"}]}
    conversation, found = read_row(record, "x", 1)
    assert found == []
    assert conversation is not None and conversation.system is None
    assert [(e.user, e.reply) for e in conversation.exchanges] == [("1+1?", (Written(text="2"),))]


def test_tool_turns_join_the_assistant_turns_around_them() -> None:
    record = {"conversations": turns(("human", "q"), ("gpt", "call"), ("observation", "4"), ("gpt", "so 4"))}
    conversation, _ = read_row(record, "x", 1)
    assert conversation is not None
    assert conversation.exchanges[0].reply == (Written(text="call"), Returned(text="4"), Written(text="so 4"))


def test_a_conversation_of_two_exchanges_keeps_both() -> None:
    record = {"messages": turns(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))}
    conversation, _ = read_row(record, "x", 1)
    assert conversation is not None and conversation.system == "s"
    assert [exchange.user for exchange in conversation.exchanges] == ["a", "c"]


@pytest.mark.parametrize(("value", "system"), [("be brief", "be brief"), ("", None), (None, None)])
def test_a_row_level_system_prompt_counts_unless_it_is_empty(value: str | None, system: str | None) -> None:
    pair = (("user", "a"), ("assistant", "b"))
    for messages in (turns(*pair), turns(("system", ""), *pair)):
        conversation, _ = read_row({"system": value, "messages": messages}, "x", 1)
        assert conversation is not None and conversation.system == system


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"other": "x"}, "no key 'conversations' or 'messages'; found other; rows may also have 'instr"),
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
        (
            {"messages": [*turns(("user", "a")), {"role": "assistant", "tool_calls": "f"}]},
            "messages[1]: 'tool_calls' must be a list, got 'f'",
        ),
        (
            {"messages": [*turns(("user", "a")), {"role": "assistant", "content": "b", "tool_calls": [{"name": "f"}]}]},
            "messages[1]: tool_calls[0]: expected a function with a name and arguments, which are a JSON object, got "
            "{'name': 'f'}",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{"name": "f", "arguments": "{}"}]}]},
            "messages[0]: 'tool_calls' of role 'user'; only an assistant calls tools",
        ),
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


def test_all_bad_rows_of_all_files_are_found_with_file_and_row(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", GOOD, b"", {"messages": []}, b"{broken")
    second = write(tmp_path / "b.jsonl", b"\xff\xfe", GOOD)
    data = read_data([first, str(tmp_path / "none.jsonl"), second])
    assert (len(data.conversations), data.rows) == (2, 5)
    assert data.conversations[1].where == f"{second}, row 2"
    assert [(problem.file, problem.row) for problem in data.bad] == [(first, 3), (first, 4), (second, 1)]
    assert str(data.bad[0]) == f"{first}, row 3: 'messages' is empty"
    assert data.bad[1].reason.startswith("not JSON: ")
    assert data.bad[2].reason.startswith("not UTF-8 ")
    [problem] = data.problems
    assert problem.startswith(f"sft.data: {tmp_path / 'none.jsonl'}: no such file ")


def test_a_pattern_names_files_and_parquet_gives_the_same_conversations(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write(tmp_path / "a.jsonl", GOOD, GOOD)
    parquet.write_table(pyarrow.Table.from_pylist([GOOD, GOOD]), tmp_path / "a.parquet")
    lines, table = read_data([f"{tmp_path}/*.jsonl"]), read_data([f"{tmp_path}/*.parquet"])
    assert lines.problems == table.problems == [] and lines.bad == table.bad == []
    assert [one.exchanges for one in lines.conversations] == [one.exchanges for one in table.conversations]
    assert [one.row for one in table.conversations] == [1, 2]


def test_a_row_of_turns_is_a_trace_and_a_task_is_none() -> None:
    assert is_sft_row(GOOD, "prompt", AS_USUAL) and is_sft_row({"conversations": []}, "prompt", AS_USUAL)
    prompt = [{"role": "user", "content": "q"}]
    assert not is_sft_row({"prompt": prompt, "answer": "a", "messages": None}, "prompt", AS_USUAL)
    assert not is_sft_row({"messages": prompt, "answer": "a"}, "messages", AS_USUAL)
    assert is_sft_row({"talk": prompt}, "prompt", RowLayout(columns={"messages": "talk"}))


def test_a_file_without_rows_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    assert "has no rows" in read_data([str(tmp_path / "empty.jsonl")]).problems[0]


def test_the_fingerprint_follows_the_bytes_and_the_order_of_the_files(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", GOOD), write(tmp_path / "b.jsonl", GOOD, GOOD)
    assert read_data([a, b]).fingerprint == read_data([a, b]).fingerprint
    assert len({read_data(paths).fingerprint for paths in ([a], [b], [a, b, b])}) == 3
