"""Completion: what can follow, and the script of bash in a real bash at a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.cli.commands import COMMANDS
from ramet.cli.completion import SCRIPTS, candidates

RAMET = Path(sys.executable).with_name("ramet")
TIMEOUT_S = 120


def test_the_first_word_is_a_command() -> None:
    assert candidates(["pl"]) == ["play", "plugins"]
    assert candidates([""])[: len(COMMANDS)] == list(COMMANDS)  # those of installed packages follow
    assert candidates(["--v"]) == ["--version"]
    assert candidates(["no-such-command", ""]) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_completes_its_options(name: str) -> None:
    assert "--help" in candidates([name, "--"])


def test_an_option_with_choices_offers_them() -> None:
    assert candidates(["config", "--job", ""]) == ["train", "sft", "eval"]
    assert candidates(["export", "--dt"]) == ["--dtype"]
    assert candidates(["completion", ""]) == ["bash", "zsh", "fish"]


def test_keys_are_those_that_the_job_reads() -> None:
    assert candidates(["train", "algo"]) == ["algorithm="]
    assert candidates(["train", "poli"]) == ["policy_loss=", "policy_loss.", "policy."]
    assert candidates(["eval", "poli"]) == []
    assert candidates(["train", "rollout.max_t"]) == ["rollout.max_turns=", "rollout.max_tool_calls="]
    assert "rollout.temperature=" not in candidates(["eval", "rollout."])


def test_values_are_choices_booleans_words_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "more.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert {"algorithm=grpo", "algorithm=ppo"} <= set(candidates(["train", "algorithm="]))
    assert "experiment=quickstart" in candidates(["train", "experiment=q"])
    assert candidates(["train", "train.eval_first=t"]) == ["train.eval_first=true"]
    assert candidates(["train", "train.old_logprobs="]) == ["train.old_logprobs=trainer", "train.old_logprobs=engine"]
    assert candidates(["train", "model.path=mo"]) == ["model.path=models/", "model.path=more.jsonl"]
    assert candidates(["train", "data.train=[x,more"]) == ["data.train=[x,more.jsonl]", "data.train=[x,more.jsonl,"]


def test_what_was_chosen_before_has_its_options() -> None:
    assert candidates(["train", "engine=vllm", "engine.params.tensor"]) == ["engine.params.tensor_parallel="]
    assert candidates(["train", "engine.params.tensor"]) == []


def test_runs_are_offered_where_a_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert candidates(["report", ""]) == ["first", "second"]
    assert candidates(["report", "first", ""]) == ["second"]
    assert candidates(["export", "first", ""]) == []


def test_the_script_needs_a_shell_that_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == SCRIPTS["bash"]
    assert main(["completion"]) == main(["completion", "tcsh"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: completion: for which shell? give one of bash, zsh, fish",
        "error: argument SHELL: invalid choice: 'tcsh' (choose from 'bash', 'zsh', 'fish'); see `ramet completion "
        "--help`",
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_scripts_are_read_by_their_shells(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell])
    assert subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=60).stderr == ""


ENVIRONMENT = {**os.environ, "PATH": f"{RAMET.parent}:{os.environ['PATH']}", "PS1": "$ ", "TERM": "dumb"}


class Shell:
    """An interactive shell in a terminal of its own."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, ENVIRONMENT)

    def type(self, text: str, until: str) -> str:
        """Type, and read until this pattern is there; everything that was read."""
        os.write(self.terminal, text.encode())
        seen, end = "", time.monotonic() + TIMEOUT_S
        while re.search(until, seen) is None:
            left = end - time.monotonic()
            assert left > 0 and select.select([self.terminal], [], [], left)[0], f"no {until!r} in {seen!r}"
            seen += os.read(self.terminal, 4096).decode()
        return seen

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


def test_a_tab_in_bash_completes_commands_groups_and_choices(tmp_path: Path) -> None:
    bash = Shell(tmp_path, "bash", "--norc", "--noprofile", "-i")
    try:
        bash.type("source <(ramet completion bash); echo re''ady\n", "ready")
        bash.type("ramet checkp\t", r"ramet checkpoints $")
        bash.type("\x15ramet train experim\t", r"experiment=$")
        bash.type("bench\t", r"benchmarks_sample $")
        bash.type("train.eval_f\t", r"train\.eval_first=$")
        assert "train.eval_first=" not in bash.type("t\t", r"true $")  # it is there already
        bash.type("'algo\t", r"'algorithm='$")
        bash.type("pp\t", r"ppo'? $")
    finally:
        bash.close()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_a_tab_in_zsh_completes_commands_groups_and_choices(tmp_path: Path) -> None:
    zsh = Shell(tmp_path, "zsh", "-f", "-i")
    try:
        setup = "unset zle_bracketed_paste; autoload -U compinit; compinit -u -D; "
        setup += "source <(ramet completion zsh); PROMPT='re''ady> '\n"
        zsh.type(setup, r"ready> $")  # typed earlier, a tab would not reach its line editor
        zsh.type("ramet checkp\t", r"oints $")
        zsh.type("\x15ramet train experim\t", r"ent=$")
        zsh.type("bench\t", r"marks_sample $")
        zsh.type("train.eval_f\t", r"irst=$")
        zsh.type("t\t", r"rue $")
    finally:
        zsh.close()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ramet checkp", ["checkpoints"]),
        ("ramet train experim", ["experiment="]),
        ("ramet train experiment=quick", ["experiment=quickstart"]),
        ("ramet train train.eval_first=t", ["train.eval_first=true"]),
    ],
)
def test_fish_completes_commands_groups_and_choices(tmp_path: Path, typed: str, offered: list[str]) -> None:
    command = ["fish", "--no-config", "-c", f"ramet completion fish | source; complete -C {typed!r}"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == offered
