"""What a run records of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ramet.config.resolved import Resolved
from ramet.config.schema import ComponentConfig, RewardConfig
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.errors import ConfigError, PluginError
from ramet.planning.run_plan import plan_run
from ramet.plugins.plugin_code import code_hash
from ramet.runs.manifest import (
    WHOLE,
    Manifest,
    git_state,
    make_manifest,
    model_fingerprint,
    read_manifest,
    read_run,
    write_manifest,
)
from ramet.runs.run_dir import RunDir


def test_the_manifest_says_what_ran_and_holds_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: Callable[..., Manifest]
):
    monkeypatch.setenv("API_KEY", "hunter2")
    write_manifest(tmp_path / "manifest.json", manifest())
    text = (tmp_path / "manifest.json").read_text()
    assert "hunter2" not in text
    found = read_manifest(tmp_path / "manifest.json")
    assert found == read_manifest(tmp_path / "manifest.json")
    assert found.versions["ramet"] and found.versions["python"]
    assert found.plugins[0].name == "core"
    assert found.resume_level.startswith("A, exact state") and "C, statistical" in found.resume_level
    assert found.attempts[0].argv == sys.argv


@dataclass
class WithFile:
    path: str

    def input_files(self) -> dict[str, str]:
        return {"path": self.path}


def test_a_teachers_folder_is_recorded(tmp_path: Path, resolved: Callable[..., Resolved]):
    made, found = resolved(), []
    made.config.train.teacher = str(tmp_path)
    for text in ("first", "second"):
        (tmp_path / "config.json").write_text(text)
        found.append(make_manifest(made).files["train.teacher"])
    assert found[0] != found[1]


def test_files_that_options_of_components_name_are_recorded(tmp_path: Path, resolved: Callable[..., Resolved]):
    file = tmp_path / "reward.py"
    found = []
    for text in ("first", "second"):
        file.write_text(text)
        made = resolved()
        made.config.rewards = {"mine": RewardConfig(params=WithFile(str(file))), "other": RewardConfig()}
        found.append(make_manifest(made).files)
    assert [list(files) for files in found] == [["rewards.mine.params.path"]] * 2
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("named", "kind", "message"),
    [
        (["reward.py"], PluginError, r"rewards\.mine: input_files of its options returned \['reward\.py'\]"),
        ({"path": "absent.py"}, ConfigError, r"rewards\.mine\.params\.path: no file or folder 'absent\.py'"),
    ],
)
def test_files_that_options_name_wrongly_are_named(
    resolved: Callable[..., Resolved], named: Any, kind: type[Exception], message: str
) -> None:
    made, params = resolved(), WithFile("absent.py")
    params.input_files = lambda: named  # type: ignore[method-assign]
    made.config.rewards = {"mine": RewardConfig(params=params)}
    with pytest.raises(kind, match=message):
        make_manifest(made)


def test_secrets_of_the_command_line_are_not_recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resolved: Callable[..., Resolved],
    manifest: Callable[..., Manifest],
):
    typed = [
        "engine.params.api_key=swordfish",
        "engine.params.api_key='${oc.env:KEY}'",
        "x.url=https://me:pw@h/",
        "a=1",
    ]
    shown = ["engine.params.api_key=***", typed[1], "x.url=https://me:***@h/", "a=1"]
    monkeypatch.setattr(sys, "argv", ["ramet", "train", *typed])
    with RunDir.open(tmp_path, "mine") as run:
        run.record(replace(resolved(), overrides=typed), manifest())
    assert read_manifest(tmp_path / "mine/manifest.json").attempts[0].argv == ["ramet", "train", *shown]
    assert (tmp_path / "mine/overrides.txt").read_text().splitlines() == shown


def test_the_manifest_says_what_seeds_decide(resolved: Callable[..., Resolved]) -> None:
    """vLLM draws without them at its default: neither an evaluation nor a training run can then be repeated."""
    run = resolved()
    found = {}
    for name, params in (
        ("torch", TorchEngineConfig()),
        ("vllm", VllmEngineConfig()),
        ("vllm with seeds", VllmEngineConfig(seeds=True)),
        ("openai", None),
    ):
        run.config.engine = ComponentConfig(name=name.split()[0], params=params)
        found[name] = (make_manifest(run).sampling or "").split(":")[0]
    assert found == {
        "torch": "by seed", "vllm": "not repeatable", "vllm with seeds": "by seed", "openai": "by the server",
    }  # fmt: skip


def test_a_deterministic_run_promises_exact_numbers(resolved: Callable[..., Resolved]):
    config = resolved()
    config.config.run.deterministic = True
    assert "B, exact numbers" in make_manifest(config).resume_level


def test_the_state_of_the_repository_is_recorded(tmp_path: Path):
    assert git_state(tmp_path) is None
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], cwd=tmp_path, check=True)
    clean = git_state(tmp_path)
    (tmp_path / "new").touch()
    dirty = git_state(tmp_path)
    assert clean is not None and dirty is not None
    assert (clean["dirty"], dirty["dirty"], clean["sha"] == dirty["sha"]) == (False, True, True)


@pytest.mark.parametrize("key", ["core.fsmonitor", "core.hooksPath", "filter.my.clean", "filter.my.process"])
def test_a_shared_repository_runs_nothing_when_its_state_is_recorded(tmp_path: Path, key: str):
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x"]
    (tmp_path / "file").write_text("one")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    hooks = tmp_path / ".git/attack"
    hooks.mkdir()
    script = hooks / "post-index-change"  # the name matters to core.hooksPath alone
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/.git/ran\n")
    script.chmod(0o755)
    subprocess.run(["git", "config", key, str(hooks if key == "core.hooksPath" else script)], cwd=tmp_path, check=True)
    (tmp_path / ".git/info/attributes").write_text("* filter=my\n")
    os.utime(tmp_path / "file", (1, 1))
    state = git_state(tmp_path)
    assert state is not None and state["dirty"] is False
    assert not (tmp_path / ".git/ran").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 9}', '{"format": 1}'])
def test_a_file_that_is_no_manifest_is_named(tmp_path: Path, text: str):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match=r"manifest\.json"):
        read_manifest(tmp_path / "manifest.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "[Errno 2] No such file or directory: {file!r}"),
        ("a: [1", "while parsing a flow sequence in"),
        (
            "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n",
            "has YAML aliases, few of which may expand to millions of values; Ramet writes none",
        ),
        ("\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_a_run_whose_configuration_cannot_be_read_is_named_before_and_at_the_start(
    tmp_path: Path, text: str | None, reason: str, resolved: Callable[..., Resolved], manifest: Callable[..., Manifest]
):
    with RunDir.open(tmp_path, "mine") as run:
        run.record(resolved(), manifest())
    file = run.path / "config.yaml"
    file.unlink()
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    expected = f"{file}: cannot be read: {reason.format(file=str(file))}"
    now = resolved()
    now.config.run.root, now.config.run.name = str(tmp_path), "mine"
    [problem] = plan_run(now, manifest()).problems
    assert problem.startswith(expected) and "\n" not in problem
    with RunDir.open(tmp_path, "mine") as run, pytest.raises(ConfigError) as caught:
        run.check_resume(now, manifest())
    assert str(caught.value) == problem


def test_a_models_fingerprint_sees_every_file_and_the_ends_of_large_ones(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(WHOLE + 1)
    first = model_fingerprint(tmp_path)
    assert model_fingerprint(tmp_path) == first
    with (tmp_path / "weights").open("r+b") as file:
        file.seek(WHOLE)
        file.write(b"x")
    second = model_fingerprint(tmp_path)
    (tmp_path / "config.json").write_text("{ }")
    assert len({first, second, model_fingerprint(tmp_path)}) == 3


def test_the_fingerprint_of_a_model_of_the_hub_is_its_commit_whatever_its_cache_has(tmp_path: Path):
    commit, caches = "0" * 40, [tmp_path / "a", tmp_path / "b"]
    copies = [cache / "models--me--x/snapshots" / commit for cache in caches]
    for n, copy in enumerate(copies):
        copy.mkdir(parents=True)
        (copy / f"{n}.json").write_text("{}")
    assert model_fingerprint(copies[0], commits=[commit]) == model_fingerprint(copies[1], commits=[commit])
    assert model_fingerprint(copies[0]) != model_fingerprint(copies[1])  # paths that a user named


def test_a_model_that_the_environment_named_is_the_one_of_the_hub_that_the_run_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: Callable[..., Manifest]
):
    monkeypatch.setenv("BASE", "me/tiny@v1")
    (tmp_path / "config.yaml").write_text("model: {path: '${oc.env:BASE}'}")
    write_manifest(tmp_path / "manifest.json", replace(manifest(), hub={"model.path": "0" * 40}))
    assert read_run(tmp_path).model.path == f"hf://me/tiny@{'0' * 40}"


def test_the_manifest_holds_a_hash_of_each_plugins_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: Callable[..., Manifest]
):
    package = tmp_path / "edited_plugin"
    (package / "deeper").mkdir(parents=True)
    (package / "__init__.py").write_text("ONE = 1\n")
    (package / "deeper/tool.py").write_text("TWO = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = code_hash("edited_plugin.deeper")
    (package / "notes.txt").write_text("not code")
    assert code_hash("edited_plugin") == first
    (package / "deeper/tool.py").write_text("TWO = 3\n")
    assert code_hash("edited_plugin") not in (first, None)
    assert code_hash("no_such_plugin_at_all") is None
    core = manifest().plugins[0]
    assert (core.name, core.code) == ("core", code_hash("ramet"))
