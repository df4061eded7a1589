"""F10: one tool call takes 300 s. A deadline ends it; the other rollouts and the step go on as if nothing had been."""

from __future__ import annotations

import asyncio
import time

import pytest

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.data.sampler import Sampler
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import ScriptedEngine, echo_tool, tiny_encoder
from ramet.types import Task, user_prompt

SHORT_S = 2.0  # instead of the deadlines of a real run
MARGIN_S = 60.0  # of a loaded machine; the call itself takes 300 s
BY_CALL = ["tools.fault_tool.timeout_s=0.5", "tools.fault_tool.retries=0"]
BY_ROLLOUT = ["tools.fault_tool.timeout_s=600", f"rollout.deadline_s={SHORT_S}"]
BY_STEP = ["tools.fault_tool.timeout_s=600", f"rollout.step_deadline_s={SHORT_S}"]


@pytest.fixture(scope="module")
def straggler(workspace) -> str:
    """A rollout of the first step. Next to it: a run in which nothing straggles."""
    workspace.train("undisturbed", steps=1)
    return f"tasks/{Sampler(7, 3, 11).draw(3)[1]}/2"


@pytest.mark.parametrize(
    ("deadline", "where"), [(BY_CALL, "tool:fault_tool"), (BY_ROLLOUT, "deadline"), (BY_STEP, "deadline")]
)
def test_a_training_step_ends_by_the_deadline_and_learns_from_the_other_rollouts(workspace, straggler, deadline, where):
    """F10: the deadline of a call, of a rollout and of a step."""
    name = f"{where.partition(':')[0]}_{deadline[-1].partition('=')[0]}"
    started = time.monotonic()
    workspace.train(name, *deadline, f"tools.fault_tool.params.straggler={straggler}", steps=1)
    assert time.monotonic() - started < SHORT_S + MARGIN_S
    rollouts = {f"{g['task']['id']}/{r['id']}": r for g in workspace.records(name, 1) for r in g["rollouts"]}
    assert {key: r["fault"]["where"] for key, r in rollouts.items() if r["fault"]} == {straggler: where}
    assert rollouts[straggler]["reward"] is None and rollouts[straggler]["advantages"] is None
    masked, undisturbed = workspace.sampled(name, 1), workspace.sampled("undisturbed", 1)
    assert {key for key in undisturbed if masked[key] != undisturbed[key]} == {straggler}
    [line] = workspace.metrics(name)
    assert line["train/grad_norm"] > 0 and line["rollout/masked_share"] == pytest.approx(1 / 12)
    assert line["time/step_s"] < SHORT_S + MARGIN_S


def test_a_straggler_delays_neither_its_group_nor_the_worker_beyond_the_deadline():
    """F10, through the rollout worker alone."""
    encoder = tiny_encoder()
    tool = echo_tool(delay_s=lambda call: 300.0 if call.arguments["text"] == "5" else 0.0)

    def script(task: str, path: str, turn: int) -> str:
        return f"<python>{path}</python>" if turn == 0 else "<answer>2</answer>"

    async def main() -> tuple[list[list[str]], float]:
        worker = RolloutWorker(
            engine=ScriptedEngine(script, encoder),
            encoder=encoder,
            step=Tags(TagsConfig()),
            branch_policy=NoBranching(),
            tools={"python": (tool, ToolConfig(timeout_s=SHORT_S, retries=0))},
            config=RolloutConfig(group_size=16),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=False,
        )
        started = time.monotonic()
        groups = await worker.run(
            RolloutRequest(tasks=[Task(id=name, prompt=user_prompt("?")) for name in "ab"], step=0)
        )
        seconds = time.monotonic() - started
        await worker.close()
        return [[r.id for r in group.rollouts if not r.valid] for group in groups], seconds

    masked, seconds = asyncio.run(main())
    assert masked == [["5"], ["5"]]
    assert seconds < SHORT_S + MARGIN_S
