"""Tool calls in the forms of several families: read by Ramet, by the package `renderers`, or refused by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core.tests.rollout.gateway.conftest import LARGE, NAME, Recorded, check_exact, settings_of
from tokenizers import AddedToken

from ramet.components.prompts import call_problems
from ramet.errors import ConfigError
from ramet.models.encoder import Encoder
from ramet.rollout.gateway import calls
from ramet.rollout.gateway.calls import RenderersReader, call_reader, read_json_calls
from ramet.rollout.gateway.messages import BadRequest, Said, SaidCall, TurnReply, TurnRequest
from ramet.rollout.gateway.session import AgentSession
from ramet.testing.chat_templates import chat_encoder, chat_tokenizer
from ramet.testing.doubles import ScriptedEngine
from ramet.types import ToolSchema

TOOLS = "{%- for tool in tools or [] %}{{ tool | tojson + '\n' }}{% endfor %}"
CODER = (  # calls as Qwen3-Coder and Qwen3.5 write them
    TOOLS
    + r"""
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\n' + (value if value is string else value | tojson) + '\n</parameter>\n' }}
{%- endfor %}
{{- '</function>\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
)
GLM = (  # the thoughts begin in the generation prompt, and are left out of earlier messages
    TOOLS
    + r"""
{{- '[gMASK]<sop>' }}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|observation|><tool_response>' + message.content + '</tool_response>' }}
{%- elif message.role == 'assistant' %}
{{- '<|assistant|></think>' + message.content.split('</think>')[-1] }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.name }}
{%- for name, value in call.function.arguments | items %}
{{- '<arg_key>' + name + '</arg_key><arg_value>' + (value if value is string else value | tojson) + '</arg_value>' }}
{%- endfor %}
{{- '</tool_call>' }}
{%- endfor %}
{%- else %}
{{- '<|' + message.role + '|>' + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}
"""
)
DEEPSEEK = r"""
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'tool' %}
{{- '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message.content }}
{{- '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' }}
{%- elif message.role == 'assistant' %}
{{- '<｜Assistant｜>' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}
{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\n```json\n' + call.function.arguments }}
{{- '\n```<｜tool▁call▁end｜>' }}
{{- '<｜tool▁calls▁end｜>' if loop.last else '' }}
{%- endfor %}
{{- '<｜end▁of▁sentence｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<｜Assistant｜>' }}{% endif %}
"""
CHATML = (
    "<|im_start|> <|im_end|> <|endoftext|> <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>"
)
IMAGES = " <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>"
GLM_TOKENS = (
    "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <think> </think> <tool_call> "
    "</tool_call> <tool_response> </tool_response> <arg_key> </arg_key> <arg_value> </arg_value>"
)
DEEPSEEK_TOKENS = (
    "<｜end▁of▁sentence｜> <｜begin▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜tool▁sep｜> "
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> "
    "<｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
)
FAMILIES = {
    "coder": (CODER, "<|im_end|>", CHATML + IMAGES),
    "glm": (GLM, "<|endoftext|>", GLM_TOKENS),
    "deepseek": (DEEPSEEK, "<｜end▁of▁sentence｜>", DEEPSEEK_TOKENS),
}
TOOL = ToolSchema(
    name="add",
    description="Adds.",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}, "note": {"type": "string"}}},
)
QUESTION = Said(role="user", text="7 + 0?")


def family(name: str) -> Encoder:
    """An encoder of bytes and of a family's special tokens, with a chat template of its form."""
    template, end, tokens = FAMILIES[name]
    tokenizer = chat_tokenizer("qwen2.5")
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in tokens.split()])
    tokenizer.eos_token = tokenizer.pad_token = end
    return Encoder(tokenizer, template)


def replies(encoder: Encoder, script: list[str], *requests: TurnRequest) -> tuple[list[TurnReply], AgentSession]:
    """The replies of a session whose engine writes these texts; every token is checked to be recorded as it was."""
    engine = Recorded(ScriptedEngine(lambda task, path, turn: script[turn], encoder))
    session = AgentSession(NAME, settings_of(engine, encoder, LARGE))

    async def main() -> list[TurnReply]:
        return [await session.reply(request) for request in requests]

    answers = asyncio.run(main())
    check_exact(session, engine)
    return answers, session


def ask(*messages: Said, **fields: Any) -> TurnRequest:
    return TurnRequest(messages=messages, tools=(TOOL,), **fields)


CALLS = {
    "coder": "<tool_call>\n<function=add>\n<parameter=a>\n7\n</parameter>\n<parameter=note>\n12\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm": "<tool_call>add<arg_key>a</arg_key><arg_value>7</arg_value><arg_key>note</arg_key><arg_value>12</arg_value>"
    "</tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
    '{"a": 7, "note": "12"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
}
BROKEN = {
    "coder": "<tool_call>\n<parameter=a>\n7\n</parameter>\n</tool_call>",
    "glm": "<tool_call>add<arg_key>a</arg_key>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add 7<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}
THOUGHTS = {"coder": "<think>hm</think>\n\n", "glm": "hm</think>", "deepseek": "<think>hm</think>"}


@pytest.fixture
def package() -> None:
    pytest.importorskip("renderers", reason="ramet[renderers] is not installed")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", FAMILIES)
def test_calls_of_another_family_are_read_and_the_conversation_continues(name: str) -> None:
    encoder = family(name)
    assert call_problems(encoder) == []
    call = Said(
        role="assistant", text="Let me see.", calls=(SaidCall(id="c", name="add", arguments='{"a":7,"note":"12"}'),)
    )
    result = Said(role="tool", text="19", call_id="c")
    script = [f"{THOUGHTS[name]}Let me see.{CALLS[name]}", f"{THOUGHTS[name]}It is 19."]
    (first, second), session = replies(encoder, script, ask(QUESTION), ask(QUESTION, call, result))
    assert (first.text, first.thoughts, first.finish) == ("Let me see.", "hm", "calls")
    assert [(said.name, said.parsed) for said in first.calls] == [("add", {"a": 7, "note": "12"})]
    assert (second.text, second.thoughts, second.calls) == ("It is 19.", "hm", ())
    assert len(session.threads.threads) == 1 and session.malformed_calls == 0


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_cannot_be_read_stays_in_the_text_and_is_counted(name: str) -> None:
    script = [f"{THOUGHTS[name]}Well.{BROKEN[name]}", f"{THOUGHTS[name]}ab STOP cd"]
    requests = ask(QUESTION), ask(Said(role="user", text="Again."), stop=("STOP",))
    (first, second), session = replies(family(name), script, *requests)
    inner = BROKEN[name].removeprefix("<｜tool▁calls▁begin｜>").removesuffix("<｜tool▁calls▁end｜>")
    assert (first.text, first.calls, session.malformed_calls) == (f"Well.{inner}", (), 1)
    assert (second.text, second.stop) == ("ab", "STOP")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("value", ["NaN", "[" * 20_000])
def test_values_that_no_json_reader_takes_make_a_malformed_call(value: str) -> None:
    text = CALLS["coder"].replace("\n7\n", f"\n{value}\n")
    [reply], session = replies(family("coder"), [text], ask(QUESTION))
    assert (reply.text, reply.calls, session.malformed_calls) == (text, (), 1)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_clients_own_call_is_shown_as_the_template_writes_it(name: str) -> None:
    encoder = family(name)
    shown = encoder.template.content("Hm.", [{"name": "add", "arguments": {"a": 7, "note": "12"}}])
    assert shown == f"Hm.{CALLS[name]}"


@pytest.mark.parametrize("name", FAMILIES)
def test_without_the_package_a_form_that_it_reads_is_refused_and_the_extra_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "find_spec", lambda package: None)
    encoder = family(name)
    with pytest.raises(ConfigError, match=r"a form that the gateway does not read: .*pip install 'ramet\[renderers\]'"):
        call_reader(encoder)
    with pytest.raises(BadRequest, match=r"^tools cannot be offered: model\.chat_template: ") as refused:
        replies(encoder, [], ask(QUESTION))
    assert (refused.value.status, refused.value.field) == (400, "tools")


@pytest.mark.usefixtures("package")
def test_a_form_that_no_family_of_the_package_reads_is_refused() -> None:
    template = CODER.replace("<function=", "<call=")
    with pytest.raises(ConfigError, match=r"does not read: .*The package renderers \S+ has no family that reads them"):
        call_reader(Encoder(family("coder").tokenizer, template))


def test_json_calls_are_read_without_the_package() -> None:
    assert call_reader(chat_encoder("qwen3")) is read_json_calls


def test_a_template_that_describes_tools_and_leaves_calls_out_is_refused() -> None:
    [problem] = call_problems(Encoder(chat_tokenizer("qwen2.5"), CODER.replace("message.tool_calls or []", "[]")))
    assert problem.startswith("model.chat_template: describes tools, and does not show an assistant's `tool_calls`")


@pytest.mark.usefixtures("package")
def test_results_that_the_template_leaves_out_are_refused() -> None:
    [problem] = call_problems(
        Encoder(family("coder").tokenizer, CODER.replace("message.content + '\\n</tool", "'\\n</tool"))
    )
    assert "leaves out messages of role 'tool'" in problem


@pytest.mark.usefixtures("package")
def test_variables_of_the_chat_template_reach_the_package() -> None:
    """GLM without thoughts: what comes first is the answer."""
    base = family("glm")
    template = GLM.replace("'<|assistant|><think>'", "'<|assistant|></think>'")
    encoder = Encoder(base.tokenizer, template, template_kwargs={"enable_thinking": False, "other": 1})
    assert isinstance(call_reader(encoder), RenderersReader)
    [reply], _ = replies(encoder, [f"Sure.{CALLS['glm']}"], ask(QUESTION))
    assert (reply.text, reply.thoughts, len(reply.calls)) == ("Sure.", "", 1)
