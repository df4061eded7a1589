"""Recipes are passed on: what they name runs only if the user says so, and what the user typed always."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import api
from ramet.cli import main
from ramet.config import hydra_adapter
from ramet.config.compose import compose
from ramet.config.trust import trusting
from ramet.errors import ConfigErrors
from ramet.runs.stopped import resume_command

MODEL = "model.path=m"
RECIPE = """# @package _global_
tools:
  clock:
    use: mcp
    params:
      command: [sh, -c, touch RAN]
      env: {PATH: here}
"""
FILE = "hydra_configs/experiment/mine.yaml"
Problems = Callable[..., list[str]]


@pytest.fixture
def mine(workdir: Path) -> Path:
    path = workdir / FILE
    path.parent.mkdir(parents=True)
    path.write_text(RECIPE)
    return path


def test_a_program_of_a_recipe_is_refused_with_the_words_that_trust_it(
    problems: Problems, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [problem] = problems(MODEL, "experiment=mine")
    assert problem == (
        f"{FILE}: has a program or file of code run by tools.clock.params.command (sh -c 'touch RAN'), "
        "tools.clock.params.env (PATH), and a file that is passed on may not do that by itself; read it, and add to "
        f"the command: --trust-recipe {FILE}"
    )
    assert main(["train", MODEL, "experiment=mine", "data.train=[x]", "--dry-run"]) == 1
    assert problem in capsys.readouterr().err and not Path("RAN").exists()
    assert main(["config", MODEL, "experiment=mine", "--trust-recipe", FILE]) == 0
    assert "touch RAN" in capsys.readouterr().out
    assert main(["config", MODEL, "experiment=mine", f"--trust-recipe={mine}"]) == 0
    assert main(["config", MODEL, "--trust-recipe", "absent.yaml"]) == 1
    assert "--trust-recipe: no file 'absent.yaml'" in capsys.readouterr().err


def test_what_the_user_typed_runs_and_what_a_trusting_run_says_resumes_it(mine: Path, workdir: Path) -> None:
    command = "tools.clock.params.command=[date]"
    for more in ("tools.clock.params.env.A=b", "tools.clock.params.env={A: b}"):  # merged: the file's part stays
        with pytest.raises(ConfigErrors, match=r"run by tools\.clock\.params\.env \(PATH, A\),"):
            compose([MODEL, "experiment=mine", command, more], job="train")
    mine.write_text(RECIPE.partition("      env")[0])
    assert compose([MODEL, "experiment=mine", command], job="train").trusted == ()
    assert compose([MODEL, "tools.clock.use=mcp", command], job="train").config.tools["clock"].params.command == [
        "date"
    ]
    resolved = api.compose([MODEL, "experiment=mine"], trust_recipes=[FILE])
    assert resume_command(resolved, "r").endswith(
        f"ramet train --trust-recipe {FILE} {MODEL} experiment=mine run.name=r"
    )
    with pytest.raises(ConfigErrors):  # only there
        compose([MODEL, "experiment=mine"], job="train")


def test_a_program_is_found_wherever_the_file_writes_it(problems: Problems, mine: Path, workdir: Path) -> None:
    """In a package of its own, through an interpolation, and in a folder that --config-dir names."""
    other = workdir / "given/experiment/theirs.yaml"
    other.parent.mkdir(parents=True)
    other.write_text("# @package tools.clock\nuse: mcp\nparams: ${tools.store.params}\n")
    mine.write_text(RECIPE.replace("clock", "store").replace("tools:", "defaults: [theirs, _self_]\ntools:"))
    found = problems(MODEL, "experiment=mine", config_dir=workdir / "given")
    assert [problem.partition(":")[0] for problem in found] == ["given/experiment/theirs.yaml", FILE]
    assert "tools.clock.params.command" in found[0] and "tools.store.params.command" in found[1]


@pytest.mark.parametrize(
    "files",
    [
        {FILE: "# @package tools.mcp.params.env\nLD_PRELOAD: theirs.so\n"},
        {
            FILE: "# @package _global_\ndefaults:\n- /parts/one@tools.mcp.params.env\n",
            "hydra_configs/parts/one.yaml": "LD_PRELOAD: theirs.so\n",
        },
    ],
    ids=["its package", "a default of it"],
)
def test_a_file_whose_package_is_within_such_an_option_sets_it(
    problems: Problems, workdir: Path, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (workdir / name).parent.mkdir(parents=True)
        (workdir / name).write_text(text)
    [problem] = problems(MODEL, "tools=[mcp]", "tools.mcp.params.command=[date]", "experiment=mine")
    assert problem.startswith(f"{[*files][-1]}: ") and "tools.mcp.params.env (LD_PRELOAD)" in problem


def test_what_ramet_ships_is_not_asked_about(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydra_adapter, "shipped_recipes", lambda: mine.parents[1])
    assert compose([MODEL, "experiment=mine"], job="train").config.tools["clock"].params.command[0] == "sh"


def test_each_point_of_a_sweep_is_trusted_as_the_command_is(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ramet.cli.sweep import Point
    from ramet.config.request import SweptOverrides

    overrides = (MODEL, "experiment=mine")
    point = Point(
        job="train", module="", config_dir=None, debug=False, swept=SweptOverrides(overrides), trusted=(mine,),
        notes=mine,
    )  # fmt: skip
    assert point.resolved(0, overrides).trusted == (mine,)
    with trusting([mine]):
        assert point.resolved(0, overrides).trusted == (mine,)
