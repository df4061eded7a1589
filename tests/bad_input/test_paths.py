"""Odd names of folders, bare environments, a home that cannot be written: it works, or the message gives the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.errors import ConfigError, ConfigErrors
from ramet.report.html import write_report
from ramet.rollout.record import read_records
from ramet.train.training import run


@pytest.mark.parametrize("name", ["with spaces and 'a quote", "grüße-日本-🌱", "dots.and[brackets]{1},2"])
def test_a_run_its_model_and_its_data_may_be_in_any_folder(train, model, tasks, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    shutil.copytree(model, folder / "model")
    shutil.copy(tasks, folder / "tasks.jsonl")
    text = str(folder).replace("'", r"\'")
    paths = [f"run.root='{text}'", f"model.path='{text}/model'", f"data.train=['{text}/tasks.jsonl']"]
    run(compose([*train, *paths], job="train"))
    run(compose([*train, *paths, "train.steps=2"], job="train"))
    [*groups] = read_records(folder / "here/rollouts/step_000002.jsonl.gz")
    assert len(groups) == 2
    assert write_report(folder / "here").is_file()
    assert sorted(path.name for path in (folder / "here/checkpoints").iterdir()) == ["step_000001", "step_000002"]


def test_a_run_directory_reached_by_a_link_is_the_same_run(train, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    run(compose([*train, f"run.root={tmp_path / 'link'}"], job="train"))
    run(compose([*train, f"run.root={tmp_path / 'disk'}", "train.steps=2"], job="train"))
    assert (tmp_path / "disk/here/rollouts/step_000002.jsonl.gz").is_file()


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        (lambda folder: folder / ("x" * 300), "cannot write the run directory .*File name too long"),
        (lambda folder: folder / "tasks.jsonl", "cannot write the run directory"),
        (lambda folder: Path("/proc/no"), "cannot write the run directory '/proc/no/here'"),
    ],
    ids=["too long", "a file", "not writable"],
)
def test_a_path_where_nothing_can_be_written_is_named(train, tasks, tmp_path, folder, message):
    shutil.copy(tasks, tmp_path)
    with pytest.raises(ConfigError, match=message):
        run(compose([*train, f"run.root='{folder(tmp_path)}'"], job="train"))


def test_a_relative_path_is_that_of_the_working_directory_and_a_missing_one_says_which(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigErrors, match=rf"rows\.jsonl: no such file .*{tmp_path}\)"):
        run(compose([*train, "data.train=[rows.jsonl]"], job="train"))
    assert Path.cwd() == tmp_path and list(tmp_path.iterdir()) == []


COMMAND = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

from ramet.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command in a process of its own, with no environment but this one."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
    )


def test_a_bare_environment_is_enough(train, tmp_path):
    """Locale C, a home that is not there and cannot be made, no terminal, no colours, 256 open files."""
    ended = start("train", *train, f"run.root='{tmp_path}/läufe'", HOME="/proc/nobody", NO_COLOR="1")
    assert ended.returncode == 0, ended.stderr.decode("utf-8", "replace")
    assert b"\x1b[" not in ended.stdout + ended.stderr
    assert b"Traceback" not in ended.stderr
    assert (tmp_path / "läufe/here/model/config.json").is_file()


def test_a_name_that_the_locale_cannot_read_is_refused_and_shown(tmp_path):
    ended = start("train", f"run.root='{tmp_path}/läufe'", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert ended.returncode == 1
    assert b"Traceback" not in ended.stderr
    assert b"not UTF-8 here; set a UTF-8 locale, as in LC_ALL=C.UTF-8" in ended.stderr


def test_help_is_shown_in_a_locale_that_lacks_its_characters():
    ended = start("train", "--help", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert ended.returncode == 0, ended.stderr
    assert b"model.path" in ended.stdout and b"\\u2026" in ended.stdout
