"""The released schedule beyond its golden values: rounds, masks, ids, failures, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ramet.components.build import Components
from ramet.components.checks import check_needs
from ramet.config.compose import compose
from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.errors import ConfigError, ConfigErrors, InfraError, PluginError
from ramet.models.encoder import Encoder
from ramet.rollout.config import TagsConfig
from ramet.rollout.method import Share
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing import check_branch_policy
from ramet.testing.doubles import Reply, ScriptedEngine, echo_tool, tiny_encoder
from ramet.types import GroupView, Rollout, SegmentKind, Start, StopReason, Task, ToolCall, ToolResult, user_prompt
from ramet_release.entropy import segment_entropy
from ramet_release.method import LockstepMethod
from ramet_release.policy import BranchDraw, LockstepPolicy
from ramet_release.schedule import LockstepBatch

Script = Callable[[str, str, int], Reply | str]
CALL, ANSWER = "<python>1</python>", "<answer>2</answer>"


class Seen(LockstepMethod):
    """Keeps the last batch."""

    last: LockstepBatch

    async def batch(self, share: Share) -> LockstepBatch:
        self.last = await super().batch(share)
        return self.last


class Coin(LockstepPolicy):
    """Copies where the draw is under a half. `only_draw`: the only number that is drawn; None: by the seed."""

    only_draw: float | None = 0.9

    def __init__(self, *, roots: int | None = None, beam_size: int = 2, probe_tokens: int | None = None) -> None:
        self.initial_rollouts, self.beam_size, self.probe_tokens = roots, beam_size, probe_tokens
        self.asked: list[BranchDraw] = []

    def branches(self, attempt: BranchDraw) -> bool:
        self.asked.append(attempt)
        return attempt.draw < 0.5

    def rollout_method(self) -> Seen:
        only = self.only_draw
        return Seen(self, None if only is None else lambda: only)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder()


def worker(encoder: Encoder, script: Script, policy: Coin, **options: Any) -> RolloutWorker:
    """`draws`: the only number that is drawn; `tool`: instead of one that echoes."""
    policy.only_draw, tool = options.pop("draws", 0.9), options.pop("tool", None) or echo_tool()
    given = {"step": Tags(TagsConfig()), "system_prompt": SystemPrompt.NEVER, "seed": 1, "deterministic": False}
    return RolloutWorker(
        engine=ScriptedEngine(script, encoder),
        encoder=encoder,
        branch_policy=policy,
        tools={"python": (tool, ToolConfig(retries=0))},
        config=RolloutConfig(**{"group_size": 4, **options.pop("config", {})}),
        **{**given, **options},
    )


def play(found: RolloutWorker, *names: str, **options: Any) -> list[Rollout]:
    tasks = [Task(id=name, prompt=user_prompt("?")) for name in names]
    groups = asyncio.run(found.run(RolloutRequest(tasks=tasks, step=0, **options)))
    return [rollout for group in groups for rollout in group.rollouts]


def method(found: RolloutWorker) -> Seen:
    assert isinstance(found.method, Seen)
    return found.method


def test_without_tool_calls_sixteen_rollouts_of_eight_roots_take_nine_rounds(encoder: Encoder) -> None:
    found = worker(encoder, lambda *_: ANSWER, Coin(roots=8), config={"group_size": 16})
    play(found, "t")
    assert method(found).last.rounds == 9


def test_a_branch_shares_what_it_was_copied_with_and_fresh_rows_are_roots(encoder: Encoder) -> None:
    found = worker(
        encoder, lambda task, path, turn: CALL if path == "0" and not turn else ANSWER, Coin(roots=1), draws=0.1
    )
    rollouts = play(found, "t")
    assert [(r.id, r.parent, r.fork_turn) for r in rollouts] == [
        ("0", None, None), ("0.0", "0", 1), ("1", None, None), ("2", None, None)
    ]  # fmt: skip
    parent, copy = rollouts[:2]
    assert copy.n_shared == 3 and all(a is b for a, b in zip(parent.segments[:3], copy.segments[:3], strict=True))
    assert [s.text for s in copy.segments[1:]] == [CALL, " <result>\n1\n</result>", ANSWER]
    assert [r.answer for r in rollouts] == ["2"] * 4 and [r.stop for r in rollouts] == [StopReason.END] * 4
    assert [r.stats.get("filled", 0) for r in rollouts] == [0, 0, 1, 1]


def test_the_forced_end_is_trained(encoder: Encoder) -> None:
    found = worker(encoder, lambda *_: CALL, Coin(roots=4), config={"max_tool_calls": 1})
    rollout = play(found, "t")[0]
    assert [(s.kind, s.is_sampled) for s in rollout.segments] == [
        (SegmentKind.PROMPT, False), (SegmentKind.TURN, True), (SegmentKind.RESULT, False),
        (SegmentKind.TURN, True), (SegmentKind.FORCED, True),
    ]  # fmt: skip
    end = rollout.segments[-1]
    assert list(end.token_ids) == [encoder.eos_id] and end.policy_version == 0
    assert list(end.logprobs or ()) == list(end.entropies or ()) == [0.0]
    assert (rollout.stop, len(rollout.tool_calls)) == (StopReason.CALL_LIMIT, 1)


def test_entropies_are_compared_with_the_first_ever_seen_at_a_place(encoder: Encoder) -> None:
    """Also those of another task, another step and a validation."""
    seen = {"first": -1.0, "second": -2.0}

    def script(task: str, path: str, turn: int) -> Reply:
        return Reply(text=ANSWER if turn else CALL, logprob=seen[task])

    policy = Coin(roots=1)
    found = worker(encoder, script, policy, config={"group_size": 3})
    play(found, "first", plan=RolloutPlan(branch=False, group_size=1, salt="valid"))
    n = min(20, len(encoder.markup(CALL)))
    first, second = (segment_entropy([(logprob,)] * n, encoder.vocab_size) for logprob in seen.values())
    assert method(found).base == pytest.approx({0: first})
    play(found, "second")
    assert [a.now for a in policy.asked] == pytest.approx([second, second])
    assert [a.base for a in policy.asked] == pytest.approx([first, second])


def test_a_validation_neither_branches_nor_fills(encoder: Encoder) -> None:
    policy = Coin(roots=1, probe_tokens=50)
    rollouts = play(
        worker(encoder, lambda task, path, turn: ANSWER if turn else CALL, policy, draws=0.1),
        "t",
        plan=RolloutPlan(branch=False, group_size=3, salt="valid"),
    )
    assert [r.id for r in rollouts] == ["0", "1", "2"] and policy.asked == []


def test_a_failed_generation_masks_its_row_alone(encoder: Encoder) -> None:
    found = worker(
        encoder, lambda t, path, turn: Reply(text="", fails="gone") if path == "1" else ANSWER, Coin(roots=4)
    )
    rollouts = play(found, "t")
    assert [r.fault is None for r in rollouts] == [True, False, True, True]
    assert rollouts[1].fault is not None and rollouts[1].fault.where == "engine"
    assert rollouts[1].fault.message == "InfraError: gone"


def test_a_step_that_is_out_of_time_masks_what_is_missing_and_every_copy_has_its_own_id(encoder: Encoder) -> None:
    slow = Reply(text=ANSWER, rest_s=5.0)
    found = worker(encoder, lambda task, *_: slow if task == "slow" else ANSWER, Coin(roots=2))
    rollouts = play(found, "slow", "quick", deadline_s=0.2)
    assert [r.id for r in rollouts] == ["0", "1", "2", "3"] * 2
    assert [r.fault is None for r in rollouts] == [False] * 4 + [True, True, False, False]
    assert {r.fault.where for r in rollouts if r.fault} == {"deadline"}
    assert [r.stats.get("padding", 0) for r in rollouts] == [0, 0, 0, 1] * 2


def test_a_tool_that_raises_or_says_nothing_is_told_to_the_model(encoder: Encoder) -> None:
    for behaviour in ({"error": InfraError("down")}, {"returns": ToolResult(text="")}):
        found = worker(encoder, lambda t, p, turn: ANSWER if turn else CALL, Coin(roots=4), tool=echo_tool(**behaviour))
        rollout = play(found, "t")[0]
        assert rollout.segments[2].text == " <result>\nTool(python) returned empty output.\n</result>"
        assert rollout.fault is None
        assert found.metrics()["tool/python/infra"] == 4


def test_a_tool_that_breaks_the_contract_stops_the_run(encoder: Encoder) -> None:
    found = worker(encoder, lambda *_: CALL, Coin(roots=4), tool=echo_tool(returns=3))
    with pytest.raises(PluginError):
        play(found, "t")


def test_what_follows_an_end_of_sequence_in_a_result_is_neither_rewarded_nor_trained(encoder: Encoder) -> None:
    end = encoder.decode([encoder.eos_id])

    async def tool(call: ToolCall) -> ToolResult:
        return ToolResult(text=f"a{end}b")

    echo = echo_tool(returns=asyncio.run(tool(ToolCall(name="python", arguments={}))))
    rollout = play(worker(encoder, lambda t, p, turn: ANSWER if turn else CALL, Coin(roots=4), tool=echo), "t")[0]
    assert [s.kind for s in rollout.segments] == [SegmentKind.PROMPT, SegmentKind.TURN, SegmentKind.RESULT]
    assert rollout.segments[-1].token_ids[-1] == encoder.eos_id
    assert rollout.response.endswith(f"\na{end}")


def test_the_same_seed_gives_the_same_draws_and_shares_of_a_step_differ(encoder: Encoder) -> None:
    def draws(*names: str) -> list[float]:
        policy = Coin(roots=1)
        play(worker(encoder, lambda t, p, turn: ANSWER if turn else CALL, policy, draws=None), *names)
        return [attempt.draw for attempt in policy.asked]

    assert draws("a", "b") == draws("a", "b")
    assert draws("a")[0] != draws("b")[0]


def test_a_lockstep_policy_keeps_the_contract_of_branch_policies() -> None:
    check_branch_policy(Coin())
    view = GroupView(task=Task(id="t", prompt=()), budget=2, budget_left=2, rollouts=(), vocab_size=1)
    with pytest.raises(ConfigError) as caught:
        Coin(roots=3).decide(Start(), view, None)  # type: ignore[arg-type]
    assert str(caught.value) == "branch_policy.params.initial_rollouts: 3 is more than rollout.group_size, 2"


class OtherStep:
    def system_prompt(self, tools: object) -> str:
        return ""


def test_what_the_protocol_cannot_do_is_refused(encoder: Encoder) -> None:
    tool = echo_tool()
    tool.schema = type(tool.schema)(name="python", description="x", parameters={"type": "object", "properties": {}})
    with pytest.raises(ConfigErrors) as caught:
        worker(encoder, lambda *_: ANSWER, Coin(), step=OtherStep(), tool=tool)
    assert caught.value.problems == [
        "rollout_step: the released schedule has its own turn protocol, with the tags of rollout_step=tags; got "
        "OtherStep",
        "tools.python: the released schedule gives a tool the text between its tags; this one takes other arguments "
        "than one required string",
    ]


def test_what_a_run_cannot_give_is_refused_before_the_start(register: Callable[..., None]) -> None:
    register("branch_policy", "coin", Coin)
    keys = ["model.path=model", "branch_policy=coin", "train.tis_cap=null"]
    config = compose(keys, job="train").config
    assert check_needs(Components(config), config) == []
    config = compose([*keys[:2], "train.staleness=1", "train.old_logprobs=engine"], job="train").config
    sampled = (
        "branch_policy=coin trains ends of sequence that no engine sampled, so the engine has no log-probability of "
        "them"
    )
    assert check_needs(Components(config), config) == [
        "train.staleness=1: branch_policy=coin runs a step after the last one's update; set 0",
        f"train.old_logprobs=engine: {sampled}; set trainer",
        f"train.tis_cap=2.0: {sampled}; set null",
    ]


def test_rounds_cannot_be_shuffled() -> None:
    chosen = ["model.path=m", "branch_policy=shuffled", "branch_policy.params.policy=arpo_release"]
    config = compose(chosen, job="train").config
    with pytest.raises(ConfigError) as caught:
        check_needs(Components(config), config)
    assert str(caught.value) == (
        "branch_policy.params.policy: arpo_release has its own rollout method, which cannot be shuffled; "
        "choose a policy that is asked event by event, such as arpo or aepo"
    )
