"""`-m`: every combination is one run, as `ramet JOB` would make it; launchers may use other processes."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ramet.cli import main
from ramet.cli.commands import COMMANDS
from ramet.cli.job import JobCommand
from ramet.config.request import SweptOverrides, sweep_points

JOB = '''
"""Notes what it was told, one file for each point."""
import json, os
from pathlib import Path
from types import SimpleNamespace
from ramet.errors import ConfigError

def run(resolved):
    config = resolved.config
    if config.train.steps == 13:
        raise ConfigError("unlucky")
    told = {
        "name": config.run.name, "steps": config.train.steps, "lr": config.policy.lr, "set": resolved.overrides,
        "aggregation": config.train.loss_aggregation.value, "pid": os.getpid(),
        "params": type(config.branch_policy.params).__name__,
    }
    Path(os.environ["SWEEP_OUT"], f"{config.train.steps}_{config.policy.lr:g}.json").write_text(json.dumps(told))
    return SimpleNamespace(run=Path(config.run.root, config.run.name or "fresh"))
'''
PLAN = "def plan(resolved):\n    return f'steps {resolved.config.train.steps}'\n"


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """A job instead of training, in a package that other processes can import; what its points noted."""
    package, out = tmp_path / "site/sweep_job", tmp_path / "out"
    package.mkdir(parents=True)
    out.mkdir()
    for name, text in (("__init__", ""), ("job", JOB), ("dry_run", PLAN)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SWEEP_OUT", str(out))
    monkeypatch.chdir(tmp_path)
    job = JobCommand("train", "sweep_job.job", "as a test")
    monkeypatch.setitem(COMMANDS, "train", job)
    return lambda: sorted((json.loads(path.read_text()) for path in out.iterdir()), key=lambda told: told["name"] or "")


def train(*overrides: str) -> int:
    return main(["train", "-m", "model.path=m", *overrides])


def test_every_combination_runs_once_in_order_under_a_name_of_its_own(points, tmp_path: Path):
    overrides = ["run.name=grid", "train.steps=1,2", "policy.lr=0.1,0.01", "branch_policy=random"]
    assert train(*overrides, "train.loss_aggregation=seq-mean-token-sum") == 0
    found = points()
    assert [(told["name"], told["steps"], told["lr"]) for told in found] == [
        ("grid-0", 1, 0.1), ("grid-1", 1, 0.01), ("grid-2", 2, 0.1), ("grid-3", 2, 0.01),
    ]  # fmt: skip
    assert {told["aggregation"] for told in found} == {"seq-mean-token-sum"}
    assert {told["params"] for told in found} == {"RandomBranchConfig"}
    assert found[0]["set"] == [
        "model.path=m", "run.name=grid-0", "train.steps=1", "policy.lr=0.1", "branch_policy=random",
        "train.loss_aggregation=seq-mean-token-sum",
    ]  # fmt: skip
    assert [path.name for path in tmp_path.glob("runs/sweeps/*/*.yaml")] == ["multirun.yaml"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.steps=2,1", "policy.lr=0.1,0.01", "branch_policy=none,random"],
        ["train.steps=range(1,6,2)", "policy.lr=choice(0.5,1e-3)", "tools=[]"],
        ["train.steps=shuffle(1,2,3)", "train.steps=4,5", "run.name='a b'"],
        ["model.path=shuffle(m,n,o)", "policy.lr=tag(t,choice(1,2))", "+run.name=x,y"],
    ],
)
def test_the_points_are_those_of_hydras_own_sweeper(overrides: list[str]):
    """Points are checked before Hydra makes them. Its sweeper is private there, so only this test may know it."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    def hydras() -> list[list[str]]:
        (batch,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(overrides), None)
        return batch

    random.seed(1)
    expected = hydras()
    random.seed(1)
    assert sweep_points(overrides) == expected and len(expected) > 1


def test_a_point_that_fails_is_named_and_the_others_run(points, capsys, caplog: pytest.LogCaptureFixture):
    assert train("run.name=grid", "train.steps=1,13,2") == 1
    said = [record.message for record in caplog.records if record.name == "ramet.cli.sweep"]
    assert said == [f"point {n}: model.path=m run.name=grid train.steps={steps}" for n, steps in enumerate((1, 13, 2))]
    assert [told["steps"] for told in points()] == [1, 2]
    err = capsys.readouterr().err
    assert "error: point 1: unlucky\n" in err
    assert err.endswith("error: the sweep is over, and not every point of it ended well; the errors are above\n")
    assert "Traceback" not in err


def test_a_mistake_in_one_point_is_found_before_any_point_begins(points, capsys: pytest.CaptureFixture[str]):
    assert train("run.name=grid", "train.steps=1,soon", "policy.lrr=1") == 1
    unknown, steps = capsys.readouterr().err.splitlines()
    assert unknown.startswith("error: policy.lrr: ") and steps.startswith("error: train.steps: ") and "'soon'" in steps
    assert points() == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["hydra.run.dir=x"], "hydra.run.dir: of Hydra's own keys a sweep takes hydra/launcher"),
        (
            ["train.steps=interval(1,2)"],
            "error: sweep: train.steps=interval(1,2) has no end of values; allowed: a=1,2 choice(…) range(…) glob(…)\n",
        ),
        (["train.steps=1,2", "oops"], "cannot read 'oops'"),
        (["train.steps=1,2", "--cfg", "job"], "--cfg prints one configuration, and -m means many"),
        (
            ["hydra/launcher=nope", "train.steps=1,2"],
            "error: sweep: In 'hydra/config': Could not find 'hydra/launcher/nope'",
        ),
    ],
)
def test_what_a_sweep_cannot_do_is_said_in_one_line(points, capsys, overrides: list[str], expected: str):
    assert train(*overrides) == 1
    assert expected in capsys.readouterr().err
    assert points() == []


def test_points_that_would_write_to_one_place_are_refused(points, tmp_path: Path, capsys):
    recipe = tmp_path / "hydra_configs/experiment/named.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("# @package _global_\nrun:\n  name: same\n")
    assert train("experiment=named", "train.steps=1,2,3") == 1
    assert "error: run.name=same: 3 points of the sweep would write to it\n" in capsys.readouterr().err


def test_choices_ranges_and_choice_of_groups_are_swept_too(points):
    assert train("branch_policy=none,random", "train.steps=range(1,3)", "policy.lr=choice(0.5)") == 0
    assert len(points()) == 2  # files are named by steps and rate only
    assert {told["params"] for told in points()} == {"RandomBranchConfig"}


def test_instances_can_be_swept_which_hydra_does_not_know():
    swept = SweptOverrides((
        "benchmarks=[own]", "benchmarks.own.use=files", "+benchmarks.own.limit=1,2", "hydra.sweep.dir=x",
        "tools=glob(*)", "run.name=a",
    ))  # fmt: skip
    assert swept.for_hydra() == ["hydra.sweep.dir=x", "+swept.value_0=1,2", "tools=glob(*)"]
    assert swept.point(["+swept.value_0=2", "tools=python", "train.steps=3"]) == [
        "benchmarks=[own]", "benchmarks.own.use=files", "benchmarks.own.limit=2", "tools=python", "run.name=a",
        "train.steps=3",
    ]  # fmt: skip


EVALUATION = """
import os
from types import SimpleNamespace
from pathlib import Path
from core.tests.evaluate.test_results import HEADER, played, score
from ramet.errors import InfraError
from ramet.evaluate.partial import PartialResults

def run(resolved):
    hot = resolved.config.evaluate.sampling["temperature"]
    if hot == 2:
        raise InfraError("down")
    file = Path(os.environ["SWEEP_OUT"], f"{resolved.config.run.name}.json")
    partial = PartialResults(file, HEADER)
    partial.add(*played("a", [0, 1], [score(hot), score(hot)]))
    partial.finish()
    return SimpleNamespace(file=file, run=file.parent)
"""


def test_a_sweep_of_evaluations_ends_with_one_table(points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Also if a point fails: of those that ended well."""
    pytest.importorskip("numpy", reason="ramet[train] is not installed")
    (tmp_path / "site/sweep_job/evaluation.py").write_text(EVALUATION)
    monkeypatch.delitem(sys.modules, "sweep_job", raising=False)  # of an earlier test
    job = JobCommand("eval", "sweep_job.evaluation", "as a test")
    monkeypatch.setitem(COMMANDS, "eval", job)
    monkeypatch.setenv("COLUMNS", "200")
    overrides = ["model.path=m", "run.name=hot", "evaluate.sampling.temperature=0,2,1", "evaluate.k=2"]
    assert main(["eval", "-m", *overrides]) == 2
    lines = capsys.readouterr().out.splitlines()
    table = [[cell.strip() for cell in line.split("│")[1:4]] for line in lines]
    rows = [row for row in table if row and row[0].isdigit()]
    assert [line for line in lines if line.startswith("point ")] == [
        "point 0: evaluate.sampling.temperature=0", "point 2: evaluate.sampling.temperature=1",
    ]  # fmt: skip
    assert rows == [
        ["0", "arithmetic", "accuracy"], ["0", "arithmetic", "f1"],
        ["2", "arithmetic", "accuracy"], ["2", "arithmetic", "f1"],
    ]  # fmt: skip


TRAINING = """
from pathlib import Path
from types import SimpleNamespace
from core.tests.history.made_runs import write_training
from ramet.errors import InfraError

def run(resolved):
    run, lr = resolved.config.run, resolved.config.policy.lr
    failed = InfraError("down") if lr == 0.5 else None
    folder = write_training(Path(run.root), run.name, [lr, lr, lr], f"policy.lr={lr}", valid={3: 0.25}, error=failed)
    return SimpleNamespace(run=folder)
"""


def test_a_sweep_of_trainings_ends_with_one_table(points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Also of points that failed, which keep what they logged."""
    pytest.importorskip("numpy", reason="ramet[train] is not installed")
    (tmp_path / "site/sweep_job/training.py").write_text(TRAINING)
    monkeypatch.delitem(sys.modules, "sweep_job", raising=False)  # of an earlier test
    monkeypatch.setitem(COMMANDS, "train", JobCommand("train", "sweep_job.training", "as a test"))
    monkeypatch.setenv("COLUMNS", "120")
    assert train("run.name=grid", "policy.lr=0.25,0.5", "train.steps=3") == 2
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in lines if line.startswith(("│", "┃"))]
    assert [cell.strip() for cell in rows[0][0].split("┃")] == [
        "point", "policy.lr", "reward", "validation", "steps", "state",
    ]  # fmt: skip
    assert rows[1:] == [
        ["0", "0.25", "0.250 ± 0.000", "0.250", "3/10", "finished"],
        ["1", "0.5", "0.500 ± 0.000", "0.250", "3/10", "failed"],
    ]
    assert lines[-1] == "side by side: ramet compare runs/grid-0 runs/grid-1"


def test_a_dry_run_of_a_sweep_shows_every_plan_and_runs_nothing(points, tmp_path: Path, capsys):
    assert train("run.name=grid", "train.steps=1,2", "--dry-run") == 0
    assert capsys.readouterr().out == (
        "point 0: model.path=m run.name=grid-0 train.steps=1\nsteps 1\n\n"
        "point 1: model.path=m run.name=grid-1 train.steps=2\nsteps 2\n"
    )
    assert points() == [] and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("launcher", "options", "package"),
    [
        ("joblib", ["hydra.launcher.n_jobs=2"], "hydra_plugins.hydra_joblib_launcher"),
        ("submitit_local", ["hydra.launcher.timeout_min=5"], "hydra_plugins.hydra_submitit_launcher"),
    ],
)
def test_other_launchers_run_the_points_in_processes_of_their_own(points, launcher: str, options, package: str):
    if find_spec("hydra_plugins") is None or find_spec(package) is None:
        pytest.skip(f"{package} is not installed (pip install 'ramet[sweeps]')")
    overrides = ["run.name=grid", "train.steps=1,2", "train.loss_aggregation=seq-mean-token-sum"]
    assert train(f"hydra/launcher={launcher}", *options, *overrides, "branch_policy=random") == 0
    found = points()
    assert [(told["name"], told["steps"], told["params"]) for told in found] == [
        ("grid-0", 1, "RandomBranchConfig"), ("grid-1", 2, "RandomBranchConfig"),
    ]  # fmt: skip
    assert {told["aggregation"] for told in found} == {"seq-mean-token-sum"}
    assert os.getpid() not in {told["pid"] for told in found}
