"""`ramet credit` of a run that `ramet train` made: weights, resume, the plan, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ramet import function_tool
from ramet.api import train
from ramet.errors import ConfigError, ConfigErrors
from ramet.models.tiny import make_tiny_model
from ramet.testing import registered
from ramet.types import Rollout, RolloutState, StepContext, StepResult, StopReason, ToolCall, ToolSchema, Untrusted
from ramet_replay.credit.command import credit as command
from ramet_replay.credit.files import CREDIT, POINTS
from ramet_replay.credit.job import CreditOptions, plan, run


def python(code: str) -> str:
    """Returns its input."""
    return code


LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
STATE: dict[str, Any] = {}


class TwoTurns:
    """Calls the tool with what was sampled in the first turn, and ends after the second."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        text = (await ctx.generate(stop=LETTERS)).text
        if state.turn:
            return StepResult(stop=StopReason.DONE, answer=text)
        call = ToolCall(name="python", arguments={"code": "ok"}, rollout=state.rollout, turn=0, task=state.task)
        return StepResult(insert=(Untrusted(text=(await ctx.call_tool(call)).text),))


class Copied(TwoTurns):
    """An environment whose state is copied, and cannot be replayed."""

    forks = "copy"

    async def open(self, task: Any, seed: int) -> dict[str, Any]:
        return dict(STATE)

    async def fork(self, state: dict[str, Any]) -> dict[str, Any]:
        return dict(state)

    async def close(self, state: dict[str, Any]) -> None:
        state.clear()


class Even:
    """Rewards an even number of characters."""

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | None]:
        return [float(len(rollout.answer or "") % 2 == 0) for rollout in group]


@pytest.fixture(scope="module", autouse=True)
def components() -> Iterator[None]:
    with ExitStack() as stack:
        for kind, name, factory in (
            ("rollout_step", "two_turns", TwoTurns),
            ("rollout_step", "copied", Copied),
            ("rewards", "even", Even),
            ("tools", "python", lambda: function_tool(python)),
        ):
            stack.enter_context(registered(kind, name, factory))
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=1, heads=2, intermediate=64)


@pytest.fixture(scope="module")
def made(model: Path, components: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    root = tmp_path_factory.mktemp("runs")
    data = root / "train.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i}?", "answer": "x"}) + "\n" for i in range(2)))
    overrides = [
        f"model.path={model}", "model.device=cpu", f"data.train=[{data}]", f"run.root={root}", "run.name=run",
        "rollout_step=two_turns", "rollout_step.system_prompt=never", "tools=[python]", "rewards=[even]",
        "rollout.group_size=2", "rollout.max_concurrent=16", "rollout.max_response_tokens=512",
        "data.max_prompt_tokens=64", "engine.params.slots=16", "train.steps=1", "train.tasks_per_step=2",
        "trackers=[jsonl]",
    ]  # fmt: skip
    return train(overrides).run


@pytest.fixture
def trained(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_is_measured_next_to_it_and_the_same_command_repeats_nothing(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    assert command([str(trained), "--rollouts", "2", "--samples", "3", "--dry-run"]) == 0
    out = trained.with_name("run.credit")
    assert "at most" in capsys.readouterr().out and not out.exists()
    assert command([str(trained), "--rollouts", "2", "--samples", "3"]) == 0
    assert "python(ok)" in capsys.readouterr().out
    rows, points = lines(out / CREDIT), lines(out / POINTS)[1:]
    assert [(row["turn"], len(row["calls"]), row["is_last"]) for row in rows] == [(0, 1, False), (1, 0, True)] * 2
    for row in rows:
        worth = row["worth"]
        assert worth["mean"] == pytest.approx(row["after"]["mean"] - row["before"]["mean"])
    assert len(points) == 4 and all(len(point["rewards"]) == 3 and point["tokens"] > 0 for point in points)
    result = run(trained, CreditOptions(rollouts=2, samples=3))
    assert result.rows == rows and lines(out / POINTS)[1:] == points
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_a_checkpoint_continues_the_rollouts_and_does_not_mix_with_other_weights(trained: Path, model: Path) -> None:
    out = trained.with_name("from_checkpoint")
    options = CreditOptions(names=["1/0/0"], samples=2, checkpoint=1, out=out)
    assert "a checkpoint" in str(plan(trained, options))
    assert len(run(trained, options).rows) == 2 and (out / "model_000001/config.json").is_file()
    assert "2 of them measured" in str(plan(trained, options))
    with pytest.raises(ConfigError, match="step 7: no such checkpoint"):
        plan(trained, CreditOptions(checkpoint=7))
    with pytest.raises(ConfigError, match="model_sha256"):
        run(trained, CreditOptions(names=["1/0/0"], samples=2, model=model, out=out))


def test_what_cannot_be_continued_is_refused_before_anything_is_written(trained: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"rollout_step.*forks = 'copy'"):
        run(trained, CreditOptions(overrides=["rollout_step=copied"]))
    with pytest.raises(ConfigErrors, match="an agent"):
        run(trained, CreditOptions(overrides=["rollout_step=external", "tools=[]"]))
    with pytest.raises(ConfigErrors, match="--samples 17"):
        run(trained, CreditOptions(samples=17))
    with pytest.raises(ConfigErrors) as refused:
        run(trained, CreditOptions(samples=1, rollouts=0, budget_tokens=0, overrides=["model.path=other"]))
    assert len(refused.value.problems) == 4
    assert not trained.with_name("run.credit").exists()


def test_code_that_only_the_run_names_is_not_run(trained: Path) -> None:
    with (trained / "overrides.txt").open("a") as file:
        file.write("tools=[mcp]\ntools.mcp.params={command:[touch,evil]}\n")
    with pytest.raises(ConfigError, match=r"tools\.mcp\.params\.command"):
        run(trained, CreditOptions())


def test_code_that_the_command_line_names_too_is_run(trained: Path, tmp_path: Path) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 0.5\n")
    named = f"rewards.custom.params.path={reward}"
    with (trained / "overrides.txt").open("a") as file:
        file.write(f"rewards=[custom]\n{named}\n")
    with pytest.raises(ConfigError, match=r"rewards\.custom\.params\.path"):
        plan(trained, CreditOptions())
    assert "points" in str(plan(trained, CreditOptions(overrides=[named])))


def test_the_environment_is_not_read_for_the_run_alone(trained: Path) -> None:
    with (trained / "overrides.txt").open("a") as file:
        file.write("run.name='${oc.env:HOME}'\ndata.columns={prompt: '${oc.env:SECRET,x}'}\n")
    with pytest.raises(ConfigErrors, match=r"data\.columns") as refused:
        plan(trained, CreditOptions())
    assert len(refused.value.problems) == 1  # its name is not kept


def test_other_rollouts_are_added_to_the_results(trained: Path) -> None:
    for name in ("1/0/0", "1/1/0"):
        assert {row["rollout"] for row in run(trained, CreditOptions(names=[name], samples=2)).rows} == {name}
    assert [row["rollout"] for row in lines(trained.with_name("run.credit") / CREDIT)] == ["1/0/0"] * 2 + ["1/1/0"] * 2


def test_no_checkpoint_is_exported_into_the_folder_of_something_else(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").touch()
    with pytest.raises(ConfigError, match="other files"):
        run(trained, CreditOptions(checkpoint=1, out=tmp_path / "mine"))
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["notes.txt"]
