"""The quickstart that searches, from its one command, smaller; and that what it trained reads what it finds."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = 32


@dataclass(frozen=True)
class Played:
    """A finished quickstart. `root` is the folder that `runs/` is otherwise."""

    root: Path
    code: int
    out: str
    err: str

    @property
    def run(self) -> Path:
        return self.root / "quickstart_search"

    @property
    def data(self) -> Path:
        return self.root / "quickstart_search-inputs" / "data"


@pytest.fixture(scope="module")
def played(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Enough SFT to copy, and enough RL to make two searches the mode."""
    root = tmp_path_factory.mktemp("quickstart")
    small = ["--sft-rows", "4000", "--steps", "8", "--problems", str(PROBLEMS)]
    command = [sys.executable, str(ROOT / "scripts/quickstart"), "--root", str(root), *small]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=900)
    return Played(root, done.returncode, done.stdout, done.stderr)


def test_it_learns_to_search_twice_with_forks_from_the_first_step(played: Played) -> None:
    assert played.code in (0, 1), played.err  # 1: less than what is promised of the full length
    summary = json.loads((played.run / "summary.json").read_text())
    assert summary["greedy_after"] - summary["greedy_before"] >= 0.3
    assert summary["forks_per_group_while_learning"] >= 1
    assert summary["rl_steps"] == 8
    missed = [line for line in played.err.splitlines() if line.startswith("not reached: ")]
    assert bool(missed) == bool(played.code)
    assert f"held-out problems, seed {summary['seed']}" in played.out
    for file in ("summary.json", "curves.png", "report.html"):
        assert (played.run / file).stat().st_size > 0
        assert str(played.run / file) in played.out


def test_accuracy_falls_when_the_corpus_is_permuted(ramet, played: Played, tmp_path: Path) -> None:
    """The benchmark, by `ramet eval`: what it trained reads what it finds."""
    accuracy = {}
    for corpus in ("corpus", "permuted"):
        ended = ramet(
            "eval", "experiment=quickstart_search", f"model.path={played.run / 'model'}", f"run.name={corpus}",
            f"benchmarks.files.params.paths=[{played.data / 'test.jsonl'}]", "evaluate.sampling.temperature=0",
            f"tools.search.params.corpus={played.data / corpus}.sqlite",
            cwd=tmp_path, RAMET_PLUGINS="",
        )  # fmt: skip
        assert ended.code == 0, ended.err
        [measured] = json.loads((tmp_path / "runs" / corpus / "results.json").read_text())["results"]
        [metric] = measured["metrics"]
        accuracy[corpus] = metric["avg"]["mean"]
    assert accuracy["corpus"] >= 0.3
    assert accuracy["permuted"] <= 0.05  # chance is one name in 2,000


def test_the_commands_that_it_shows_work_in_its_folder(ramet, played: Played) -> None:
    shown = [shlex.split(line) for line in played.out.splitlines() if line.startswith("  .venv/bin/ramet ")]
    jobs = [command[1:] for command in shown if command[1] != "report"]
    assert [job[0] for job in jobs] == ["play", "eval", "eval", "train"]
    for job in jobs:
        ended = ramet(*job, *["--dry-run"] * (job[0] != "play"), cwd=played.root, RAMET_PLUGINS="")
        assert ended.code == 0, ended.err


def test_a_folder_of_this_name_that_no_quickstart_left_is_not_touched(
    environment: dict[str, str], tmp_path: Path
) -> None:
    mine = tmp_path / "quickstart_search-inputs" / "data" / "rl.jsonl"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    command = [sys.executable, str(ROOT / "scripts/quickstart"), "--root", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: {mine.parents[1]} exists, and no quickstart made it; move it away, or choose another folder with "
        "--root"
    )
    assert mine.read_text() == "mine" and list(tmp_path.iterdir()) == [mine.parents[1]]
