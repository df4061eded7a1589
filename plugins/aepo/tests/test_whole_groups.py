"""AEPO in a rollout worker with a scripted engine: the probe, the roots that follow, and where they fork."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ramet import Group, Task, Tool, ToolCall, ToolResult, user_prompt
from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import Reply, ScriptedEngine, echo_tool, tiny_encoder
from ramet_aepo.branching import Aepo
from ramet_aepo.config import AepoConfig


def play(
    entropy: Callable[[str, int], float],
    *,
    group_size: int = 6,
    calls: int = 2,
    tool: Tool | None = None,
    deterministic: bool = True,
    **options: object,
) -> Group:
    """Rollouts of `calls` tool calls and an answer; all tokens of a turn have the entropy that is given."""

    def script(task: str, path: str, turn: int) -> Reply:
        text = "<python>1</python>" if turn < calls else "<answer>2</answer>"
        return Reply(text=text, entropies=(entropy(path, turn),))

    async def main() -> Group:
        encoder = tiny_encoder()
        worker = RolloutWorker(
            engine=ScriptedEngine(script, encoder),
            encoder=encoder,
            step=Tags(TagsConfig()),
            branch_policy=Aepo(AepoConfig(**options)),  # type: ignore[arg-type]
            tools={"python": (tool or echo_tool(), ToolConfig())},
            config=RolloutConfig(group_size=group_size),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=deterministic,
        )
        [group] = await worker.run(RolloutRequest(tasks=[Task(id="t", prompt=user_prompt("?"))], step=0))
        return group

    return asyncio.run(main())


def ids(group: Group) -> list[tuple[str, int | None]]:
    return [(rollout.id, rollout.fork_turn) for rollout in group.rollouts]


def test_an_uncertain_question_makes_all_rollouts_roots() -> None:
    group = play(lambda path, turn: 9.0 if turn == 0 else 0.0)
    assert ids(group) == [(str(i), None) for i in range(6)]


def test_uncertain_results_make_the_probe_the_only_root_and_it_is_forked() -> None:
    """The probe is forked at both of its results once it has ended; then its forks, at the second one, as they come."""
    group = play(lambda path, turn: 9.0 * turn, beta_root=100.0, penalty=0.0)
    assert ids(group) == [("0", None), ("0.0", 1), ("0.0.0", 2), ("0.1", 2), ("1", None), ("2", None)]


def test_the_penalty_spreads_forks_over_paths() -> None:
    """As above, but no turn is forked directly after another one: one fork each of 0, and of the roots that follow."""
    group = play(lambda path, turn: 9.0 * turn, beta_root=100.0, penalty=1.0)
    assert ids(group) == [("0", None), ("0.0", 1), ("1", None), ("2", None), ("3", None), ("4", None)]


def test_without_tools_half_are_roots_and_the_rest_follows() -> None:
    assert ids(play(lambda path, turn: 1.0, calls=0)) == [(str(i), None) for i in range(6)]


def test_roots_that_start_early_count() -> None:
    group = play(lambda path, turn: 9.0 * turn, early_roots=2, beta_root=100.0, penalty=0.0)
    assert ids(group) == [("0", None), ("0.0", 1), ("1", None), ("1.0", 1), ("2", None), ("2.0", 1)]


def test_a_fixed_number_of_roots_forks_as_it_goes() -> None:
    group = play(lambda path, turn: 2.0 if (path, turn) == ("1", 2) else 1.0, dynamic=False, initial_rollouts=2)
    assert ids(group) == [("0", None), ("1", None), ("1.0", 2), ("2", None), ("3", None), ("4", None)]


class CallCounter:
    """A tool whose state is the number of its rollout's calls."""

    schema = echo_tool().schema
    forks = "copy"

    def __init__(self) -> None:
        self.open_states = 0

    async def open(self, task: Task, seed: int) -> list[int]:
        self.open_states += 1
        return [0]

    async def fork(self, state: list[int]) -> list[int]:
        self.open_states += 1
        return list(state)

    async def close(self, state: list[int]) -> None:
        self.open_states -= 1

    async def __call__(self, call: ToolCall) -> ToolResult:
        call.state[0] += 1
        return ToolResult(text=str(call.state[0]))


@pytest.mark.parametrize("deterministic", [True, False])
def test_forks_of_the_ended_probe_have_the_state_of_their_turn(deterministic: bool) -> None:
    tool = CallCounter()
    group = play(lambda path, turn: 9.0 * turn, tool=tool, deterministic=deterministic, beta_root=100.0, penalty=0.0)
    assert {("0.0", 1), ("0.1", 2)} <= set(ids(group))
    assert [[call.text for call in rollout.tool_calls] for rollout in group.rollouts] == [["1", "2"]] * 6
    assert tool.open_states == 0
