"""Rows of the layouts that others document: what they become, what is trained of them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ramet.config.checks import check_values
from ramet.config.compose import compose
from ramet.config.schema import SystemPrompt
from ramet.data.dataset_info import find_sets, hub_entry, pinned
from ramet.errors import ConfigErrors
from ramet.rollout.config import HermesConfig, TagsConfig
from ramet.rollout.prompts import make_prompt
from ramet.rollout.steps.hermes import Hermes
from ramet.rollout.steps.tags import Tags
from ramet.sft.conversations import AS_USUAL, SftData, read_data, read_row
from ramet.sft.encode import TraceEncoder
from ramet.sft.exchanges import Conversation, Returned, Written, WrittenCall
from ramet.sft.layouts import RowLayout, is_sft_row
from ramet.sft.prepare import check_data
from ramet.sft.traces import check_traces
from ramet.testing.chat_templates import chat_encoder
from ramet.types import Task

STEP = Hermes(HermesConfig())
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def call(city: str) -> dict[str, Any]:
    return {"name": "get_weather", "arguments": {"city": city}}


def written(city: str) -> str:
    return f"<tool_call>\n{json.dumps(call(city))}\n</tool_call>"


def conversation(row: dict[str, Any], layout: RowLayout = AS_USUAL) -> Conversation:
    found, problems = read_row(row, "f.jsonl", 1, layout)
    assert found is not None, problems
    return found


def refused(row: dict[str, Any], layout: RowLayout = AS_USUAL) -> str:
    found, problems = read_row(row, "f.jsonl", 1, layout)
    assert found is None
    return "\n".join(problems)


def shown(one: Conversation, *, mask_history: bool = False) -> list[tuple[str, str]]:
    """What is trained and what is not, of each example, as `--show` has it: with marks around what is trained."""
    encoder = chat_encoder("qwen2.5")

    def prompt(task: Task) -> Any:
        return make_prompt(task, STEP, task.schemas or (), SystemPrompt.AUTO, tools_in_template=True)

    reader = TraceEncoder(encoder, STEP, tools=(), prompt=prompt, mask_history=mask_history)

    def text(ids: Sequence[int], trained: Sequence[int], on: int) -> str:
        return encoder.decode(i for i, label in zip(ids, trained, strict=True) if label == on)

    examples = list(reader.examples(one))
    return [(text(one.token_ids, one.trained, 1), text(one.token_ids, one.trained, 0)) for one in examples]


def trained(row: dict[str, Any], *, mask_history: bool = False) -> list[str]:
    return [text for text, _ in shown(conversation(row), mask_history=mask_history)]


# ---- alpaca

ALPACA = {
    "instruction": "Add.",
    "input": "1+1",
    "output": "2",
    "system": "be brief",
    "history": [["a?", "b"], ["c?", "d"]],
}


def test_alpaca_joins_instruction_and_input_and_trains_the_history() -> None:
    one = conversation(ALPACA)
    assert one.system == "be brief"
    assert [exchange.user for exchange in one.exchanges] == ["a?", "c?", "Add.\n1+1"]
    assert trained(ALPACA) == ["b<|im_end|>", "d<|im_end|>", "2<|im_end|>"]


def test_mask_history_trains_the_last_message_alone() -> None:
    assert trained(ALPACA, mask_history=True) == ["2<|im_end|>"]
    assert trained(GLAIVE, mask_history=True) == ["Mild.<|im_end|>"]
    turns = [dict(turn) for turn in GLAIVE["conversations"]]
    turns[-1]["loss_weight"] = 0
    assert trained({"conversations": turns}, mask_history=True) == [f"{written('Paris')}<|im_end|>"]


@pytest.mark.parametrize("row", [{"instruction": "q", "output": "a"}, {"instruction": "q", "input": "", "output": "a"}])
def test_alpaca_without_input_asks_the_instruction(row: dict[str, Any]) -> None:
    assert conversation(row).exchanges[0].user == "q"


def test_a_dot_reaches_into_a_column() -> None:
    layout = RowLayout(columns={"prompt": "extra_info.question", "response": "extra_info.answer", "query": None})
    row = {"prompt": [{"role": "user", "content": "for RL"}], "extra_info": {"question": "1 + 1?", "answer": "2"}}
    [exchange] = conversation(row, layout).exchanges
    assert (exchange.user, exchange.reply) == ("1 + 1?", (Written(text="2"),))
    assert is_sft_row(row, "prompt", layout)
    talk = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    [exchange] = conversation({"x": {"talk": talk}}, RowLayout(columns={"messages": "x.talk"})).exchanges
    assert exchange.user == "1 + 1?"


def test_a_bad_alpaca_row_says_what_is_wrong() -> None:
    for history in ("x", ["x"], [["q"]]):
        assert "'history' must be a list of pairs" in refused({**ALPACA, "history": history})
    assert "'input' must be a string, got 3" in refused({**ALPACA, "input": 3})


# ---- sharegpt with calls, and a column of tools

GLAIVE = {
    "conversations": [
        {"from": "human", "value": "Paris?"},
        {"from": "function_call", "value": json.dumps(call("Paris"))},
        {"from": "observation", "value": '{"degrees": 15}'},
        {"from": "gpt", "value": "Mild."},
    ],
    "tools": json.dumps([WEATHER]),
}


def test_a_function_call_and_the_reply_are_trained_and_the_observation_is_not() -> None:
    ((on, off),) = shown(conversation(GLAIVE))
    assert on == f"{written('Paris')}<|im_end|>Mild.<|im_end|>"
    assert '<tool_response>\n{"degrees": 15}\n</tool_response>' in off


def test_the_tools_of_a_row_are_in_its_prompt_though_none_is_installed() -> None:
    ((_, off),) = shown(conversation(GLAIVE))
    assert json.dumps({"type": "function", "function": WEATHER}) in off
    assert "# Tools" not in shown(conversation({**GLAIVE, "tools": "[]"}))[0][1]


def test_names_of_tools_describe_none() -> None:
    assert conversation({**GLAIVE, "tools": ["get_weather"]}).tools is None


def test_reasoning_may_come_before_a_function_call_and_its_tag_be_in_an_argument() -> None:
    turns = [dict(turn) for turn in GLAIVE["conversations"]]
    turns[1]["value"] = f"<think>hm</think>{json.dumps(call('</think>'))}"
    first = conversation({"conversations": turns}).exchanges[0].reply[0]
    city = WrittenCall(name="get_weather", arguments=json.dumps({"city": "</think>"}))
    assert first == Written(text="<think>hm</think>", calls=(city,))


def test_several_calls_of_a_turn_take_one_list_of_results_apart() -> None:
    row = {**GLAIVE, "conversations": [dict(turn) for turn in GLAIVE["conversations"]]}
    row["conversations"][1]["value"] = json.dumps([call("Paris"), call("Oslo")])
    row["conversations"][2]["value"] = '[{"degrees": 15}, "cold"]'
    reply = conversation(row).exchanges[0].reply
    assert reply[1:3] == (Returned(text='{"degrees": 15}'), Returned(text="cold"))
    assert shown(conversation(row))[0][0] == f"{written('Paris')}\n{written('Oslo')}<|im_end|>Mild.<|im_end|>"


def test_a_result_that_answers_several_calls_at_once_is_malformed() -> None:
    row = {**GLAIVE, "conversations": [dict(turn) for turn in GLAIVE["conversations"]]}
    row["conversations"][1]["value"] = json.dumps([call("Paris"), call("Oslo")])
    report = check_traces(SftData(conversations=[conversation(row)], rows=1), STEP, [])
    assert [problem.reason for problem in report.malformed] == ["1 results for 2 calls"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (json.dumps(call("Paris")).replace('"Paris"', "[" * 400 + "]" * 400), "expected a function"),
        ("not JSON", "role 'function_call': tool_calls[0]: expected a function"),
        ("[]", "has no call"),
    ],
)
def test_a_function_call_that_cannot_be_read_is_refused(value: str, said: str) -> None:
    turns = [{"from": "human", "value": "q"}, {"from": "function_call", "value": value}]
    assert said in refused({"conversations": turns})


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (7, "'tools' must be a list of schemas or its JSON text, got 7"),
        ("{", "'tools' must be a list of schemas or its JSON text"),
        ('[{"a": ' * 500, "'tools' must be a list of schemas or its JSON text"),
        ('{"name": "f", "parameters": ' + '{"a": ' * 400 + "1" + "}" * 401, "'tools' must be a list of schemas"),
        ([{"description": "x"}], "tools[0]: expected a schema with a name"),
        ([WEATHER, WEATHER], "tools[1]: 'get_weather' is described twice"),
    ],
)
def test_tools_that_cannot_be_read_are_refused(tools: Any, said: str) -> None:
    assert said in refused({**GLAIVE, "tools": tools})


# ---- OpenAI

OPENAI = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "Paris and Oslo?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": str(n), "type": "function", "function": {**call(city), "arguments": json.dumps({"city": city})}}
                for n, city in enumerate(("Paris", "Oslo"))
            ],
        },
        {"role": "tool", "tool_call_id": "0", "content": "15"},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "Mild and cold."},
    ],
    "tools": [{"type": "function", "function": WEATHER}],
}


def test_openai_messages_with_several_calls_and_results() -> None:
    ((on, off),) = shown(conversation(OPENAI))
    assert on == f"{written('Paris')}\n{written('Oslo')}<|im_end|>Mild and cold.<|im_end|>"
    assert "<tool_response>\n15\n</tool_response>\n<tool_response>\n2\n</tool_response>" in off
    assert '"name": "get_weather"' in off


@pytest.mark.parametrize("text", ["Wait.", None])
def test_the_call_and_the_result_of_openais_older_form(text: str | None) -> None:
    first = {"role": "assistant", "content": text, "function_call": {**call("Paris"), "arguments": '{"city": "Paris"}'}}
    rest = [{"role": "function", "name": "get_weather", "content": "15"}, {"role": "assistant", "content": "Mild."}]
    one = conversation({"messages": [{"role": "developer", "content": "s"}, OPENAI["messages"][1], first, *rest]})
    assert one.system == "s"
    wait = f"{text}\n" if text else ""
    assert trained_of(one) == f"{wait}{written('Paris')}<|im_end|>Mild.<|im_end|>"
    first["tool_calls"] = [call("Paris")]
    assert "both 'tool_calls' and 'function_call'" in refused({"messages": [OPENAI["messages"][1], first, *rest]})


def test_results_that_name_their_calls_come_in_the_order_of_the_calls() -> None:
    system, user, calls, *results, last = OPENAI["messages"]
    reply = conversation({"messages": [system, user, calls, *results[::-1], last]}).exchanges[0].reply
    assert reply[1:3] == (Returned(text="15"), Returned(text="2"))
    results = [{**result, "tool_call_id": "unknown"} for result in results[::-1]]
    reply = conversation({"messages": [system, user, calls, *results, last]}).exchanges[0].reply
    assert reply[1:3] == (Returned(text="2"), Returned(text="15"))


# ---- contents of parts, and weights

PARTS = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "value": "Paris?"}], "loss_weight": 0.0},
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "value": "I must look."},
                {"type": "text", "value": "Wait."},
                {"type": "tool_call", "value": json.dumps(call("Paris"))},
            ],
            "loss_weight": 0.0,
        },
        {"role": "tool", "content": [{"type": "text", "text": "15"}]},
        {"role": "assistant", "content": [{"type": "text", "value": "Mild."}], "loss_weight": 1.0},
    ]
}


def test_parts_are_text_reasoning_and_calls() -> None:
    written_first = conversation(PARTS).exchanges[0].reply[0]
    thoughts = "<think>\nI must look.\n</think>\n\nWait."
    paris = WrittenCall(name="get_weather", arguments='{"city": "Paris"}')
    assert written_first == Written(text=thoughts, calls=(paris,), trained=False)


def test_a_message_without_weight_is_read_and_not_trained() -> None:
    ((on, off),) = shown(conversation(PARTS))
    assert on == "Mild.<|im_end|>"
    assert f"Wait.\n{written('Paris')}<|im_end|>" in off


@pytest.mark.parametrize(
    ("index", "change", "said"),
    [
        (0, {"loss_weight": 1}, "'loss_weight' of role 'user' is 1; only what an assistant writes is trained"),
        (3, {"loss_weight": 0.5}, "'loss_weight' must be 0 (masked) or 1 (trained), got 0.5"),
        (3, {"loss_weight": 0}, "no assistant turn is trained"),
        (3, {"weight": True, "loss_weight": None}, "'weight' must be 0 (masked) or 1 (trained), got True"),
        (0, {"content": [{"type": "image_url", "value": "x"}]}, "content[0]: expected a part of type text, reasoning"),
        (3, {"content": [{"type": ["text"]}]}, "content[0]: expected a part of type text, reasoning"),
        (3, {"content": [{"type": "text", "value": 3}]}, "content[0]: 'content' must be a string, got 3"),
    ],
)
def test_a_weight_or_part_that_is_not_known_is_refused(index: int, change: dict[str, Any], said: str) -> None:
    messages = [dict(message) for message in PARTS["messages"]]
    messages[index].update(change)
    assert said in refused({"messages": messages})


def test_a_function_call_may_be_parts_too() -> None:
    parts = [{"type": "tool_call", "value": call("Paris")}]
    turns = [{"from": "human", "value": "q"}, {"from": "function_call", "value": parts}]
    paris = WrittenCall(name="get_weather", arguments='{"city": "Paris"}')
    assert conversation({"conversations": turns}).exchanges[0].reply == (Written(text="", calls=(paris,)),)
    parts.insert(0, {"type": "reasoning", "value": "hm"})
    (reply,) = conversation({"conversations": turns}).exchanges[0].reply
    assert reply == Written(text="<think>\nhm\n</think>\n\n", calls=(paris,))


def test_reasoning_beside_the_text_comes_before_it() -> None:
    user, reply = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    (piece,) = conversation({"messages": [user, {**reply, "reasoning_content": "hm"}]}).exchanges[0].reply
    assert piece == Written(text="<think>\nhm\n</think>\n\na")
    for wrong in (["hm"], "\ud800"):
        assert "'reasoning_content'" in refused({"messages": [user, {**reply, "reasoning_content": wrong}]})


def test_half_a_character_in_a_call_or_a_tool_is_refused() -> None:
    turns = [{"from": "human", "value": "q"}, {"from": "function_call", "value": json.dumps(call("\ud800"))}]
    assert "half of a surrogate pair" in refused({"conversations": turns})
    assert "half of a surrogate pair" in refused({**GLAIVE, "tools": json.dumps([{**WEATHER, "name": "\ud800"}])})


# ---- tools of a row with a step that calls by tags


def test_tags_of_a_rows_tools_are_described_and_their_results_masked() -> None:
    step, encoder = Tags(TagsConfig()), chat_encoder("qwen2.5")
    text = "<get_weather>Paris</get_weather> <result>\n15\n</result><answer>mild</answer>"
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
    one = conversation({"messages": turns, "tools": [WEATHER]})
    assert check_traces(SftData(conversations=[one], rows=1), step, []).warnings() == []

    def prompt(task: Task) -> Any:
        return make_prompt(task, step, task.schemas or (), SystemPrompt.AUTO)

    (example,) = TraceEncoder(encoder, step, tools=(), prompt=prompt).examples(one)
    masked = encoder.decode(i for i, label in zip(example.token_ids, example.trained, strict=True) if not label)
    assert "<get_weather>city</get_weather>: Weather of a city." in masked
    assert masked.endswith("<result>\n15\n</result>")
    odd = conversation({"messages": turns, "tools": [{**WEATHER, "name": "get weather"}]})
    (problem,) = check_traces(SftData(conversations=[odd], rows=1), step, []).malformed
    assert "cannot write these names as tags: 'get weather'" in problem.reason


# ---- TRL


def test_prompt_and_completion_train_the_completion() -> None:
    assert trained({"prompt": "1+1?", "completion": "2"}) == ["2<|im_end|>"]
    turns = [
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c?"},
    ]
    assert trained({"prompt": turns, "completion": [{"role": "assistant", "content": "d"}]}) == ["d<|im_end|>"]
    assert "both be texts or both lists" in refused({"prompt": "x", "completion": [{"role": "assistant"}]})
    described = {"prompt": "q", "completion": "a", "tools": [WEATHER]}
    assert conversation(described).tools and conversation(described, RowLayout(columns={"tools": None})).tools is None


# ---- rows of other trainings


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"conversations": [], "chosen": {"from": "gpt"}}, "a ranking row, by its key 'chosen'"),
        ({"instruction": "q", "output": "a", "kto_tag": False}, "a KTO row, by its key 'kto_tag'"),
        ({"prompt": "q", "completion": "a", "label": True}, "a KTO row, by its keys 'completion' and 'label'"),
        ({"messages": [], "images": ["a.png"]}, "a row with images, by its key 'images'"),
        ({"text": "once upon a time"}, "a pre-training row, with only the key 'text'"),
    ],
)
def test_rows_of_other_trainings_are_refused_by_name(row: dict[str, Any], said: str) -> None:
    assert said in refused(row)


# ---- names of columns and tags


def test_columns_and_tags_of_any_name() -> None:
    layout = RowLayout(
        columns={"messages": "talk", "system": None},
        tags={"role_tag": "who", "content_tag": "said", "user_tag": "U", "assistant_tag": "A", "function_tag": "F"},
    )
    row: dict[str, Any] = {
        "system": "not read",
        "talk": [
            {"who": "U", "said": "q"},
            {"who": "F", "said": json.dumps(call("Rome"))},
            {"who": "observation", "said": "20"},
            {"who": "A", "said": "warm"},
        ],
    }
    one = conversation(row, layout)
    assert one.system is None and one.exchanges[0].user == "q"
    assert trained_of(one) == f"{written('Rome')}<|im_end|>warm<|im_end|>"
    row["talk"] = [{**turn, "role": "not read", "value": "not read"} for turn in row["talk"]]
    assert conversation(row, layout).exchanges == one.exchanges
    assert "no key 'talk', which has the messages; found system" in refused({"system": "s"}, layout)


def test_keys_name_columns_tags_and_mixing() -> None:
    keys = ["model.path=m", "sft.data=[a.json]"]
    sft = compose(
        [
            *keys, "sft.columns.messages=talk", "sft.columns.system=null", "sft.tags.role_tag=who",
            "sft.mixing.strategy=interleave_over", "sft.mixing.probs=[0.5,1]",
        ],
        job="sft",
    ).config.sft  # fmt: skip
    assert RowLayout.of(sft) == RowLayout(columns={"messages": "talk", "system": None}, tags={"role_tag": "who"})
    assert sft.mixing == {"strategy": "interleave_over", "probs": [0.5, 1]}
    wrong = compose([*keys, "sft.columns.msgs=talk", "sft.tags.who=x", "sft.mixing.strategy=mix"], job="sft").config
    said = check_values(wrong, "sft")
    assert [problem.partition(":")[0] for problem in said] == [
        "sft.columns.msgs", "sft.tags.who", "sft.mixing.strategy=mix",
    ]  # fmt: skip


def trained_of(one: Conversation) -> str:
    return shown(one)[0][0]


# ---- dataset_info.json


def info(folder: Path, **entries: Any) -> str:
    (folder / "dataset_info.json").write_text(json.dumps(entries))
    return f"{folder}/dataset_info.json"


def rows(folder: Path, name: str, *values: Any) -> None:
    (folder / name).write_text(json.dumps(list(values)))


def test_sets_of_a_dataset_info_are_read_by_their_names_beside_files(tmp_path: Path) -> None:
    rows(tmp_path, "a.json", {"q": "1?", "r": "one", "system": "not named, so not read"})
    rows(tmp_path, "b.json", GLAIVE)
    listed = info(
        tmp_path,
        first={"file_name": "a.json", "columns": {"prompt": "q", "response": "r"}},
        second={
            "file_name": "b.json",
            "formatting": "sharegpt",
            "columns": {"messages": "conversations", "tools": "tools"},
        },
    )
    data = read_data([f"{listed}:first", f"{listed}:second", str(tmp_path / "b.json")])
    assert data.problems == [] and data.bad == []
    assert [one.exchanges[0].user for one in data.conversations] == ["1?", "Paris?", "Paris?"]
    assert data.conversations[0].system is None
    assert [one.tools and one.tools[0].name for one in data.conversations] == [None, "get_weather", "get_weather"]


def test_a_column_that_an_entry_or_a_key_names_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    rows(tmp_path, "a.json", {"instruction": "q", "chosen": "a", "rejected": "b", "images": ["x"]})
    listed = info(tmp_path, a={"file_name": "a.json", "columns": {"prompt": "instruction", "response": "chosen"}})
    (one,) = read_data([f"{listed}:a"]).conversations
    assert one.exchanges[0].turns[0].written.text == "a"
    layout = RowLayout(columns={"response": "chosen"})
    assert conversation({"instruction": "q", "chosen": "a"}, layout).exchanges[0].user == "q"
    assert "a ranking row, by its key 'rejected'" in refused(
        {"instruction": "q", "chosen": "a", "rejected": "b"}, layout
    )


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        ({}, "aaabb"),
        ({"strategy": "interleave_under"}, "abab"),
        ({"strategy": "interleave_over"}, "ababab"),
        ({"strategy": "interleave_once"}, "ababa"),
    ],
)
def test_sets_are_mixed_as_their_strategy_says(tmp_path: Path, mixing: dict[str, Any], expected: str) -> None:
    for name, count in (("a", 3), ("b", 2)):
        rows(tmp_path, f"{name}.json", *({"instruction": f"{name}{n}", "output": "x"} for n in range(count)))
    data = read_data([f"{tmp_path}/a.json", f"{tmp_path}/b.json"], mixing=mixing)
    asked = [one.exchanges[0].user for one in data.conversations]
    assert "".join(text[0] for text in asked) == expected
    if mixing.get("strategy") == "interleave_over":
        assert asked.count("b0") == 2  # again, as the set has fewer


def test_sets_are_drawn_by_their_shares(tmp_path: Path) -> None:
    for name in "ab":
        rows(tmp_path, f"{name}.json", *({"instruction": f"{name}{n}", "output": "x"} for n in range(200)))
    files = [f"{tmp_path}/a.json", f"{tmp_path}/b.json"]

    def asked(strategy: str, seed: int = 1) -> list[str]:
        mixing = {"strategy": strategy, "probs": [0.8, 0.2]}
        return [one.exchanges[0].user for one in read_data(files, mixing=mixing, seed=seed).conversations]

    under = asked("interleave_under")
    a = [text for text in under if text[0] == "a"]
    assert a == [f"a{n}" for n in range(200)] and 0.7 < len(a) / len(under) < 0.9
    over = asked("interleave_over")
    assert set(over) == {f"{name}{n}" for name in "ab" for n in range(200)} and len(over) > 600
    assert len(asked("interleave_once")) == 400
    assert under == asked("interleave_under") != asked("interleave_under", seed=2)


@pytest.mark.parametrize(
    ("mixing", "said"),
    [
        ({"probs": [0.5, 0.5]}, "read only with an interleaving sft.mixing.strategy"),
        ({"strategy": "interleave_over", "probs": [1]}, "1 for 2 entries of sft.data"),
        ({"strategy": "interleave_over", "probs": [1, 0]}, "must be a list of numbers over 0"),
        ({"strategy": "interleave_over", "probs": [1, 1e-9]}, "each must be at least 0.001 of their sum"),
        ({"strategy": "interleave_over", "probs": "1,2"}, "must be a list of numbers over 0"),
    ],
)
def test_shares_that_cannot_be_read_are_refused(tmp_path: Path, mixing: dict[str, Any], said: str) -> None:
    for name in "ab":
        rows(tmp_path, f"{name}.json", {"instruction": "q", "output": "x"})
    (problem,) = read_data([f"{tmp_path}/a.json", f"{tmp_path}/b.json"], mixing=mixing).problems
    assert said in problem


def test_a_set_that_is_missing_is_the_problem_not_the_number_of_shares(tmp_path: Path) -> None:
    rows(tmp_path, "a.json", {"instruction": "q", "output": "x"})
    mixing = {"strategy": "interleave_under", "probs": [0.5, 0.5]}
    (problem,) = read_data([f"{tmp_path}/a.json", f"{tmp_path}/b.json"], mixing=mixing).problems
    assert "no such file" in problem


def test_an_entry_on_the_hub_is_a_split_at_a_revision_and_a_file_here_wins(tmp_path: Path) -> None:
    listed = info(
        tmp_path,
        first={"hf_hub_url": "me/sums", "subset": "easy"},
        second={"hf_hub_url": "me/sums", "file_name": "a.json"},
        files={"file_name": "a.json"},
    )
    names = {name: hub_entry(f"{listed}:{name}") for name in ("first", "first@v2", "second", "files", "none")}
    assert {name: found and str(found) for name, found in names.items()} == {
        "first": "me/sums:easy/train", "first@v2": "me/sums@v2:easy/train", "second": "me/sums:train", "files": None,
        "none": None,
    }  # fmt: skip
    assert pinned(f"{listed}:first@v2", "c0ffee") == f"{listed}:first@c0ffee"
    found = find_sets([f"{listed}:first"], fetch=False)
    assert found.problems == [] and found.sets[0].files == ()
    rows(tmp_path, "a.json", {"instruction": "q", "output": "a"})
    assert hub_entry(f"{listed}:second") is None
    assert len(read_data([f"{listed}:second"]).conversations) == 1


def test_the_system_prompt_of_a_turn_counts_in_a_listed_set(tmp_path: Path) -> None:
    turns = [{"from": "system", "value": "of the turn"}, *GLAIVE["conversations"]]
    row = {"conversations": turns, "system": "of the row"}
    rows(tmp_path, "a.json", row)
    columns = {"messages": "conversations", "system": "system"}
    listed = info(tmp_path, a={"file_name": "a.json", "formatting": "sharegpt", "columns": columns})
    assert [one.system for one in read_data([f"{listed}:a"]).conversations] == ["of the turn"]
    assert "two system prompts" in refused(row)


def test_a_column_that_no_row_has_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    rows(tmp_path, "a.json", {k: v for k, v in GLAIVE.items() if k != "tools"}, GLAIVE)  # some rows may lack it
    columns = {"messages": "conversations", "tools": "tools", "system": ""}
    entry = {"file_name": "a.json", "formatting": "sharegpt", "columns": columns}
    listed = info(tmp_path, a=entry, b={**entry, "columns": {**columns, "tools": "functions"}})
    assert read_data([f"{listed}:a"]).problems == []
    (problem,) = read_data([f"{listed}:b"]).problems
    assert problem == f"sft.data: {listed}:b: columns.tools=functions: no row has this column"
    keys = ["model.path=m", f"sft.data=[{tmp_path}/a.json]", "rollout_step=hermes", "sft.columns.tools=functions"]
    with pytest.raises(ConfigErrors, match=r"sft\.columns\.tools=functions: no row has this column"):
        check_data(compose(keys, job="sft"), [])


def test_num_samples_draws_the_same_rows_every_time_and_repeats_a_small_set(tmp_path: Path) -> None:
    rows(tmp_path, "a.json", *({"instruction": str(n), "output": "x"} for n in range(20)))
    listed = info(
        tmp_path, few={"file_name": "a.json", "num_samples": 5}, many={"file_name": "a.json", "num_samples": 50}
    )
    few = [one.row for one in read_data([f"{listed}:few"]).conversations]
    assert len(set(few)) == 5 and few == sorted(few) == [one.row for one in read_data([f"{listed}:few"]).conversations]
    many = [one.row for one in read_data([f"{listed}:many"]).conversations]
    assert len(many) == 50 and {many.count(n) for n in range(1, 21)} == {2, 3}


def test_an_entry_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    rows(tmp_path, "a.json", {"instruction": "q", "output": "a", "other": "b"})
    prints = set()
    for column in ("output", "other"):
        listed = info(tmp_path, a={"file_name": "a.json", "columns": {"prompt": "instruction", "response": column}})
        prints.add(read_data([f"{listed}:a"]).fingerprint)
    assert len(prints) == 2


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"ms_hub_url": "o/n"}, "ms_hub_url: 'o/n' is not a file here; fetch it, and name its file as file_name"),
        ({"hf_hub_url": 3}, "hf_hub_url: expected a text, got 3"),
        ({"hf_hub_url": "o/n", "folder": "f"}, "folder: 'f'; name the files, as in sft.data=[hf://datasets/"),
        ({"hf_hub_url": "o/n", "split": "train[:10]"}, "split: 'train[:10]'"),
        ({"file_name": "a.json", "converter": "sharegpt"}, "converter: 'sharegpt'; not read, use formatting"),
        ({"file_name": "a.json", "subset": "s"}, "subset: 's'; read only of a set of the hub (hf_hub_url), as a text"),
        ({}, "file_name: expected a text, got None"),
        ({"file_name": "a.json", "ranking": True}, "ranking: true; `ramet sft` trains on conversations"),
        ({"file_name": "a.json", "formatting": "moss"}, "formatting: 'moss'; allowed: alpaca, sharegpt, openai"),
        (
            {"file_name": "a.json", "columns": {"images": "i", "response": "r"}},
            "columns: images: a row with images; `ramet sft`",
        ),
        ({"file_name": "a.json", "columns": {"prompt": "text"}}, "no 'response', so its rows are for pre-training"),
        ({"file_name": "a.json", "columns": {"respons": "r", "response": "r"}}, "columns: respons: not known; allowed"),
        ({"file_name": "a.json", "columns": ["q"]}, "columns: expected an object, got ['q']"),
        ({"file_name": "a.json", "tags": {"user_tag": 1}}, "tags: user_tag: expected a text, got 1"),
        ({"file_name": "a.json", "num_samples": 0}, "num_samples: expected a whole number of at least 1, got 0"),
        ({"file_name": "a.json", "split": "test"}, "split: 'test'; a file has no splits but 'train'"),
        ({"file_name": "none.json"}, "none.json: no such file"),
    ],
)
def test_an_entry_that_cannot_be_read_says_why(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    rows(tmp_path, "a.json", {"instruction": "q", "output": "a"})
    data = read_data([f"{info(tmp_path, a=entry)}:a"])
    assert data.conversations == [] and said in "\n".join(data.problems)


def test_a_name_that_is_not_listed_says_which_are(tmp_path: Path) -> None:
    listed = info(tmp_path, a={"file_name": "a.json"}, b={"file_name": "b.json"})
    (problem,) = read_data([f"{listed}:c"]).problems
    assert "has no data set 'c'; it has a, b" in problem
