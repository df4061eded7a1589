"""A conversation is the messages of its rollouts, whatever the rollout step makes of results."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.models.encoder import Encoder
from ramet.play.talk import Talk
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import HermesConfig, TagsConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.steps.hermes import Hermes
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing.chat_templates import chat_encoder
from ramet.testing.doubles import ScriptedEngine, echo_tool, tiny_encoder
from ramet.types import Message, Rollout, RolloutStep, StopReason, Task

CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "1"}}\n</tool_call>'


def ask(
    talk: Talk, question: str, turns: Sequence[str], *, step: RolloutStep, encoder: Encoder, **limits: Any
) -> Rollout:
    async def main() -> Rollout:
        worker = RolloutWorker(
            engine=ScriptedEngine(lambda task, path, turn: turns[turn], encoder),
            encoder=encoder,
            step=step,
            branch_policy=NoBranching(),
            tools={"echo": (echo_tool("echo"), ToolConfig())},
            config=RolloutConfig(**limits),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=False,
            tools_in_template=isinstance(step, Hermes),
            observer=talk,
        )
        prompt = talk.prompt(Message(role="user", content=question))
        talk.begin(prompt)
        task = Task(id="play", prompt=prompt)
        (group,) = await worker.run(RolloutRequest(tasks=[task], step=0, plan=RolloutPlan(group_size=1)))
        await worker.close()
        return group.rollouts[0]

    return asyncio.run(main())


def said(talk: Talk) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in talk.prompt(Message(role="user", content="last"))[:-1]]


def test_turns_calls_and_results_are_messages_of_the_next_prompt() -> None:
    out, encoder = io.StringIO(), chat_encoder("qwen2.5")
    talk, step = Talk(out=out), Hermes(HermesConfig())
    first = ask(talk, "One?", [f"{CALL}\n<tool_call>\nx\n</tool_call>", "It is 1."], step=step, encoder=encoder)
    assert first.stop is StopReason.ANSWER
    messages = said(talk)
    assert [role for role, _ in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[1][1].startswith(CALL) and messages[2][1] == "1" and messages[4][1] == "It is 1."
    assert messages[3][1].startswith("The tool call is not valid JSON")
    second = ask(talk, "And 2?", ["It is 2."], step=step, encoder=encoder)
    shown = encoder.decode(second.segments[0].token_ids)
    before = "".join(encoder.decode(segment.token_ids) for segment in first.segments)
    assert shown == f"{before}\n<|im_start|>user\nAnd 2?<|im_end|>\n<|im_start|>assistant\n"
    assert said(talk)[-2:] == [("user", "And 2?"), ("assistant", "It is 2.")]
    assert out.getvalue().count("with the conversation so far") == 1


def test_results_between_tags_stay_in_the_models_own_message() -> None:
    talk = Talk(out=io.StringIO())
    turns = ["<echo>1</echo>", "<answer>1</answer>"]
    ask(talk, "One?", turns, step=Tags(TagsConfig()), encoder=tiny_encoder())
    reply = "<echo>1</echo> <result>\n1\n</result><answer>1</answer>"
    assert said(talk) == [("user", "One?"), ("assistant", reply)]
    talk.begin()
    assert said(talk) == []


def test_a_result_that_did_not_fit_was_not_said() -> None:
    talk, encoder = Talk(out=io.StringIO()), chat_encoder("qwen2.5")
    n_tokens = len(encoder.markup(CALL)) + 5
    rollout = ask(talk, "One?", [CALL], step=Hermes(HermesConfig()), encoder=encoder, max_response_tokens=n_tokens)
    assert rollout.stop is StopReason.LENGTH
    assert said(talk) == [("user", "One?"), ("assistant", CALL)]
