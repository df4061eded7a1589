"""What each client does in the tests of the gateway, how the engine replies to it, and what becomes of it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from core.tests.rollout.gateway.conftest import LARGE

from ramet.rollout.gateway.session import SessionLimits
from ramet.testing.doubles import Reply

SUM = "The sum is 10."


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def results_in(prompt: str) -> list[str]:
    """The results of tools in a prompt, in order."""
    return re.findall(r"<tool_response>\n(.*?)\n</tool_response>", prompt, re.DOTALL)


def calculator(prompt: str) -> str:
    """Two calls in one turn, then one that needs their results, then a text with thoughts."""
    results = results_in(prompt)
    if not results:
        return f"I add.\n{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}"
    if len(results) == 2:
        return call("add", a=int(results[0]), b=int(results[1]))
    return f"<think>\nEasy.\n</think>\n\nThe sum is {results[2]}."


def team(prompt: str) -> str:
    """Two tools, then a handoff to the second agent, which answers."""
    if "You speak." in prompt:
        return "Yes." if "Are you sure?" in prompt else "It is 10."
    results = results_in(prompt)
    if not results:
        return f"I add.\n{call('add', a=1, b=2)}\n{call('multiply', a=3, b=4)}"
    return call("transfer_to_speaker")


def family(prompt: str) -> str:
    """An agent that asks two others at the same time."""
    results = results_in(prompt)
    if "You are the boss." in prompt:
        if results:
            return f"They say {' and '.join(results)}."
        return f"{call('ask_ann', input='1 + 2?')}\n{call('ask_bob', input='1 + 2?')}"
    return f"{results[0]}!" if results else call("add", a=1, b=2)


def counter(prompt: str) -> str:
    return "one more" if "And one more." in prompt else f"counted to {re.findall('Count to (.)', prompt)[0]}"


def unsteady() -> Callable[[str], Reply | str]:
    """An engine that fails at first, and is slow at the first request of each later question."""
    seen: set[str] = set()

    def script(prompt: str) -> Reply | str:
        question = next(one for one in ("Slow again", "Slow", "First") if f"{one}?" in prompt)
        if question in seen:
            return f"{question}, again"
        seen.add(question)
        return Reply(text="", fails="down") if question == "First" else Reply(text=f"{question}, once", rest_s=1.5)

    return script


def forgetful(prompt: str) -> str:
    """A calculator that is asked to sum up, and then begins again from its summary."""
    if "So far: 3 and 7." in prompt:
        return SUM
    return "3 and 7" if "Sum up." in prompt else calculator(prompt)


def doubtful(prompt: str) -> str:
    """Its first answer is changed by the client."""
    return "Yes." if "It is 10." in prompt else "It is 11."


def slow_end(prompt: str) -> Reply | str:
    """The second request takes longer than its client lives."""
    return Reply(text=SUM, rest_s=1.0) if results_in(prompt) else call("add", a=1, b=2)


def large(prompt: str) -> str:
    """One of the calls fails."""
    results = results_in(prompt)
    if not results:
        return f"I add.\n{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}"
    return f"{results[0]}, {'an error' if results[1].startswith('Error') else results[1]}"


def smol(prompt: str) -> str:
    """`final_answer` is a tool of the package, which writes calls and results as texts."""
    if "So far: 10." in prompt or "Observation:\n3\n7" in prompt:
        return call("final_answer", answer="10")
    if "Observation:\n4\n7" in prompt:
        return call("final_answer", answer="11")
    return f"I add.\n{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}"


def by_call(script: Callable[[str], Reply | str], write: Callable[[str], str]) -> Callable[[str], Reply | str]:
    """What the script says, in the call by which a client's agent answers."""

    def wrapped(prompt: str) -> Reply | str:
        said = script(prompt)
        return write(said) if isinstance(said, str) else replace(said, text=write(said.text))

    return wrapped


SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo"


def sheller(prompt: str) -> str:
    """`mini-swe-agent` submits by a command."""
    if "So far: 3 and 7." in prompt or "I sum." in prompt or len(results_in(prompt)) == 2:
        return call("bash", command=f"{SUBMIT} 10")
    return f"I add.\n{call('bash', command='echo $((1 + 2))')}\n{call('bash', command='echo $((3 + 4))')}"


def sheller_in_text(prompt: str) -> str:
    command = f"{SUBMIT} 10" if "<output>\n10" in prompt else "echo $((3 + 7))"
    return f"I add.\n```mswea_bash_command\n{command}\n```"


def sheller_slow(prompt: str) -> Reply | str:
    return Reply(text=call("bash", command=f"{SUBMIT} 10"), rest_s=1.0) if results_in(prompt) else sheller(prompt)


def codex(prompt: str) -> str:
    """Codex asks for a summary with a text of its own, and begins again with another before that."""
    question = prompt.rpartition("<|im_start|>user\n")[2]
    if "CONTEXT CHECKPOINT" in question:
        return "3 and 7"
    if "Are you sure?" in question:
        return "Yes."
    if len(results_in(prompt)) == 2 or "3 and 7" in prompt:
        return SUM
    return f"I add.\n{call('exec_command', cmd='echo $((1 + 2))')}\n{call('exec_command', cmd='echo $((3 + 4))')}"


def codex_slow(prompt: str) -> Reply | str:
    return Reply(text=SUM, rest_s=1.0) if results_in(prompt) else codex(prompt)


def coder(prompt: str) -> str:
    if prompt.count("<|im_start|>assistant") > 1:
        return "Thought: I know it.\n<code>\nfinal_answer(10)\n</code>"
    return "Thought: I add.\n<code>\nprint(add(add(1, 2), add(3, 4)))\n</code>"


def smol_slow(prompt: str) -> Reply | str:
    return (
        Reply(text=call("final_answer", answer="3"), rest_s=1.0)
        if "Observation:\n3" in prompt
        else call("add", a=1, b=2)
    )


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What a client does, and what becomes of it."""

    returned: Any
    turns: int = 3
    threads: int = 1
    script: Callable[[str], Reply | str] = calculator
    limits: SessionLimits = LARGE


COMPACTED = Scenario(script=forgetful, returned=SUM, turns=5, threads=2)
EDITED = Scenario(script=doubtful, returned="Yes.", turns=2, threads=2)
KILLED = Scenario(script=slow_end, returned=-signal.SIGKILL, turns=2)
TEAM = Scenario(script=team, returned=["Speaker", "It is 10."], turns=3, threads=2)


def retried() -> Scenario:
    return Scenario(script=unsteady(), returned=["First, again", "Slow, once"], turns=2, threads=2)


SCENARIOS: dict[str, dict[str, Scenario]] = {
    "openai": {
        "chat": Scenario(returned=SUM),
        "chat_stream": Scenario(returned=SUM),
        "responses": Scenario(returned=SUM),
        "responses_stream": Scenario(returned=SUM),
        "responses_previous": Scenario(returned=SUM),
        "errors": Scenario(
            turns=1,
            limits=SessionLimits(max_turns=1, max_tokens=1000),
            script=lambda prompt: "Hello.",
            returned=[
                [400, "BadRequestError", "n", None],
                [400, "BadRequestError", "logit_bias", None],
                [400, "BadRequestError", "text.format", None],
                [400, "BadRequestError", "tools[0].type", None],
                [404, "NotFoundError", "previous_response_id", "previous_response_not_found"],
                [404, "NotFoundError", "response_id", None],
                [400, "BadRequestError", None, "context_length_exceeded"],
                [400, "BadRequestError", None, "context_length_exceeded"],
                [401, "AuthenticationError", None, "invalid_api_key"],
                [401, "AuthenticationError", None, "invalid_api_key"],
            ],
        ),
        "retries": Scenario(
            script=unsteady(), returned=["First, again", "Slow, once", "Slow again, once"], turns=3, threads=3
        ),
        "parallel": Scenario(script=counter, returned=['"one more"'] * 4, turns=8, threads=4),
        "completions": Scenario(
            script=lambda prompt: " look up\nObservation: none",
            returned=[" look up", "stop"],
        ),
        "compaction": COMPACTED,
        "edited": EDITED,
        "killed": KILLED,
    },
    "anthropic": {
        "messages": Scenario(returned=["thinking", "text", "end_turn", SUM]),
        "messages_stream": Scenario(returned=["thinking", "text", "end_turn", SUM]),
        "events": Scenario(
            turns=1,
            script=lambda prompt: f"<think>hm</think>\n\nI add.\n{call('add', a=1, b=2)}",
            returned=[
                "message_start",
                *("content_block_start", "thinking_delta", "signature_delta", "content_block_stop"),
                *("content_block_start", "text_delta", "content_block_stop"),
                *("content_block_start", "input_json_delta", "content_block_stop"),
                *("message_delta", "message_stop"),
            ],
        ),
        "tool_runner": Scenario(script=large, returned="3, an error", turns=2),
        "count_tokens": Scenario(returned=[True, True], turns=2),
        "stops": Scenario(
            script=lambda prompt: "one STOP two",
            returned=[
                ["stop_sequence", "STOP", "one"],
                ["max_tokens", None, "one"],
                ["end_turn", None, "one STOP two"],
            ],
        ),
        "errors": Scenario(
            turns=1,
            limits=SessionLimits(max_turns=1, max_tokens=1000),
            script=lambda prompt: "Hello.",
            returned=[
                [400, "BadRequestError", "invalid_request_error", "n is not supported"],
                [400, "BadRequestError", "invalid_request_error", "tool_choice.type m"],
                [400, "BadRequestError", "invalid_request_error", "tools[0].type must"],
                [400, "BadRequestError", "invalid_request_error", "messages[0].conten"],
                [400, "BadRequestError", "invalid_request_error", "messages must not "],
                [400, "BadRequestError", "invalid_request_error", "prompt is too long"],
                [400, "BadRequestError", "invalid_request_error", "prompt is too long"],
                [401, "AuthenticationError", "authentication_error", "no session has thi"],
                [401, "AuthenticationError", "authentication_error", "no session has thi"],
            ],
        ),
        "retries": Scenario(
            script=unsteady(), returned=["First, again", "Slow, once", "Slow again, once"], turns=3, threads=3
        ),
        "unavailable": Scenario(
            script=lambda prompt: Reply(text="", fails="down"),
            returned=[503, "ServiceUnavailableError", "api_error"],
            turns=0,
        ),
        "parallel": Scenario(script=counter, returned=["one more"] * 4, turns=8, threads=4),
        "compaction": COMPACTED,
        "edited": EDITED,
        "killed": KILLED,
    },
    "openai-agents": {
        "responses": TEAM,
        "responses_stream": TEAM,
        "chat": TEAM,
        "chat_stream": TEAM,
        "previous_response": TEAM,
        "session": Scenario(script=team, returned=["It is 10.", "Yes.", "It is 10."], turns=7, threads=4),
        "sub_agents": Scenario(script=family, returned="They say 3! and 3!.", turns=6, threads=3),
        "retries": retried(),
        "compaction": COMPACTED,
        "edited": EDITED,
        "killed": KILLED,
    },
    "langgraph": {
        name: Scenario(returned=SUM)
        for name in ("chat", "chat_stream", "responses", "responses_stream", "responses_previous")
    }
    | {
        "parallel": Scenario(script=counter, returned=["one more"] * 4, turns=8, threads=4),
        "retries": retried(),
        "compaction": COMPACTED,
        "edited": EDITED,
        "killed": KILLED,
    },
    "pydantic-ai": {
        "chat": Scenario(returned=SUM),
        "chat_stream": Scenario(returned=SUM),
        "responses": Scenario(returned=[SUM, SUM], turns=4),
        "responses_stream": Scenario(returned=SUM),
        "parallel": Scenario(script=family, returned="They say 3! and 3!.", turns=6, threads=3),
        "retries": retried(),
        "compaction": COMPACTED,
        "edited": EDITED,
        "killed": KILLED,
    },
    "smolagents": {  # it rewrites what the model said, so every turn begins a thread
        "tools": Scenario(script=smol, returned="10", turns=2, threads=2),
        "tools_stream": Scenario(script=smol, returned="10", turns=2, threads=2),
        "code": Scenario(script=coder, returned=10, turns=2, threads=2),
        "parallel": Scenario(script=smol, returned=["10", "10"], turns=4, threads=4),
        "retries": Scenario(
            script=by_call(unsteady(), lambda text: call("final_answer", answer=text)),
            returned=["First, again", "Slow, once"],
            turns=2,
            threads=2,
        ),
        "compaction": Scenario(script=smol, returned="10", turns=3, threads=3),
        "edited": Scenario(script=smol, returned="11", turns=3, threads=3),
        "killed": Scenario(script=smol_slow, returned=-signal.SIGKILL, turns=2, threads=2),
    },
    "mini-swe-agent": {  # it does not stream
        "tools": Scenario(script=sheller, returned="10", turns=2),
        "text": Scenario(script=sheller_in_text, returned="10", turns=2),
        "responses": Scenario(script=sheller, returned="10", turns=2),
        "parallel": Scenario(script=sheller, returned=["10", "10"], turns=4, threads=2),
        "retries": Scenario(
            script=by_call(unsteady(), lambda text: call("bash", command=f"{SUBMIT} '{text}'")),
            returned=["First, again", "Slow, once"],
            turns=2,
            threads=2,
        ),
        "compaction": Scenario(script=sheller, returned="10", turns=2, threads=2),
        "edited": Scenario(script=sheller, returned="10", turns=2, threads=2),
        "killed": Scenario(script=sheller_slow, returned=-signal.SIGKILL, turns=2),
    },
    "ai-sdk": {
        **{name: Scenario(returned=SUM) for name in ("chat", "chat_stream", "responses", "responses_stream")},
        "parallel": Scenario(script=counter, returned=["one more"] * 4, turns=8, threads=4),
        "retries": Scenario(script=unsteady(), returned="First, again", turns=1),
        "compaction": COMPACTED,
        "edited": EDITED,
        "killed": KILLED,
    },
    "codex": {  # it always streams; its history cannot be edited; its request for a summary offers no tools
        "responses_stream": Scenario(script=codex, returned=SUM, turns=2),
        "resume": Scenario(script=codex, returned=[SUM, "Yes."], turns=3),
        "parallel": Scenario(script=codex, returned=[SUM, SUM], turns=4, threads=2),
        "retries": Scenario(script=unsteady(), returned="First, again", turns=1),
        "compaction": Scenario(script=codex, returned=SUM, turns=3, threads=3),
        "killed": Scenario(script=codex_slow, returned=-signal.SIGKILL, turns=2),
    },
}


@dataclass(frozen=True, kw_only=True)
class AgentTurns:
    """The policy's turns where a client is the program of a rollout: of one that answers, and of one that is killed."""

    replies: tuple[str, ...] = (call("add", a=1, b=2), "It is 3.")
    kills: tuple[str, ...] = (call("add", a=0, b=0),)


AGENTS: dict[str, AgentTurns] = {
    "openai": AgentTurns(),
    "anthropic": AgentTurns(),
    "openai-agents": AgentTurns(),
    "langgraph": AgentTurns(),
    "pydantic-ai": AgentTurns(),
    "smolagents": AgentTurns(replies=(call("add", a=1, b=2), call("final_answer", answer="It is 3."))),
    "mini-swe-agent": AgentTurns(
        replies=(call("bash", command="echo $((1 + 2))"), call("bash", command=f"{SUBMIT} It is 3.")),
        kills=(call("bash", command="kill -9 $PPID"),),
    ),
    "ai-sdk": AgentTurns(),
    "codex": AgentTurns(
        replies=(call("exec_command", cmd="echo $((1 + 2))"), "It is 3."),
        kills=(call("exec_command", cmd="kill -9 $PPID"),),
    ),
}
