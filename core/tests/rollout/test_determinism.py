"""In logical order, trees do not depend on timing: same seeds, random latencies of engine and tools, equal groups."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ramet.config.schema import ToolConfig
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.config import RandomBranchConfig
from ramet.rollout.keys import stable_seed
from ramet.testing.doubles import Reply, echo_tool
from ramet.types import BranchAction, BranchEvent, FirstTokens, Fork, GroupView, Idle, Start, StartRoots

Play = Callable[..., Any]


class Greedy:
    """Forks wherever the first entropy is high, as long as there is budget: arrival decides who gets the last of it.

    Keeps what it saw, so that views can be compared too.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[BranchEvent, GroupView, float]] = []

    def decide(self, event: BranchEvent, group: GroupView, rng: random.Random) -> list[BranchAction]:
        self.seen.append((event, group, rng.random()))
        match event:
            case Start():
                return [StartRoots(n=3)]
            case FirstTokens(turn=turn) if turn and event.entropies[0] > 0.3:
                return [Fork(rollout=event.rollout, turn=turn, n=min(group.budget_left, 1 + (rng.random() < 0.5)))]
            case Idle():
                return [StartRoots(n=1)]
        return []


def scripted(timing: random.Random) -> Callable[[str, str, int], Reply]:
    """Texts, lengths and entropies depend on the branch path alone; latencies on `timing`."""

    def script(task: str, path: str, turn: int) -> Reply:
        own = random.Random(stable_seed(task, path, turn))
        calls = turn < own.choice([2, 3, 4])
        text = f"<python>{path} {turn} {own.random()}</python>" if calls else f"<answer>{own.random()}</answer>"
        entropy = round(own.random(), 3)
        return Reply(text=text, entropies=(entropy,), first_s=timing.random() / 100, rest_s=timing.random() / 100)

    return script


def tree(played: Any) -> list[Any]:
    return [
        (
            r.id,
            r.parent,
            r.fork_turn,
            r.stop,
            r.answer,
            [list(s.token_ids) for s in r.segments],
            [c.text for c in r.tool_calls],
        )
        for r in played.rollouts
    ]


def run(play: Play, make_task: Any, timing_seed: int, policy: Any, *, deterministic: bool) -> Any:
    timing = random.Random(timing_seed)
    tools = {"python": (echo_tool(delay_s=lambda call: timing.random() / 30), ToolConfig())}
    return play(
        scripted(timing),
        tasks=[make_task(f"t{i}") for i in range(3)],
        policy=policy,
        tools=tools,
        group_size=6,  # tight: who comes first gets the last fork
        max_concurrent=16,
        deterministic=deterministic,
    )


@pytest.mark.parametrize(
    "policy", [Greedy, lambda: RandomBranching(RandomBranchConfig(initial_rollouts=3, probability=0.7))]
)
def test_random_latencies_change_nothing_in_a_deterministic_run(play: Play, make_task: Any, policy: Any) -> None:
    policies = [policy() for _ in range(4)]
    played = [run(play, make_task, seed, one, deterministic=True) for seed, one in enumerate(policies)]
    assert all(tree(other) == tree(played[0]) for other in played)
    assert any(rollout.parent for rollout in played[0].rollouts)
    seeds = [sorted((r.id, r.seed) for r in one.engine.requests) for one in played]
    assert all(other == seeds[0] for other in seeds)


def test_events_views_and_draws_are_the_same_too(play: Play, make_task: Any) -> None:
    def by_task(policy: Greedy) -> dict[str, Any]:
        return {id: [seen for seen in policy.seen if seen[1].task.id == id] for id in ("t0", "t1", "t2")}

    first, second = Greedy(), Greedy()
    run(play, make_task, 1, first, deterministic=True)
    run(play, make_task, 2, second, deterministic=True)
    assert by_task(first) == by_task(second)


def test_views_hold_nothing_that_is_logically_later(play: Play, make_task: Any) -> None:
    policy = Greedy()
    run(play, make_task, 3, policy, deterministic=True)
    asked = [(event, view) for event, view, _ in policy.seen if isinstance(event, FirstTokens)]
    assert asked
    for event, view in asked:
        assert max(len(rollout.turns) - 1 for rollout in view.rollouts) <= event.turn


def test_without_the_gate_arrival_decides(play: Play, make_task: Any) -> None:
    trees = [tree(run(play, make_task, seed, Greedy(), deterministic=False)) for seed in range(4)]
    assert any(other != trees[0] for other in trees)
    assert all(len(one) == 18 for one in trees)


def test_generation_does_not_wait_for_the_gate(play: Play, make_task: Any) -> None:
    """Rollout 0 hangs in its first turn for long; the others play to their end meanwhile."""

    def script(task: str, path: str, turn: int) -> Reply:
        if path == "0" and turn == 0:
            return Reply(text="<answer>late</answer>", first_s=0.4)
        return Reply(text="<python>1</python>" if turn < 3 else "<answer>1</answer>")

    played = play(script, policy=Greedy(), group_size=3, deterministic=True)
    seconds = [rollout.stats["seconds"] for rollout in played.rollouts]
    assert seconds[0] >= 0.4
    assert max(seconds[1:]) < 0.3
