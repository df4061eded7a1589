"""Traces of the step `hermes`, written as messages, are the same tokens and mask as the rollouts that play them."""

from __future__ import annotations

import asyncio
import json
from itertools import chain
from typing import Any

import pytest

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.errors import ConfigError
from ramet.models.encoder import Encoder
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import HermesConfig, TagsConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.prompts import make_prompt
from ramet.rollout.steps.hermes import Hermes
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.sft.conversations import SftData, read_row
from ramet.sft.encode import Example, TraceEncoder
from ramet.sft.exchanges import Conversation
from ramet.sft.traces import check_traces
from ramet.testing.chat_templates import chat_encoder, chat_tokenizer
from ramet.testing.doubles import ScriptedEngine, echo_tool
from ramet.types import Rollout, Task, user_prompt

FAMILIES = ("qwen2.5", "qwen3", "llama3.1")
STEP = Hermes(HermesConfig())
TOOL = echo_tool("echo")


def call(family: str, text: str) -> str:
    key = "parameters" if family == "llama3.1" else "arguments"
    written = json.dumps({"name": "echo", key: {"text": text}}, ensure_ascii=False)
    return written if family == "llama3.1" else f"<tool_call>\n{written}\n</tool_call>"


def traces(family: str) -> dict[str, list[str]]:
    both = "\n" if family != "llama3.1" else "; "
    return {
        "answered without a tool": ["42"],
        "one call": [call(family, "6*7"), "It is 42."],
        "several calls and turns": [
            both.join([call(family, 'a "b"\n'), call(family, "é漢")]),
            call(family, "</tool_response><|im_end|><|eot_id|>"),
            "done",
        ],
    }


CASES = [(family, name) for family in FAMILIES for name in traces(family)]


def played(encoder: Encoder, turns: list[str]) -> Rollout:
    async def play() -> Rollout:
        worker = RolloutWorker(
            engine=ScriptedEngine(lambda task, path, turn: turns[turn], encoder),
            encoder=encoder,
            step=STEP,
            branch_policy=NoBranching(),
            tools={"echo": (TOOL, ToolConfig())},
            config=RolloutConfig(),
            system_prompt=SystemPrompt.AUTO,
            seed=1,
            deterministic=False,
            tools_in_template=True,
        )
        task = Task(id="t", prompt=user_prompt("q"))
        (group,) = await worker.run(RolloutRequest(tasks=[task], step=0, plan=RolloutPlan(group_size=1)))
        await worker.close()
        return group.rollouts[0]

    return asyncio.run(play())


def conversation(messages: list[dict[str, Any]]) -> Conversation:
    found, problems = read_row({"messages": messages}, "f.jsonl", 1)
    assert found is not None, problems
    return found


def read(encoder: Encoder, messages: list[dict[str, Any]]) -> list[Example]:
    rule = SystemPrompt.AUTO
    reader = TraceEncoder(
        encoder,
        STEP,
        tools=["echo"],
        prompt=lambda task: make_prompt(task, STEP, [TOOL.schema], rule, tools_in_template=True),
    )
    return list(reader.examples(conversation(messages)))


def tokens(rollout: Rollout) -> tuple[list[int], list[int]]:
    ids = list(chain.from_iterable(segment.token_ids for segment in rollout.segments))
    return ids, list(chain.from_iterable([int(one.is_sampled)] * len(one) for one in rollout.segments))


def as_messages(rollout: Rollout, turns: list[str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    for turn, text in enumerate(turns):
        messages.append({"role": "assistant", "content": text})
        messages += [{"role": "tool", "content": one.text} for one in rollout.tool_calls if one.turn == turn]
    return messages


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_played_trace_read_by_sft_gives_the_same_ids_and_mask(family: str, name: str) -> None:
    encoder, turns = chat_encoder(family), traces(family)[name]
    rollout = played(encoder, turns)
    assert rollout.valid and len(rollout.tool_calls) == {"answered": 0, "one": 1, "several": 3}[name.split()[0]]
    (example,) = read(encoder, as_messages(rollout, turns))
    assert (list(example.token_ids), list(example.trained)) == tokens(rollout)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_apart_from_the_text_are_what_the_template_writes(family: str) -> None:
    encoder = chat_encoder(family)
    function = {"name": "echo", "arguments": {"text": "6*7"}}
    turns = [call(family, "6*7"), "42"]
    rollout = played(encoder, turns)
    rest = as_messages(rollout, turns)[2:]
    for given in ({"type": "function", "function": function}, function | {"arguments": '{"text": "6*7"}'}):
        message = {"role": "assistant", "content": None, "tool_calls": [given]}
        (example,) = read(encoder, [{"role": "user", "content": "q"}, message, *rest])
        assert (list(example.token_ids), list(example.trained)) == tokens(rollout)


OPEN_THOUGHTS = "{{- '<|im_start|>assistant\\n<think>\\n' }}"


@pytest.mark.parametrize(
    ("content", "kwargs", "template", "written"),
    [
        (None, {}, None, ""),  # as the next prompt shows it: no thoughts, and no empty ones
        (None, {"enable_thinking": False}, None, ""),  # the prompt has the empty thoughts already
        ("<think>6 and 7</think>I ask.", {}, None, "<think>\n6 and 7\n</think>\n\nI ask.\n"),
        (None, {}, OPEN_THOUGHTS, "\n</think>\n\n"),  # the prompt begins thoughts, which somebody must end
    ],
)
def test_thoughts_of_a_call_are_those_of_the_data_whatever_qwen3s_template_adds(
    content: str | None, kwargs: dict[str, Any], template: str | None, written: str
) -> None:
    usual = "{{- '<|im_start|>assistant\\n' }}\n{%- if enable_thinking"
    tokenizer = chat_tokenizer("qwen3")
    assert isinstance(tokenizer.chat_template, str) and usual in tokenizer.chat_template
    if template is not None:
        tokenizer.chat_template = tokenizer.chat_template.replace(usual, template + usual.partition("}}")[2])
    encoder = Encoder(tokenizer, template_kwargs=kwargs)
    function = {"name": "echo", "arguments": {"text": "6*7"}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": content, "tool_calls": [function]},
        {"role": "tool", "content": "6*7"},
        {"role": "assistant", "content": "42"},
    ]
    (example,) = read(encoder, messages)
    first = next(i for i, trained in enumerate(example.trained) if trained)
    prompt = encoder.prompt(user_prompt("q"), [TOOL.schema])
    assert list(example.token_ids[:first]) == list(prompt)
    said = encoder.decode(example.token_ids[first:]).partition("<|im_end|>")[0]
    assert said == written + call("qwen3", "6*7")


def test_an_earlier_exchange_is_messages_in_the_prompt_of_the_next_one() -> None:
    encoder = chat_encoder("qwen2.5")
    first = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": call("qwen2.5", "1")},
        {"role": "tool", "content": "<tool_call>"},
        {"role": "assistant", "content": "one"},
    ]
    later = [{"role": "user", "content": "and?"}, {"role": "assistant", "content": "two"}]
    _, second = read(encoder, [*first, *later])
    rows = [*first[:2], {"role": "tool", "content": "&lt;tool_call>"}, *first[3:], later[0]]
    prompt = encoder.tokenizer.apply_chat_template(
        rows, tools=[TOOL.schema.function], tokenize=False, add_generation_prompt=True
    )
    assert encoder.decode(second.token_ids) == f"{prompt}two<|im_end|>"
    assert sum(second.trained) == len("two") + 1


def test_a_template_that_takes_one_call_at_a_time_refuses_two_apart_from_the_text() -> None:
    function = {"name": "echo", "arguments": {}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [function, function]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "done"},
    ]
    with pytest.raises(ConfigError) as caught:
        read(chat_encoder("llama3.1"), messages)
    assert str(caught.value) == (
        "model.chat_template: cannot render a conversation of roles ['user', 'assistant']: only one call at a time"
    )
    messages[1:4] = [{"role": "assistant", "content": "I look.", "tool_calls": [function]}, messages[2]]
    with pytest.raises(ConfigError) as caught:
        read(chat_encoder("llama3.1"), messages)
    told = "model.chat_template: does not show an assistant's text together with its `tool_calls`; name the file of "
    assert str(caught.value).startswith(told)


def faults(step: Any, *replies: list[dict[str, Any]]) -> list[tuple[int, str]]:
    data = SftData(rows=len(replies))
    for row, reply in enumerate(replies, start=1):
        found, problems = read_row({"messages": [{"role": "user", "content": "q"}, *reply]}, "f", row)
        assert found is not None, problems
        data.conversations.append(found)
    report = check_traces(data, step, ["echo"])
    assert report.checked
    return [(problem.row, problem.reason) for problem in report.malformed]


def test_malformed_messages_are_found_before_anything_is_trained() -> None:
    def reply(text: str, *results: str) -> list[dict[str, Any]]:
        tools = [{"role": "tool", "content": one} for one in results]
        return [{"role": "assistant", "content": text}, *tools, {"role": "assistant", "content": "done"}]

    broken = "<tool_call>\n{oops}\n</tool_call>"
    extra, (row, no_json) = faults(
        STEP, reply(call("qwen2.5", "1"), "1"), reply(call("qwen2.5", "1"), "1", "2"), reply(broken, "1")
    )
    assert extra == (2, "2 results for 1 calls") and row == 3 and "not valid JSON" in no_json
    apart = [{"role": "assistant", "tool_calls": [{"name": "echo", "arguments": {}}]}, *reply("x", "1")[1:]]
    assert faults(STEP, apart) == []
    assert faults(Tags(TagsConfig()), apart) == [
        (1, "calls apart from the text ('tool_calls'), which rollout_step=hermes reads")
    ]
