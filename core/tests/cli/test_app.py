"""The command line as a user meets it: in a process of its own where imports and exit codes matter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ramet
import ramet.conf
from ramet.cli import main, report
from ramet.cli.commands import COMMANDS, GROUPS
from ramet.config.schema import ModelConfig
from ramet.errors import ConfigError, ConfigErrors, InfraError, PluginError
from ramet.io.os_errors import os_error_text
from ramet.models.check import check_model

HEAVY = ("torch", "ray", "vllm", "transformers", "numpy")


def loaded_after(code: str) -> list[str]:
    script = f"import sys\n{code}\nprint('LOADED', [m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout.rpartition("LOADED ")[2])


@pytest.mark.parametrize(("set_before", "then"), [(None, "false"), ("true", "true")])
def test_the_program_turns_off_the_threads_of_tokenizers_unless_they_are_asked_for(
    set_before: str | None, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", set_before or "")
    if set_before is None:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    code = "import os, ramet.cli.app as app; app.exit_soon = lambda code: print(os.environ['TOKENIZERS_PARALLELISM'])"
    done = subprocess.run([sys.executable, "-c", f"{code}; app.main()", "--version"], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == then, done.stderr


@pytest.mark.parametrize(
    "code",
    ["import ramet"]
    + [f"from ramet.cli import main; main({args!r})" for args in (["--help"], ["plugins"], ["train", "--help"])],
)
def test_help_and_listing_load_nothing_heavy(code: str):
    assert loaded_after(code) == []


def test_help_alone_loads_no_hydra_either():
    code = "import sys; from ramet.cli import main; main(['--help']); print({'omegaconf', 'hydra'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("set()\n")


def test_the_installed_command_ends_with_the_exit_code_of_main(tmp_path: Path):
    script = Path(sys.executable).with_name("ramet")
    done = subprocess.run([script, "trian"], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    said = f"error: no command 'trian'. Did you mean 'train'? Commands: {', '.join(COMMANDS)}"
    assert done.stderr.splitlines()[0].startswith(said)  # those of installed packages follow


def test_help_and_version_are_printed(capsys: pytest.CaptureFixture[str]):
    assert main([]) == main(["--help"]) == 0
    assert f"  {next(iter(COMMANDS))} " in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ramet {ramet.__version__}\n"


def test_the_overview_fits_a_screen_with_every_command_in_its_group(capsys: pytest.CaptureFixture[str]):
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50 and max(map(len, lines)) <= 100
    assert [line for line in lines if line in GROUPS] == ["run", "inspect", "check", "make"]
    assert len([line for line in lines if line.startswith("  ramet ")]) == 3


def test_cfg_prints_what_would_run_and_runs_nothing(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "model.path=m", "--cfg", "job", "train.steps=3"]) == 0
    out = capsys.readouterr().out
    assert "path: m" in out and "steps: 3" in out


def test_every_mistake_is_one_line_and_the_exit_code_is_1(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "model.path=m", "foo=1", "policy.lr=x"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[:2] for line in lines] == [["error", " foo"], ["error", " policy.lr"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tool-s", "nan"], "--tool-s nan: must be a number above 0"),
        (["--response-tokens", "0"], "--response-tokens 0: must be a number above 0"),
        (["--tool-s", "2", "-m"], "--response-tokens, --tool-s: say what `ramet train --dry-run` counts on; add"),
    ],
)
def test_what_a_plan_cannot_count_on_is_refused(options: list[str], expected: str, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "--dry-run", *options]) == 1
    assert expected in capsys.readouterr().err


def test_debug_adds_a_traceback(capsys: pytest.CaptureFixture[str]):
    assert main(["--debug", "train", "foo=1"]) == main(["train", "foo=1", "--debug"]) == 1
    assert capsys.readouterr().err.count("Traceback") >= 2


def test_an_unknown_option_is_the_users_mistake(capsys: pytest.CaptureFixture[str]):
    assert main(["plugins", "--jsn"]) == 1
    assert "error: unrecognized arguments: --jsn; see `ramet plugins --help`" in capsys.readouterr().err


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], int]], None]:
    """Put a function instead of the training job, which refuses nothing before it begins."""

    def put(run: Callable[[Any], int]) -> None:
        monkeypatch.setitem(sys.modules, "ramet.planning.early", SimpleNamespace(early_problems=lambda resolved: []))  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "ramet.train.training", SimpleNamespace(run=run))  # type: ignore[arg-type]

    return put


def raising(error: BaseException) -> Callable[[Any], int]:
    def run(resolved: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        (ConfigError("bad"), 1, "error: bad"),
        (ConfigErrors(["a", "b"]), 1, "error: b"),
        (PluginError("broken"), 1, "error: broken"),
        (InfraError("disk full"), 2, "error: disk full"),
        (ZeroDivisionError("oh"), 2, "error: internal: ZeroDivisionError: oh"),
        (SystemExit(0), 2, "error: internal: something left the program with exit code 0"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_the_exit_code_says_whose_fault_it_was(job, capsys, error: BaseException, code: int, last: str):
    job(raising(error))
    assert main(["train", "model.path=m"]) == code
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == last
    assert ("Traceback" in err) == isinstance(error, ZeroDivisionError | SystemExit)


def test_a_package_that_an_extra_brings_is_named_with_the_command_that_installs_it(job, capsys):
    job(raising(ModuleNotFoundError("No module named 'torch'", name="torch.nn")))
    assert main(["train", "model.path=m"]) == 1
    assert capsys.readouterr().err == (
        "error: this needs the package 'torch', which is not installed; install it with: pip install 'ramet[train]'\n"
    )
    job(raising(ModuleNotFoundError("No module named 'typo'", name="typo")))
    assert main(["train", "model.path=m"]) == 2


def test_a_job_gets_the_resolved_configuration(job):
    seen = []
    job(seen.append)
    assert main(["train", "model.path=m"]) == 0
    assert (seen[0].job, seen[0].config.model.path) == ("train", "m")


def test_plugins_as_json_names_everything_installed(capsys: pytest.CaptureFixture[str]):
    assert main(["plugins", "--json"]) == 0
    core = json.loads(capsys.readouterr().out)[0]
    assert (core["name"], core["distribution"], core["contract"], core["broken"]) == ("core", "ramet", "1", None)
    assert sorted(core["offers"]["branch_policy"]) == [
        "none", "random", "shuffled", "stored_prefix", "token_entropy", "tree_grpo", "value_guided",
    ]  # fmt: skip
    presets = sorted(file.stem for file in Path(ramet.conf.__file__).parent.glob("algorithm/*.yaml"))
    variants = {"policy_loss": ["ppo_single_clip"]}
    assert core["presets"] == {"algorithm": presets, "cluster": ["local", "ray"], **variants}
    assert {"grpo", "ppo", "rloo", "gspo"} <= set(presets)
    assert core["unusable"] == {}


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_a_tiny_model_of_each_architecture_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], architecture: str
) -> None:
    folder = tmp_path / "models" / "tiny"
    assert main(["tiny-model", str(folder), "--arch", architecture]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"made {folder}"
    assert json.loads((folder / "config.json").read_text())["model_type"] == architecture
    assert check_model(ModelConfig(path=str(folder))) == []


def test_a_tiny_model_replaces_nothing_and_knows_its_architectures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["tiny-model", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: tiny-model: {str(tmp_path)!r} is there already; nothing was written\n"
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    assert main(["tiny-model"]) == 1
    told = "give the folder to make, as in `ramet tiny-model models/tiny`"
    assert capsys.readouterr().err == f"error: tiny-model: {told}\n"
    assert main(["tiny-model", "x", "--arch", "gpt2"]) == 1
    assert capsys.readouterr().err == (
        "error: argument --arch: invalid choice: 'gpt2' (choose from 'qwen2', 'qwen3', 'llama'); see `ramet tiny-model "
        "--help`\n"
    )


def test_a_broken_plugin_is_listed_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "brk_module.py").write_text("import nonexistent_lib\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RAMET_PLUGINS", "brk_module")
    done = subprocess.run(
        [Path(sys.executable).with_name("ramet"), "plugins"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    row = next(line for line in done.stdout.splitlines() if line.startswith("brk_module"))
    assert "BROKEN ModuleNotFoundError: No module named 'nonexistent_lib'" in row


def test_a_report_needs_a_run_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == main(["report", "nope"]) == 1
    assert "neither a directory nor a name under runs/" in capsys.readouterr().err


def test_a_report_finds_a_run_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "runs/mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    calls = []
    monkeypatch.setattr(report, "write_report", lambda run, out: calls.append((run, out)) or run / "report.html")
    assert main(["report", "mine"]) == 0
    assert calls == [(Path("runs/mine"), None)]
    assert capsys.readouterr().out == "runs/mine/report.html\n"


def test_a_reader_that_goes_away_is_no_error():
    command = f"{Path(sys.executable).with_name('ramet')} plugins --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("stream", "argument", "code", "said"),
    [
        ("stdout", "--version", 2, "error: standard output: No space left"),
        ("stderr", "trian", 1, ""),
    ],
)
def test_an_output_on_a_full_disk_is_no_traceback_and_keeps_the_exit_code(
    stream: str, argument: str, code: int, said: str
):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    other = "stderr" if stream == "stdout" else "stdout"
    with open("/dev/full", "w") as full:
        streams: dict[str, Any] = {stream: full, other: subprocess.PIPE}
        command = [str(Path(sys.executable).with_name("ramet")), argument]
        done = subprocess.run(command, text=True, timeout=60, **streams)
    printed = done.stderr or done.stdout or ""
    assert (done.returncode, printed[: len(said)], bool(printed)) == (code, said, bool(said))


@pytest.mark.parametrize(
    "error",
    [PermissionError(13, "Permission denied", "data/x"), OSError(28, "No space left on device", "runs/x")],
)
def test_an_error_of_the_system_is_one_line_with_its_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError
):
    def fails(arguments: object) -> int:
        raise error

    monkeypatch.setitem(COMMANDS, "plugins", SimpleNamespace(summary="", run=fails))
    assert main(["plugins"]) == 2
    assert capsys.readouterr().err == f"error: {os_error_text(error)}\n"
    assert main(["plugins", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_time_out_is_a_defect_of_ours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fails(arguments: object) -> int:
        raise TimeoutError("nobody answered")

    monkeypatch.setitem(COMMANDS, "plugins", SimpleNamespace(summary="", run=fails))
    assert main(["plugins"]) == 2
    assert capsys.readouterr().err.endswith("error: internal: TimeoutError: nobody answered\n")
