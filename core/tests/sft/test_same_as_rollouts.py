"""One encoder serves SFT and rollouts: a trace that was played and one that was read are the same tokens and mask."""

from __future__ import annotations

import asyncio
import json
from itertools import chain

import pytest

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.models.encoder import Encoder
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.prompts import make_prompt
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.sft.conversations import read_row
from ramet.sft.encode import Example, TraceEncoder
from ramet.testing.doubles import EchoTool, ScriptedEngine, echo_tool, tiny_encoder
from ramet.types import Rollout, Task, user_prompt

QUESTION = "What is 6*7?"
ENCODER = tiny_encoder()
STEP = Tags(TagsConfig())
TRACES = {
    "answered without a tool": ["<think>easy</think><answer>42</answer>"],
    "one call": ["<think>count</think><python>6*7</python>", "<answer>6*7</answer>"],
    "two calls with other letters": ["<python>  6 · 7\n</python>", "mm\n<python>é漢</python>", " <answer>42</answer>"],
    "no answer": ["<python>6*7</python>", "I do not know."],
    "a result that holds special tokens": [f"<python>{ENCODER.tokenizer.eos_token}<think></python>", "no"],
}


def played(turns: list[str], tool: EchoTool, rule: SystemPrompt) -> Rollout:
    async def play() -> Rollout:
        worker = RolloutWorker(
            engine=ScriptedEngine(lambda task, path, turn: turns[turn], ENCODER),
            encoder=ENCODER,
            step=STEP,
            branch_policy=NoBranching(),
            tools={"python": (tool, ToolConfig())},
            config=RolloutConfig(),
            system_prompt=rule,
            seed=1,
            deterministic=False,
        )
        task = Task(id="t", prompt=user_prompt(QUESTION))
        (group,) = await worker.run(RolloutRequest(tasks=[task], step=0, plan=RolloutPlan(group_size=1)))
        await worker.close()
        return group.rollouts[0]

    return asyncio.run(play())


def read(messages: list[dict[str, str]], tool: EchoTool, rule: SystemPrompt) -> Example:
    conversation, problems = read_row(json.loads(json.dumps({"messages": messages})), "f.jsonl", 1)
    assert conversation is not None, problems
    encoder = TraceEncoder(
        ENCODER, STEP, tools=["python"], prompt=lambda task: make_prompt(task, STEP, [tool.schema], rule)
    )
    (example,) = encoder.examples(conversation)
    return example


def tokens(encoder: Encoder, rollout: Rollout) -> tuple[list[int], list[int]]:
    """Ids and mask of a rollout, with the end of sequence that SFT puts after every reply."""
    ids = list(chain.from_iterable(segment.token_ids for segment in rollout.segments))
    mask = list(chain.from_iterable([int(segment.is_sampled)] * len(segment) for segment in rollout.segments))
    if ids[-1] != encoder.eos_id:  # the closing tag of the answer ended it
        ids, mask = [*ids, encoder.eos_id], [*mask, 1]
    return ids, mask


@pytest.mark.parametrize("rule", list(SystemPrompt))
@pytest.mark.parametrize("name", list(TRACES))
def test_a_played_trace_read_by_sft_gives_the_same_ids_and_mask(name: str, rule: SystemPrompt) -> None:
    tool = echo_tool("python")
    rollout = played(TRACES[name], tool, rule)
    assert rollout.valid
    ids, mask = tokens(ENCODER, rollout)
    response = rollout.response.removesuffix(ENCODER.tokenizer.eos_token)
    user = {"role": "user", "content": QUESTION}
    example = read([user, {"role": "assistant", "content": response}], tool, rule)
    assert list(example.token_ids) == ids
    assert list(example.trained) == mask


@pytest.mark.parametrize("name", list(TRACES))
def test_results_as_turns_of_their_own_give_the_same_ids_and_mask(name: str) -> None:
    tool = echo_tool("python")
    rollout = played(TRACES[name], tool, SystemPrompt.AUTO)
    messages = [{"role": "user", "content": QUESTION}]
    for turn, text in enumerate(TRACES[name]):
        messages.append({"role": "assistant", "content": text})
        messages += [{"role": "tool", "content": call.text} for call in rollout.tool_calls if call.turn == turn]
    example = read(messages, tool, SystemPrompt.AUTO)
    assert (list(example.token_ids), list(example.trained)) == tokens(ENCODER, rollout)
