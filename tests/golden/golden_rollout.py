"""Adapters of `rollout.json` and of the release's rules: the lockstep method with the released branch policies.

The values come from a scripted engine and a tokenizer with one token per character, which are set up again here.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from golden_adapter import Adapter
from golden_cases import Case

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.engines.protocol import Capability, Completion, EngineInfo, FinishReason, FirstReport, Request
from ramet.models.encoder import Encoder
from ramet.plugins import load_plugins
from ramet.rollout.config import TagsConfig
from ramet.rollout.method import Share
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.types import CallStatus, Group, Message, StopReason, Task, ToolCall, ToolResult, ToolSchema, user_prompt
from ramet_release.entropy import segment_entropy
from ramet_release.method import LockstepMethod
from ramet_release.policy import BranchDraw
from ramet_release.rows import LockstepRow, n_attended
from ramet_release.schedule import LockstepBatch

EOS, VOCABULARY = 1, 200
DEFAULT = [0.9] + [0.01] * 9  # the probabilities of every token whose script names none
AFTER_LAST = 0.99  # what `random.random()` gave when the list of draws was used up
FINISH = {"eos": FinishReason.END, "length": FinishReason.LENGTH}


class Characters:
    """One token per character, its code point. Both tokenizer and encoder."""

    vocab_size, eos_id, end_of_turn_id, eos_ids = VOCABULARY, EOS, EOS, (EOS,)

    def __init__(self) -> None:
        self.tokenizer = self

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def markup(self, text: str) -> array[int]:
        return array("i", self.encode(text))

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> array[int]:
        return self.markup("".join(message.content for message in messages))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


@dataclass(eq=False)
class ScriptedRounds:
    """Gives each request of a round the next entry of the script. Requests that come together are one call."""

    script: list[dict[str, Any]]
    info: EngineInfo = field(
        default_factory=lambda: EngineInfo(
            name="scripted", capabilities=frozenset(Capability), vocab_size=VOCABULARY, max_tokens=100_000
        )
    )
    calls: list[dict[str, Any]] = field(default_factory=list)
    together: list[tuple[Request, asyncio.Future[Completion]]] = field(default_factory=list)

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        loop = asyncio.get_running_loop()
        if not self.together:
            loop.call_soon(self._answer)
        self.together.append((request, loop.create_future()))
        return await self.together[-1][1]

    def _answer(self) -> None:
        given = [self.script.pop(0) for _ in self.together]
        sampling = self.together[0][0].sampling
        requests = [
            {"prompt": shown(request.token_ids), "scripted": said}
            for (request, _), said in zip(self.together, given, strict=True)
        ]
        self.calls.append(
            {
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "stop": list(sampling.stop),
                "logprobs": self.together[0][0].top_logprobs,
                "requests": requests,
            }
        )
        for (request, future), said in zip(self.together, given, strict=True):
            future.set_result(completion(request, said))
        self.together = []


def completion(request: Request, said: dict[str, Any]) -> Completion:
    ids = [ord(character) for character in said["text"]] + [EOS] * (said["finish"] == "eos")
    stop = said["finish"] if said["finish"] in request.sampling.stop else None
    top = tuple(math.log(p) for p in said.get("p", DEFAULT))
    return Completion(
        token_ids=array("i", ids),
        logprobs=array("f", [top[0]] * len(ids)),
        entropies=array("f", [1.0] * len(ids)),
        finish=FinishReason.STOP if stop else FINISH[said["finish"]],
        stop=stop,
        policy_versions=array("i", [0] * len(ids)),
        prompt_tokens=len(request.token_ids),
        cached_tokens=0,
        top_logprobs=(top,) * min(len(ids), request.first_tokens),
    )


@dataclass(eq=False)
class FakeTool:
    """`R(x)` for `x`, or what the step's replies say."""

    name: str
    replies: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    @property
    def schema(self) -> ToolSchema:
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return ToolSchema(name=self.name, description="Replies.", parameters=parameters)

    async def __call__(self, call: ToolCall) -> ToolResult:
        text = call.arguments["text"]
        self.log.append(text)
        reply = self.replies.get(text, f"R({text})")
        if reply == "RAISE":
            raise RuntimeError("the tool was told to raise")
        return ToolResult(text=reply)


def played(algorithm: str) -> Callable[[Any], list[Any]]:
    """A scenario: its steps are played by one worker, one after the other."""

    def run(given: dict[str, Any]) -> list[Any]:
        return asyncio.run(_steps(algorithm, given["config"], given["steps"]))

    return run


class Seen(LockstepMethod):
    """Keeps the last batch as it was played: what training gets of it is cut."""

    last: LockstepBatch

    async def play(self, share: Share) -> list[Group]:
        self.last = await self.batch(share)
        return []


async def _steps(algorithm: str, config: dict[str, Any], steps: Sequence[dict[str, Any]]) -> list[Any]:
    encoder, tools = cast(Encoder, Characters()), [FakeTool(name) for name in config["tools"]["tool_instances"]]
    draws: list[float] = []
    consumed: list[float] = []

    def draw() -> float:
        consumed.append(draws.pop(0) if draws else AFTER_LAST)
        return consumed[-1]

    engine = ScriptedRounds([])
    retries = config["tools"]["retry_count"] - 1
    chosen = policy(algorithm, config)
    method = Seen(chosen, draw)
    chosen.rollout_method = lambda: method
    worker = RolloutWorker(
        engine=engine,
        encoder=encoder,
        step=Tags(TagsConfig()),
        branch_policy=chosen,
        tools={tool.name: (tool, ToolConfig(retries=retries)) for tool in tools},
        config=RolloutConfig(
            group_size=config["n"],
            max_response_tokens=config["response_length"],
            max_tool_calls=config["tools"]["call_limit"],
        ),
        system_prompt=SystemPrompt.NEVER,
        seed=1,
        deterministic=False,
    )
    found = []
    for number, step in enumerate(steps):
        draws[:], consumed[:], engine.script[:], engine.calls[:] = step["draws"], [], step["script"], []
        for tool in tools:
            tool.replies, tool.log[:] = step.get("replies", {}), []
        tasks = [Task(id=str(i), prompt=user_prompt(text)) for i, text in enumerate(step["prompts"])]
        await worker.run(RolloutRequest(tasks=tasks, step=number, plan=plan(config, step.get("meta", {}))))
        batch = method.last
        rows = in_order(batch.rows)
        shown_rows = [seen(row, config["response_length"]) for row in rows]
        checked(batch, shown_rows, rows)
        result = {
            "random_draws_consumed": list(consumed),
            "engine_calls": list(engine.calls),
            "script_left": len(engine.script),
            "tool_log": {tool.name: list(tool.log) for tool in tools},
            "rows": shown_rows,
            "metrics": metrics(rows, [tool.name for tool in tools]),
            "initial_entropy_dict": {str(place): entropy for place, entropy in method.base.items()},
        }
        found.append(result)
    return found


def policy(algorithm: str, config: dict[str, Any]) -> Any:
    entry = load_plugins().get("branch_policies", f"{algorithm}_release")
    assert entry.config is not None
    options = {name: config[name] for name in ("beam_size", "branch_probability", "entropy_weight")}
    dynamic = {"enable_dynamic_rollouts": config["enable_dynamic_rollouts"]} if algorithm == "aepo" else {}
    roots = None if dynamic.get("enable_dynamic_rollouts") else config["initial_rollouts"]
    return entry.build(entry.config(**options, **dynamic, initial_rollouts=roots))


def plan(config: dict[str, Any], meta: dict[str, Any]) -> RolloutPlan:
    """A validation samples as `val_kwargs` say, one rollout per prompt; without `do_sample` it is greedy."""
    if not meta:
        return RolloutPlan()
    temperature = config["val_kwargs"]["temperature"] if meta["do_sample"] else 0
    top_p = config["val_kwargs"]["top_p"] if meta["do_sample"] else 1.0
    return RolloutPlan(group_size=1, branch=False, temperature=temperature, top_p=top_p, salt="valid")


def in_order(rows: Sequence[LockstepRow]) -> list[LockstepRow]:
    return sorted(rows, key=lambda row: (row.prompt, row.index))


def seen(row: LockstepRow, response_length: int) -> dict[str, Any]:
    """A row as the release returns it: its tokens, and the masks of loss and attention."""
    response = row.live.segments[1:]
    ids = [token for segment in response for token in segment.token_ids]
    ends = EOS in ids
    attended = n_attended(response, (EOS,))
    sampled = [segment.is_sampled for segment in response for _ in segment.token_ids]
    mask = [int(one and place < attended) for place, one in enumerate(sampled)]
    return {
        "text": shown(ids),
        "n_tokens": len(ids),
        "loss_mask": "".join(map(str, mask)),
        "attention_sum": attended if ends else response_length,
        "loss_mask_sum": sum(mask),
    }


def checked(batch: LockstepBatch, seen_rows: Sequence[dict[str, Any]], rows: Sequence[LockstepRow]) -> None:
    """What training gets of the rows has the same trained tokens."""
    trained = [
        sum(len(segment) for segment in rollout.segments if segment.is_sampled)
        for group in batch.groups()
        for rollout in group.rollouts
    ]
    by_path = sorted(range(len(rows)), key=lambda i: (rows[i].prompt, rows[i].live.path))
    assert trained == [seen_rows[i]["loss_mask_sum"] for i in by_path], "the groups differ from the rows"


def metrics(rows: Sequence[LockstepRow], tools: Sequence[str]) -> dict[str, float]:
    """The release's counts. Its times are left out of the values."""
    calls = [call for row in rows for call in row.live.tool_calls if call.turn >= (row.live.fork_turn or 0)]
    good = [call.status is CallStatus.OK for call in calls]
    retries = [call.attempts - ok for call, ok in zip(calls, good, strict=True)]
    found = {
        "tools/total_calls": len(calls),
        "tools/successful_calls": sum(good),
        "tools/failed_calls": len(calls) - sum(good),
        "tools/max_retries": max(retries, default=0),
        "tools/total_retries": sum(retries),
        "tools/call_limit_reached_count": sum(row.live.stop is StopReason.CALL_LIMIT for row in rows),
    }
    for name in tools:
        own = [ok for call, ok in zip(calls, good, strict=True) if call.name == name]
        found[f"tools/{name}/calls"] = len(own)
        found[f"tools/{name}/success_rate"] = sum(own) / len(own) if own else 0
    return found


def shown(ids: Sequence[int]) -> str:
    return "".join("<eos>" if token == EOS else chr(token) for token in ids)


def rollout_entropy(given: dict[str, Any]) -> float:
    top = [[float(one) for one in token] for token in given["per_token_top_logprobs"]]
    return segment_entropy(top[: given["max_tokens_used"]], given["vocab_size"])


def branch(algorithm: str) -> Callable[[Any], dict[str, Any]]:
    def run(given: dict[str, Any]) -> dict[str, Any]:
        entry = load_plugins().get("branch_policies", f"{algorithm}_release")
        assert entry.config is not None
        rule = cast(
            Any, entry.build(entry.config(**{name: given[name] for name in ("branch_probability", "entropy_weight")}))
        )
        attempt = BranchDraw(
            draw=given["u"],
            now=float(given["entropy_now"]),
            base=float(given["entropy_init"]),
            consecutive=given.get("consecutive", 0),
        )
        return {"score": rule.score(attempt), "branch": rule.branches(attempt)}

    return run


def aepo_initial_rollouts(given: dict[str, Any]) -> int:
    entry = load_plugins().get("branch_policies", "aepo_release")
    assert entry.config is not None
    rule = cast(Any, entry.build(entry.config(enable_dynamic_rollouts=True)))
    return int(rule.monitored_roots(given["n"], given["h_root"], given["step_entropies"]))


def is_installed(algorithm: str) -> Callable[[Case], bool]:
    return lambda case: f"{algorithm}_release" in load_plugins().registries.branch_policies


ADAPTERS = {
    "rollout_entropy": Adapter(run=rollout_entropy),
    "arpo_branch": Adapter(run=branch("arpo"), covers=is_installed("arpo")),
    "aepo_branch": Adapter(run=branch("aepo"), covers=is_installed("aepo")),
    "aepo_initial_rollouts": Adapter(run=aepo_initial_rollouts, covers=is_installed("aepo")),
    "rollout.arpo": Adapter(run=played("arpo"), covers=is_installed("arpo")),
    "rollout.aepo": Adapter(run=played("aepo"), covers=is_installed("aepo")),
}
