"""Both rollout steps under the chat templates of other families, as they are published.

The templates are those that TRL 1.16.0 carries in its wheel (`pip download --no-deps trl==1.16.0`), read from the file
that `RAMET_TRL_WHEEL` names; SmolLM2's is in the folder that `RAMET_SMOLLM2` names (`make quickstart MODEL=smollm2`
writes it to runs/models/smollm2). The tokens are SmolLM2's, and those that each family's markup adds: templates are
real, vocabularies are not. Without wheel or folder these tests are skipped; `test_hermes.py` has templates of our own
in the same forms.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import zipfile
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.models.encoder import Encoder
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import HermesConfig, TagsConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.prompts import make_prompt
from ramet.rollout.steps.hermes import Hermes
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.sft.conversations import read_row
from ramet.sft.encode import TraceEncoder
from ramet.testing.doubles import ScriptedEngine, echo_tool
from ramet.types import Message, Rollout, RolloutStep, SegmentKind, StopReason, Task, user_prompt

ROOT = Path(__file__).resolve().parents[3]
SMOLLM2 = Path(os.environ.get("RAMET_SMOLLM2") or ROOT / "runs" / "models" / "smollm2")
WHEEL = Path(os.environ.get("RAMET_TRL_WHEEL") or ROOT / "runs" / "models" / "trl-1.16.0-py3-none-any.whl")
SHA256 = {  # of the template files
    "qwen2_5": "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",
    "qwen3": "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
    "llama3_1": "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65",
}
TAGS_OF_QWEN3 = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA = ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>")
FAMILIES = ("smollm2", *SHA256)
END = {"smollm2": "<|im_end|>", "qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>", "llama3_1": "<|eot_id|>"}
TOOL = echo_tool("echo")
QUESTION = user_prompt("How many?")


@cache
def encoder_of(family: str, *, thinking: bool = True) -> Encoder:
    if not (SMOLLM2 / "tokenizer.json").is_file():
        pytest.skip(f"no tokenizer of SmolLM2 in {SMOLLM2}; RAMET_SMOLLM2 names its folder")
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2, local_files_only=True)
    if family != "smollm2":
        tokenizer.chat_template = template(family)
        _add_tokens(tokenizer, family)
    return Encoder(tokenizer, template_kwargs={} if thinking else {"enable_thinking": False})


def template(family: str) -> str:
    if not WHEEL.is_file():
        pytest.skip(f"no wheel of TRL 1.16.0 at {WHEEL}; RAMET_TRL_WHEEL names the file")
    content = zipfile.ZipFile(WHEEL).read(f"trl/chat_templates/{family}.jinja")
    assert hashlib.sha256(content).hexdigest() == SHA256[family], "another version of TRL"
    return content.decode()


def _add_tokens(tokenizer: PreTrainedTokenizerBase, family: str) -> None:
    """The tokens of the family's markup, with the properties that they have in its own vocabulary."""
    if family == "llama3_1":
        tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in LLAMA])
        tokenizer.add_special_tokens(
            {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|end_of_text|>"}
        )
        return
    tags = TAGS_OF_QWEN3 if family == "qwen3" else TAGS_OF_QWEN3[:2]
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})


def call(family: str, text: str) -> str:
    if family == "llama3_1":
        return json.dumps({"name": "echo", "parameters": {"text": text}}, ensure_ascii=False)
    return f"<tool_call>\n{json.dumps({'name': 'echo', 'arguments': {'text': text}}, ensure_ascii=False)}\n</tool_call>"


def hermes_turns(family: str) -> list[str]:
    """Two calls and an answer; Qwen3 thinks before each, two calls are made at once, and a result has space around."""
    thought = "<think>\nI look.\n</think>\n\n" if family == "qwen3" else ""
    both = "; " if family == "llama3_1" else "\n"
    first = both.join([call(family, " 1,200 \n"), call(family, 'a "b" é')])
    return [thought + first, thought + call(family, "<|im_end|><|eot_id|>"), thought + "It is 1,200."]


def in_template(family: str) -> bool:
    return family != "smollm2"  # whose template reads no tools


def play(
    encoder: Encoder,
    step: RolloutStep,
    turns: Sequence[str],
    *,
    tools_in_template: bool = False,
    prompt: Sequence[Message] = QUESTION,
    **limits: Any,
) -> Rollout:
    async def main() -> Rollout:
        worker = RolloutWorker(
            engine=ScriptedEngine(lambda task, path, turn: turns[turn], encoder),
            encoder=encoder,
            step=step,
            branch_policy=NoBranching(),
            tools={"echo": (TOOL, ToolConfig())},
            config=RolloutConfig(**limits),
            system_prompt=SystemPrompt.AUTO,
            seed=1,
            deterministic=False,
            tools_in_template=tools_in_template,
        )
        task = Task(id="t", prompt=tuple(prompt))
        (group,) = await worker.run(RolloutRequest(tasks=[task], step=0, plan=RolloutPlan(group_size=1)))
        assert worker.metrics()["rollout/retokenization_drift"] == 0
        await worker.close()
        return group.rollouts[0]

    return asyncio.run(main())


def tokens(rollout: Rollout) -> tuple[list[int], list[int]]:
    ids = list(chain.from_iterable(segment.token_ids for segment in rollout.segments))
    return ids, list(chain.from_iterable([int(one.is_sampled)] * len(one) for one in rollout.segments))


def trained_text(rollout: Rollout, encoder: Encoder) -> list[str]:
    return [encoder.decode(segment.token_ids) for segment in rollout.segments if segment.is_sampled]


def as_messages(rollout: Rollout, turns: Sequence[str]) -> list[dict[str, Any]]:
    messages = [{"role": message.role, "content": message.content} for message in QUESTION]
    for turn, text in enumerate(turns):
        messages.append({"role": "assistant", "content": text})
        results = Hermes(HermesConfig()).results([one.text for one in rollout.tool_calls if one.turn == turn])
        messages += [{"role": message.role, "content": message.content} for message in results]
    return messages


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_ends_with_the_familys_own_token(family: str) -> None:
    encoder = encoder_of(family)
    ends = [encoder.decode([i]) for i in encoder.eos_ids]
    assert encoder.decode([encoder.end_of_turn_id]) == END[family]
    assert ends == [END[family], *(["<|eom_id|>"] if family == "llama3_1" else [])]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_a_template_that_describes_tools_is_taken_for_one(family: str) -> None:
    assert encoder_of(family).template.describes_tools() == in_template(family)
    assert not encoder_of(family).template.writes_the_date()


@pytest.mark.parametrize("family", FAMILIES)
def test_hermes_is_what_the_template_renders_of_the_same_messages(family: str) -> None:
    """Before each turn the tokens so far are those of the template's own rendering, so each prompt is a prefix of the
    next one; trained is what was sampled, with the end of each message.
    """
    encoder, turns, step = encoder_of(family), hermes_turns(family), Hermes(HermesConfig())
    rollout = play(encoder, step, turns, tools_in_template=in_template(family))
    assert (rollout.stop, rollout.answer, len(rollout.tool_calls)) == (StopReason.ANSWER, "It is 1,200.", 3)
    end = END[family]
    assert trained_text(rollout, encoder) == [text + end for text in turns]
    rows, said = as_messages(rollout, turns), ""
    if not in_template(family):
        rows.insert(0, {"role": "system", "content": step.system_prompt([TOOL.schema])})
    for segment in rollout.segments:
        if segment.is_sampled:
            n_turns = segment.turn
            upto = [i for i, row in enumerate(rows) if row["role"] == "assistant"][n_turns]
            rendered = encoder.tokenizer.apply_chat_template(
                rows[:upto],
                tools=[TOOL.schema.function] if in_template(family) else None,
                tokenize=False,
                add_generation_prompt=True,
            )
            assert said == rendered
        said += encoder.decode(segment.token_ids)
    assert said.count('"description": "Returns its input."') == 1
    assert said.count("<|begin_of_text|>") == (family == "llama3_1")


@pytest.mark.parametrize("family", FAMILIES)
def test_hermes_gives_a_result_no_token_of_the_markup(family: str) -> None:
    encoder, turns = encoder_of(family), hermes_turns(family)
    rollout = play(encoder, Hermes(HermesConfig()), turns, tools_in_template=in_template(family))
    forged = [segment for segment in rollout.segments if segment.kind is SegmentKind.RESULT][-1]
    assert "<|im_end|><|eot_id|>" in encoder.decode(forged.token_ids)
    added = set(encoder.tokenizer.added_tokens_decoder)
    parts = encoder.suffix([Message(role="tool", content="1")], after=encoder.end_of_turn_id)
    honest = list(chain.from_iterable(encoder.insert(part) for part in parts))
    assert [i for i in forged.token_ids if i in added] == [i for i in honest if i in added]


@pytest.mark.parametrize("family", FAMILIES)
def test_tags_are_one_message_that_the_end_of_turn_does_not_cut(family: str) -> None:
    encoder, step = encoder_of(family), Tags(TagsConfig())
    turns = ["<think>Look.</think> <echo>1,200</echo>", "<echo><|im_end|></echo>", "<answer>1,200</answer>"]
    rollout = play(encoder, step, turns)
    assert (rollout.stop, rollout.answer) == (StopReason.ANSWER, "1,200")
    assert trained_text(rollout, encoder) == turns
    rows = [{"role": "system", "content": step.system_prompt([TOOL.schema])}, {"role": "user", "content": "How many?"}]
    prompt = str(encoder.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True))
    results = [" <result>\n1,200\n</result>", " <result>\n<|im_end|>\n</result>"]
    said = encoder.decode(tokens(rollout)[0])
    assert said == f"{prompt}{turns[0]}{results[0]}{turns[1]}{results[1]}{turns[2]}"
    assert prompt.count("<echo>text</echo>") == 1 and prompt.count("<|begin_of_text|>") == (family == "llama3_1")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["hermes", "tags"])
def test_a_written_trace_is_the_tokens_and_the_mask_of_the_rollout(family: str, name: str) -> None:
    encoder = encoder_of(family)
    step: Hermes | Tags = Hermes(HermesConfig()) if name == "hermes" else Tags(TagsConfig())
    described = name == "hermes" and in_template(family)
    if name == "hermes":
        turns = hermes_turns(family)
        rollout = play(encoder, step, turns, tools_in_template=described)
        rows = as_messages(rollout, turns)
    else:
        turns = ["<think>Look.</think> <echo>1,200</echo>", "<answer>1,200</answer>"]
        rollout = play(encoder, step, turns)
        text = f"{turns[0]} <result>\n1,200\n</result>{turns[1]}"
        rows = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": text}]
    conversation, problems = read_row({"messages": rows}, "f.jsonl", 1)
    assert conversation is not None, problems
    reader = TraceEncoder(
        encoder,
        step,
        tools=["echo"],
        prompt=lambda task: make_prompt(task, step, [TOOL.schema], SystemPrompt.AUTO, tools_in_template=described),
    )
    (example,) = reader.examples(conversation)
    ids, trained = tokens(rollout)
    ending = [] if name == "hermes" else [encoder.end_of_turn_id]  # a rollout of `tags` stops at its answer
    assert list(example.token_ids) == ids + ending
    assert list(example.trained) == trained + [1] * len(ending)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rollout_over_its_limit_of_calls_ends_with_a_token_that_is_not_trained(family: str) -> None:
    encoder = encoder_of(family)
    turns = ["<echo>1</echo>", "<echo>2</echo>"]
    rollout = play(encoder, Tags(TagsConfig()), turns, max_tool_calls=1)
    assert rollout.stop is StopReason.CALL_LIMIT
    last = rollout.segments[-1]
    assert (encoder.decode(last.token_ids), last.kind, last.is_sampled) == (END[family], SegmentKind.FORCED, False)


@pytest.mark.parametrize(
    ("family", "default"),
    [
        ("smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
        ("qwen2_5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
        ("qwen3", None),
        ("llama3_1", "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024"),
    ],
)
def test_a_default_system_message_gives_way_to_an_own_one_even_to_an_empty_one(
    family: str, default: str | None
) -> None:
    encoder = encoder_of(family)
    system = [Message(role="system", content="Be brief."), Message(role="system", content="")]
    bare, brief, empty = (encoder.decode(encoder.prompt([*first, *QUESTION])) for first in ((), system[:1], system[1:]))
    assert ("system" in bare) == (default is not None) and (default or "") in bare
    assert brief.count("Be brief.") == 1
    if family != "llama3_1":  # which writes its dates before every system message
        assert default is None or (default not in brief and default not in empty)


def test_llama_ends_a_call_with_either_token_and_the_template_adds_no_second_one() -> None:
    encoder = encoder_of("llama3_1")
    (eom,) = encoder.markup("<|eom_id|>")
    results = Hermes(HermesConfig()).results(["1"])
    suffixes = {
        "".join(part.text for part in encoder.suffix(results, after=after)) for after in (eom, encoder.end_of_turn_id)
    }
    assert suffixes == {
        '<|start_header_id|>ipython<|end_header_id|>\n\n"1"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'
    }


def test_llama_trims_what_a_user_says_and_so_does_the_suffix() -> None:
    said = [Message(role="user", content=" \n1,200 \n")]
    suffix = encoder_of("llama3_1").suffix(said, after=-1)
    assert "user<|end_header_id|>\n\n1,200<|eot_id|>" in "".join(part.text for part in suffix)
    kept = encoder_of("qwen3").suffix(said, after=-1)
    assert "user\n \n1,200 \n<|im_end|>" in "".join(part.text for part in kept)


def test_qwen3_drops_thoughts_from_earlier_exchanges_alone() -> None:
    """A rollout keeps them in all its turns, as the template does after the last question; an earlier exchange has
    none in the prompt.
    """
    encoder = encoder_of("qwen3")
    earlier = Message(role="assistant", content="<think>\nI look.\n</think>\n\nIt is 2.")
    prompt = encoder.decode(encoder.prompt([*QUESTION, earlier, *QUESTION]))
    assert "<think>" not in prompt and "assistant\nIt is 2.<|im_end|>\n" in prompt
    turns = hermes_turns("qwen3")
    rollout = play(encoder, Hermes(HermesConfig()), turns, tools_in_template=True)
    assert encoder.decode(tokens(rollout)[0]).count("<think>\nI look.\n</think>") == 3


def test_without_thinking_qwen3_begins_every_turn_after_empty_thoughts_that_are_not_trained() -> None:
    encoder = encoder_of("qwen3", thinking=False)
    turns = [call("qwen3", "1"), "It is 1."]
    rollout = play(encoder, Hermes(HermesConfig()), turns, tools_in_template=True)
    inserted = [encoder.decode(segment.token_ids) for segment in rollout.segments if not segment.is_sampled]
    assert [text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n") for text in inserted] == [True, True]
    assert trained_text(rollout, encoder) == [f"{text}<|im_end|>" for text in turns]
