"""One tiny model, one task file and one process to fork `ramet` commands from, for all end-to-end tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TASKS = 7  # more than a step needs, so that batches differ and epochs overlap


@dataclass(frozen=True)
class Ended:
    """A command that is over. `code` is negative if a signal ended it."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line.removeprefix("error: ") for line in self.err.splitlines() if line.startswith("error: ")]


@dataclass
class Running:
    """A running command."""

    pid: int
    folder: Path
    ramet: Ramet

    def wait(self) -> Ended:
        code = self.ramet.ask({"wait": self.pid})
        return Ended(code, (self.folder / "out").read_text(), (self.folder / "err").read_text())


@dataclass
class Ramet:
    """Starts `ramet` commands in forked processes."""

    server: subprocess.Popen[str]
    folder: Path
    started: int = 0

    def __call__(self, *argv: str, cwd: Path, **env: str) -> Ended:
        return self.start(*argv, cwd=cwd, **env).wait()

    def start(self, *argv: str, cwd: Path, screen: str | None = None, **env: str) -> Running:
        """`screen`: the terminal that is stdout and stderr, instead of files."""
        folder = self.folder / f"command_{self.started}"
        folder.mkdir()
        self.started += 1
        for name in ("out", "err"):
            (folder / name).touch()
        out, err = (screen, screen) if screen is not None else (str(folder / "out"), str(folder / "err"))
        request = {"argv": argv, "env": env, "cwd": str(cwd), "out": out, "err": err}
        return Running(self.ask(request), folder, self)

    def ask(self, request: dict[str, Any]) -> Any:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())


@dataclass(frozen=True)
class Workspace:
    """What all runs share, and the command line that trains with it."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def train(self, *more: str) -> list[str]:
        """A deterministic run: 3 tasks x 8 rollouts a step, of which at most 16 run at once; 5 roots, forks."""
        return [
            "train", f"model.path={self.model}", f"data.train=[{self.folder / 'tasks.jsonl'}]",
            f"data.valid=[{self.folder / 'valid.jsonl'}]", "data.max_prompt_tokens=32",
            "run.deterministic=true", "run.seed=11", "engine.params.slots=16", "rollout_step=e2e_turns",
            "rollout_step.system_prompt=never", "tools=[e2e_digest]", "rewards=[e2e_even]", "branch_policy=arpo",
            "branch_policy.params.initial_rollouts=5", "branch_policy.params.alpha=1e-9", "branch_policy.params.tau=0",
            "branch_policy.params.beta=1", "rollout.group_size=8", "rollout.max_concurrent=16",
            "rollout.max_response_tokens=96", "rollout.first_tokens=3", "train.steps=4", "train.tasks_per_step=3",
            "train.minibatches=2", "train.eval_every=2", "train.eval_first=true", "train.save_every=2",
            "train.keep_checkpoints=2", "train.kl_coef=0.01", "policy.lr=0.001", *more,
        ]  # fmt: skip


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Of every process here: one thread, this folder's plugin, and nothing of Ramet's from outside."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RAMET_", "E2E_"))}
    return inherited | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE / "plugin"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "RAMET_PLUGINS": "e2e_plugin",
    }


@pytest.fixture(scope="session")
def ramet(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ramet]:
    server = subprocess.Popen(
        [sys.executable, str(HERE / "server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with server:
        assert server.stdout is not None
        assert server.stdout.readline() == '"ready"\n'
        yield Ramet(server, tmp_path_factory.mktemp("commands"))


@pytest.fixture(scope="session")
def workspace(ramet: Ramet, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    assert ramet("make-model", str(workspace.model), cwd=workspace.folder).code == 0
    write_tasks(workspace.folder / "tasks.jsonl", [f"task {i}" for i in range(TASKS)])
    write_tasks(workspace.folder / "valid.jsonl", ["one", "two"])
    return workspace


def write_tasks(path: Path, prompts: Sequence[str]) -> None:
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "x"}) + "\n" for prompt in prompts))
