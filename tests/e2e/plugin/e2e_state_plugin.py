"""A task that cannot be done without the interpreter's variables: the reward is what they added up to.

In each turn the program adds the turn's number of even bytes to a list that earlier programs of the rollout left. What
the reward saw is written to the file `E2E_STATE_LOG`, a line a rollout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ramet import (
    Markup,
    Register,
    Reward,
    Rollout,
    RolloutState,
    RolloutStep,
    StepContext,
    StepResult,
    StopReason,
    ToolCall,
    ToolSchema,
    Untrusted,
    hookimpl,
)

ramet_contract = "1"
TURNS = 4
STOPS = tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")  # about four bytes a turn
PROGRAM = "trail = globals().get('trail', []) + [({turn}, {bytes})]\n' '.join(f'{{t}}:{{b}}' for t, b in trail)"


class AddingTurns:
    """Four turns of a few bytes, with a program after each."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        said = await ctx.generate(stop=STOPS)
        program = PROGRAM.format(turn=state.turn, bytes=list(said.text.encode()))
        result = await ctx.call_tool(ToolCall(name="python", arguments={"code": program}))
        if said.finished or said.truncated or state.turn + 1 == TURNS:
            return StepResult(stop=StopReason.END)
        length = str(len(result.text))
        return StepResult(insert=(Markup(text="<result>"), Untrusted(text=length), Markup(text="</result>")))


class EvenOfTrail:
    """The share of even bytes among all that the last program knew of."""

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        with open(os.environ["E2E_STATE_LOG"], "a") as log:
            for one in group:
                turns = [[s.turn, list(s.text.encode())] for s in one.segments if s.is_sampled]
                calls = [call.text for call in one.tool_calls]
                print(json.dumps({"id": one.id, "fork_turn": one.fork_turn, "turns": turns, "calls": calls}), file=log)
        return [self.score(one.tool_calls[-1].text) for one in group]

    def score(self, trail: str) -> float:
        known = [
            int(byte) for turn in trail.split("] ") for byte in turn.partition("[")[2].strip("]").split(", ") if byte
        ]
        return sum(byte % 2 == 0 for byte in known) / max(1, len(known))


@hookimpl
def register_rollout_steps(register: Register[RolloutStep]) -> None:
    register("e2e_adding", AddingTurns)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("e2e_trail", EvenOfTrail)
