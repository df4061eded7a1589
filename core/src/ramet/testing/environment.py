"""Check of the states of rollout steps: forks are independent of their originals, and every state can be closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramet.testing.expect import expect
from ramet.testing.step_play import SEED, Play, StepUnderTest, begin, go_on, play
from ramet.types import StepResult


async def check_states(subject: StepUnderTest, scripts: Sequence[Sequence[str]]) -> None:
    """Play each script twice, and again with a fork after its first turn."""
    step: Any = subject.step
    for script in scripts:
        alone, again = [(await play(subject, script)).results for _ in range(2)]
        expect(
            alone == again or step.forks != "replay",
            f"two states of the same task and seed went two ways where the policy wrote {script}: a replay cannot work;"
            " draw only from the seed that open is given",
        )
        if step.forks == "copy" and alone == again and alone[0].stop is None:
            await _check_fork(subject, script, alone, fork_first=False)
            await _check_fork(subject, script, alone, fork_first=True)


async def _check_fork(
    subject: StepUnderTest, script: Sequence[str], alone: list[StepResult], *, fork_first: bool
) -> None:
    """After one turn, the fork and its original go on in turn; each must play what a rollout alone plays."""
    step: Any = subject.step
    state = await step.open(subject.task, SEED)
    original = Play(script, environment=state)
    await begin(subject, original)
    await go_on(subject, original, n_turns=1)
    copy = await step.fork(state)
    expect(copy is not None, "fork returned None: return a copy of the state")
    expect(copy is not state, "fork returned the state itself: return an independent copy")
    fork = Play([*script[1:], script[-1]], environment=copy)
    fork.response, fork.calls, fork.stops = original.response, list(original.calls), list(original.stops)
    for one in (fork, original) if fork_first else (original, fork):
        before = len(one.results)
        await go_on(subject, one, first_turn=1)
        await step.close(one.environment)
        expect(
            one.results[before:] == alone[1:],
            f"{'the original' if one is original else 'a fork'} went another way than a rollout alone after the other "
            "had gone on and was closed: fork must copy everything that the state holds",
        )
