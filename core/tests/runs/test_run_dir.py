from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.errors import ConfigError
from ramet.planning.run_plan import plan_run
from ramet.plugin_code import code_hash
from ramet.runs.lock import Owner
from ramet.runs.manifest import (
    WHOLE,
    DataRecord,
    Manifest,
    PluginRecord,
    git_state,
    make_manifest,
    model_fingerprint,
    read_manifest,
    write_manifest,
)
from ramet.runs.resume import RunState, check_resume
from ramet.runs.run_dir import RunDir

HOLDER = """
import os, sys, time
from ramet.runs.run_dir import RunDir
run = RunDir.open(sys.argv[1], "mine")
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
print("held", flush=True)
time.sleep(60)
"""


def resolved(text: str = "run:\n  seed: 1\n", *, allow: bool = False) -> Resolved:
    config = Config()
    config.run.allow_config_change = allow
    return Resolved(job="train", config=config, text=text, overrides=["run.seed=1"], set_by_user=frozenset())


def manifest(data: str = "d", model: str | None = "m" * 12, plugin: str = "1.0", tasks: int = 3) -> Manifest:
    made = make_manifest(
        resolved(), data={"train": DataRecord(files=["a.jsonl"], fingerprint=data, tasks=tasks)}, model=model
    )
    made.plugins[0].version = plugin
    return made


def test_a_fresh_directory_names_itself_after_time_and_a_word(tmp_path: Path):
    with RunDir.open(tmp_path / "runs") as one, RunDir.open(tmp_path / "runs") as other:
        assert one.path != other.path
        assert re.fullmatch(r"\d{8}-\d{6}-[a-z]+", one.path.name)
        assert not one.resumed
        assert one.rollouts.is_dir() and one.checkpoints.is_dir()


def test_a_named_run_is_resumed_and_keeps_its_attempts(tmp_path: Path):
    for attempt in (1, 2):
        with RunDir.open(tmp_path, "mine") as run:
            assert run.resumed == (attempt == 2)
            assert run.check_resume(resolved(), manifest()) == []
            run.record(resolved(), manifest())
    written = json.loads((tmp_path / "mine/manifest.json").read_text())
    assert [attempt["status"] for attempt in written["attempts"]] == ["done", "done"]
    assert (tmp_path / "mine/config.yaml").read_text() == "run:\n  seed: 1\n"
    assert (tmp_path / "mine/overrides.txt").read_text() == "run.seed=1\n"


@pytest.mark.parametrize(("error", "status"), [(ValueError(), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_the_manifest_says_how_an_attempt_ended(tmp_path: Path, error: BaseException, status: str):
    with pytest.raises(type(error)), RunDir.open(tmp_path, "mine") as run:
        run.record(resolved(), manifest())
        raise error
    attempt = read_manifest(tmp_path / "mine/manifest.json").attempts[0]
    assert (attempt.status, attempt.pid) == (status, os.getpid())
    assert attempt.ended is not None


def test_a_directory_in_use_is_refused_and_names_its_owner(tmp_path: Path):
    with RunDir.open(tmp_path, "mine"):
        with pytest.raises(ConfigError) as caught:
            RunDir.open(tmp_path, "mine")
    assert f"is in use by pid {os.getpid()} on {socket.gethostname()}, started 20" in str(caught.value)
    RunDir.open(tmp_path, "mine").close()


def hold(root: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root), *arguments], stdout=subprocess.PIPE, text=True
    )  # the caller reads "held"


def test_another_process_is_refused_until_the_owner_is_killed(tmp_path: Path):
    owner = hold(tmp_path)
    assert owner.stdout is not None and owner.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"in use by pid {owner.pid} "):
        RunDir.open(tmp_path, "mine")
    owner.kill()
    owner.wait()
    owner.stdout.close()
    RunDir.open(tmp_path, "mine").close()


def test_a_lock_that_only_a_child_of_a_dead_owner_holds_is_taken_over(tmp_path: Path):
    owner = hold(tmp_path, "fork")
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        assert owner.stdout.readline() == "held\n"
        owner.kill()
        owner.wait()
        with RunDir.open(tmp_path, "mine"):
            with pytest.raises(ConfigError, match="in use by pid"):
                RunDir.open(tmp_path, "mine")
    finally:
        os.kill(child, signal.SIGKILL)
        owner.stdout.close()


def test_a_lock_of_another_host_is_not_taken_over(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    owner = {"host": "elsewhere", "pid": 1, "started": "2026-01-01T00:00:00+00:00", "namespace": ""}
    (tmp_path / "mine/LOCK").write_text(json.dumps(owner))
    with pytest.raises(ConfigError, match=r"pid 1 on elsewhere.*if that process is dead, delete"):
        RunDir.open(tmp_path, "mine")


def test_a_torn_lock_file_is_taken_over(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/LOCK").write_text('{"host": "el')
    with RunDir.open(tmp_path, "mine"):
        assert json.loads((tmp_path / "mine/LOCK").read_text())["pid"] == os.getpid()


def test_an_owner_is_dead_only_if_this_host_knows_it():
    me = Owner.me()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not me.dead
    assert replace(me, pid=gone.pid).dead
    assert not replace(me, pid=gone.pid, host="elsewhere").dead
    assert not replace(me, pid=gone.pid, namespace="another container").dead


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "x" * 200])
def test_a_name_that_is_no_directory_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match=r"run\.name=.*allowed: letters"):
        RunDir.open(tmp_path, name)


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write the run directory"):
        RunDir.open(tmp_path / "file", "mine")


def test_the_manifest_says_what_ran_and_holds_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_secrets_of_the_command_line_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_a_deterministic_run_promises_exact_numbers():
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
            "holds YAML aliases, few of which may expand to millions of values; Ramet writes none",
        ),
        ("\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_a_run_whose_configuration_cannot_be_read_is_named_before_and_at_the_start(
    tmp_path: Path, text: str | None, reason: str
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


OLD = (
    "run:\n  name: a\npolicy:\n  lr: 1.0e-06\ntrain:\n  steps: 5\ntools:\n  python:\n    timeout_s: 1\ntrackers: [x]\n"
)
SAFE = (
    "run:\n  name: b\npolicy:\n  lr: 1.0e-06\ntrain:\n  steps: 9\ntools:\n  python:\n    timeout_s: 1\ntrackers: []\n"
)


def state(config: str = OLD, record: Manifest | None = None) -> RunState:
    return RunState(config=config, manifest=record or manifest())


def test_changes_that_cannot_alter_the_numbers_are_allowed():
    assert check_resume(state(), state(SAFE)) == []


def test_other_changes_are_refused_with_both_values():
    new = OLD.replace("1.0e-06", "2.0e-06").replace("timeout_s: 1", "timeout_s: 3")
    problems = check_resume(state(), state(new))
    assert len(problems) == 2
    assert problems[0].startswith("policy.lr was 1e-06, is 2e-06; resuming would mix two runs")
    assert problems[1].startswith("tools.python.timeout_s was 1, is 3")
    assert check_resume(state(), state(new), allow=True) == []


def test_a_key_that_came_or_went_is_a_change():
    problems = check_resume(state(), state(OLD.replace("tools:\n  python:\n    timeout_s: 1\n", "tools: {}\n")))
    assert [p.partition(";")[0] for p in problems] == [
        "tools.python.timeout_s was 1, is (absent)",
    ]


def test_other_training_data_is_refused_always_and_names_the_files():
    new = state(record=manifest(data="e", tasks=4))
    for allow in (False, True):
        problems = check_resume(state(), new, allow=allow)
        assert len(problems) == 1
        assert "the training data changed: the run began with 3 tasks of a.jsonl" in problems[0]


@pytest.mark.parametrize(
    "line", ["run:\n  seed: 2", "data:\n  shuffle: false", "data:\n  curriculum: true", "train:\n  tasks_per_step: 9"]
)
def test_what_decides_which_tasks_a_step_gets_is_refused_always(line: str):
    for allow in (False, True):
        [problem] = check_resume(state(""), state(line + "\n"), allow=allow)
        assert "it decides which tasks a step gets" in problem


def test_more_steps_are_another_learning_rate_where_the_schedule_stretches_over_them():
    old, new = (f"train:\n  steps: {n}\npolicy:\n  schedule: cosine\n" for n in (5, 9))
    assert check_resume(state(old), state(new))[0].startswith("train.steps was 5, is 9; resuming would mix two runs")
    assert check_resume(state(old), state(new), allow=True) == []
    assert check_resume(state(old.replace("cosine", "constant")), state(new.replace("cosine", "constant"))) == []


def test_another_model_or_plugin_version_is_refused_unless_allowed():
    new = state(record=manifest(model="n" * 12, plugin="2.0"))
    problems = check_resume(state(), new)
    assert [p.partition(";")[0] for p in problems] == [
        "files of the model, tokenizer or chat template: sha256 was mmmmmmmmmmmm, is nnnnnnnnnnnn",
        "plugin core was ramet 1.0, is ramet 2.0",
    ]
    assert check_resume(state(), new, allow=True) == []


def test_a_plugin_whose_code_changed_in_the_same_version_is_refused_if_the_run_uses_it():
    def with_code(code: str | None) -> Manifest:
        made = manifest()
        made.plugins = [
            PluginRecord(name="arpo", distribution="ramet-arpo", version="0.1.0", contract="1",
                         offers={"branch_policy": ["arpo"]}, broken=None, code=code),
            PluginRecord(name="mine", distribution="my-tools", version="1.2", contract="1",
                         offers={"tools": ["search", "weather"]}, broken=None, code=code),
        ]  # fmt: skip
        return made

    text = "branch_policy:\n  name: none\ntools:\n  weather:\n    timeout_s: 3\n"
    before, after = state(text, with_code("a" * 64)), state(text, with_code("b" * 64))
    assert check_resume(before, after) == [
        "code of plugin mine (my-tools 1.2): sha256 was aaaaaaaaaaaa, is bbbbbbbbbbbb; resuming would mix two runs: "
        "undo it, choose another run.name, or set run.allow_config_change=true"
    ]
    assert check_resume(before, after, allow=True) == []
    instance = text.replace("timeout_s: 3", "timeout_s: 3\n  other:\n    use: search").replace("weather", "gone")
    assert len(check_resume(state(instance, with_code("a")), state(instance, with_code("b")))) == 1
    assert check_resume(state("tools: {}\n", with_code("a")), state("tools: {}\n", with_code("b"))) == []
    assert check_resume(before, state(text, with_code(None))) == []


def test_the_manifest_holds_a_hash_of_each_plugins_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_the_directory_of_another_job_is_refused():
    other = manifest()
    other.job = "sft"
    assert check_resume(state(record=other), state()) == [
        "the run directory holds a `ramet sft` run, not `ramet train`"
    ]


def test_a_resume_reads_what_the_directory_recorded(tmp_path: Path):
    with RunDir.open(tmp_path, "mine") as run:
        run.record(resolved(), manifest())
    with RunDir.open(tmp_path, "mine") as run:
        changed = resolved("run:\n  seed: 1\npolicy:\n  lr: 2\n")
        assert run.check_resume(changed, manifest())[0].startswith("policy.lr was (absent), is 2")
        assert run.check_resume(replace(changed, config=resolved(allow=True).config), manifest()) == []
        (run.path / "config.yaml").unlink()
        with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read"):
            run.check_resume(changed, manifest())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        (["thesis.tex"], "thesis.tex"),
        (["config.yaml"], "config.yaml"),  # a name of ours, in a folder that is not ours
        ([".thesis.tmp", "LOCK"], ".thesis.tmp"),
        (["checkpoints/step_000001/weights.bin", "LOCK"], "checkpoints/step_000001"),
        (["rollouts/notes.txt"], "rollouts/notes.txt"),
        (["a", "b", "c", "d", "e"], "a, b, c, …"),
    ],
)
def test_a_folder_that_holds_anything_but_a_run_is_refused_and_left_alone(tmp_path: Path, files: list[str], shown: str):
    for name in files:
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text("" if name == "LOCK" else "precious")
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError) as caught:
        RunDir.open(tmp_path, "mine")
    assert str(caught.value) == (
        f"run directory {str(tmp_path / 'mine')!r} holds what no run has written ({shown}), and no manifest.json of a "
        "run; choose another run.name or run.root"
    )
    assert snapshot(tmp_path) == before


def test_a_manifest_of_something_else_makes_no_run(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/manifest.json").write_text('{"manifest_version": 3, "name": "a browser extension"}')
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError) as caught:
        RunDir.open(tmp_path, "mine")
    assert str(caught.value) == f"{tmp_path / 'mine/manifest.json'}: format None; this ramet reads format 1"
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("last", ["LOCK", "config.yaml", "overrides.txt", ".manifest.json.0a1b2c3d.tmp"])
def test_what_a_torn_start_leaves_is_taken_over(tmp_path: Path, last: str):
    left = ["LOCK", "config.yaml", "overrides.txt", ".manifest.json.0a1b2c3d.tmp"]
    for folder in ("rollouts", "checkpoints"):
        (tmp_path / "mine" / folder).mkdir(parents=True)
    for name in left[: left.index(last) + 1]:
        (tmp_path / "mine" / name).touch()
    with RunDir.open(tmp_path, "mine") as run:
        assert not run.resumed
        assert not list(run.path.glob(".*.tmp"))


def test_only_names_that_ramet_writes_are_deleted(tmp_path: Path):
    with RunDir.open(tmp_path, "mine") as run:
        run.record(resolved(), manifest())
    ours = [".config.yaml.0a1b2c3d.tmp", ".ranks.17.tmp", ".metrics.jsonl.0a1b2c3d.tmp", ".sft.json.0a1b2c3d.tmp"]
    ours.append("rollouts/.step_000012.jsonl.gz.0a1b2c3d.tmp")
    theirs = [".thesis.tmp", ".config.yaml.tmp.tmp", "rollouts/.notes.tmp", ".ranks.old.tmp"]
    for name in [*ours, *theirs]:
        (run.path / name).touch()
    RunDir.open(tmp_path, "mine").close()
    assert [name for name in [*ours, *theirs] if (run.path / name).exists()] == theirs


@pytest.mark.parametrize("name", ["metrics.jsonl", "model", "checkpoints", "rollouts", "results.json.partial.jsonl"])
def test_a_run_writes_through_no_link_that_lies_in_its_directory(tmp_path: Path, name: str):
    with RunDir.open(tmp_path / "runs", "mine") as run:
        run.record(resolved(), manifest())
    if (run.path / name).is_dir():
        (run.path / name).rmdir()
    (tmp_path / "precious").write_text("a line\nand one without an end")
    (run.path / name).symlink_to(tmp_path / "precious")
    before = snapshot(tmp_path)
    expected = (
        f"run directory {str(run.path)!r} holds links ({name}), and a run writes only into its own directory; put what "
        "they lead to in their place, or choose another run.name"
    )
    with pytest.raises(ConfigError) as caught:
        RunDir.open(tmp_path / "runs", "mine")
    assert str(caught.value) == expected
    assert snapshot(tmp_path) == before


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "letter").write_text("")
    (tmp_path / "mine/LOCK").symlink_to(tmp_path / "letter")
    with pytest.raises(ConfigError) as caught:
        RunDir.open(tmp_path, "mine")
    assert str(caught.value) == (
        f"run directory {str(tmp_path / 'mine')!r} holds what no run has written (LOCK), and no manifest.json of a "
        "run; choose another run.name or run.root"
    )
    assert (tmp_path / "letter").read_text() == ""
