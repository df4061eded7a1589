"""Commands and trackers that packages bring, from real entry points: a distribution is laid out on the import path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.config.schema import Config
from ramet.plugins import extensions
from ramet.tracking.trackers import check_trackers, make_trackers
from ramet.types import TrackedRun

Install = Callable[..., None]
MODULE = '''
from pathlib import Path


def ledger(arguments):
    """Build a ledger from JSON lines."""
    print("ledger", *arguments)
    return 3 if "fail" in arguments else None


def fails(arguments):
    """Look something up that is not there."""
    return {}[arguments[0]]


def needs_torch(arguments):
    """Run a model."""
    raise ModuleNotFoundError("No module named 'torch'", name="torch.nn")


def leaves(arguments):
    """Reads its arguments with argparse, which leaves the process."""
    import argparse
    argparse.ArgumentParser(prog="ramet leaves").parse_args(arguments)


def broken_tracker(run):
    raise ConnectionError("no route to host")


class _File:
    def __init__(self, run):
        self.path = Path(run.folder) / "tracked.txt"

    def log(self, step, metrics):
        with self.path.open("a") as file:
            file.write(f"{step} {sorted(metrics.items())}\\n")

    def rewind(self, step):
        self.path.write_text("")

    def close(self):
        with self.path.open("a") as file:
            file.write("closed\\n")


def file_tracker(run):
    return _File(run)
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Lay out a distribution with entry points: `install("ramet-ledger", commands={"ledger": "module:function"})`."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "ledger_plugin.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(site))

    def lay_out(distribution: str, **groups: dict[str, str]) -> None:
        folder = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = []
        for group, points in groups.items():
            lines += [f"[ramet.{group}]", *(f"{name} = {value}" for name, value in points.items())]
        (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")

    yield lay_out
    sys.modules.pop("ledger_plugin", None)


def test_a_command_of_a_plugin_gets_its_arguments_and_gives_the_exit_code(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("ramet-ledger", commands={"ledger": "ledger_plugin:ledger"})
    assert main(["ledger", "build", "--out", "x"]) == 0
    assert main(["ledger", "fail"]) == 3
    assert capsys.readouterr().out == "ledger build --out x\nledger fail\n"


def test_a_command_of_a_plugin_that_fails_is_named_with_its_package(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("ramet-ledger", commands={"fails": "ledger_plugin:fails"})
    assert main(["fails", "gone"]) == 1
    line = 1 + MODULE[: MODULE.index("return {}[")].count("\n")
    assert capsys.readouterr().err == (
        f"error: command 'fails' of ramet-ledger: KeyError: 'gone' (ledger_plugin.py:{line})\n"
    )


def test_a_package_that_an_extra_of_the_core_brings_is_named_for_a_command_of_a_plugin_too(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("ramet-ledger", commands={"needs": "ledger_plugin:needs_torch"})
    assert main(["needs"]) == 1
    assert "install it with: pip install 'ramet[train]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "package"),
    [("credit", "ramet-replay[train]"), ("test", "ramet-replay[train]"), ("bench", "ramet-benchmarks[branching]")],
)
def test_a_command_of_a_package_that_is_absent_names_it(
    name: str, package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "entry_points", lambda group: ())
    assert main([name, "runs/first"]) == 1
    assert f"error: no command '{name}'. It is in a package: pip install '{package}'. " in capsys.readouterr().err


def test_a_command_of_a_plugin_may_leave_as_argparse_does(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("ramet-ledger", commands={"leaves": "ledger_plugin:leaves"})
    assert main(["leaves", "--help"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["leaves", "--wrong"]) == 2
    assert capsys.readouterr().err == (
        "usage: ramet leaves [-h]\nramet leaves: error: unrecognized arguments: --wrong\n"
    )


def test_help_lists_commands_of_plugins_with_their_package_and_what_is_broken(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("ramet-ledger", commands={"ledger": "ledger_plugin:ledger", "torn": "ledger_plugin:gone"})
    assert main(["--help"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert " of plugins " in page
    assert " ledger Build a ledger from JSON lines. (ramet-ledger) " in page
    assert (
        " torn BROKEN command 'torn' of ramet-ledger: AttributeError: module 'ledger_plugin' has no attribute 'gone' "
    ) in page


def test_a_command_that_two_packages_offer_is_refused_by_name(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("ramet-ledger", commands={"ledger": "ledger_plugin:ledger"})
    install("other-ledger", commands={"ledger": "ledger_plugin:ledger"})
    assert main(["ledger"]) == 1
    assert capsys.readouterr().err == (
        "error: ramet.commands: 'ledger' is offered by other-ledger and by ramet-ledger; uninstall one\n"
    )


def test_a_command_cannot_take_a_name_of_the_core(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("ramet-ledger", commands={"plugins": "ledger_plugin:ledger"})
    assert main(["plugins", "--json"]) == 0
    assert capsys.readouterr().out.startswith("[")
    main(["--help"])
    assert "list what is installed, and what failed to load (not the one of ramet-ledger: the name is taken)" in (
        " ".join(capsys.readouterr().out.split())
    )


def test_a_mistyped_command_is_told_with_those_of_plugins(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("ramet-ledger", commands={"ledger": "ledger_plugin:ledger"})
    assert main(["legder"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: no command 'legder'. Did you mean 'ledger'? Commands: train, sft, eval, ")
    assert ", ledger" in error


def chosen(*trackers: str) -> Config:
    return Config(trackers=list(trackers))


def test_a_tracker_of_a_plugin_gets_every_call(install: Install, tmp_path: Path) -> None:
    install("ramet-file", trackers={"file": "ledger_plugin:file_tracker"})
    assert check_trackers(chosen("file")) == []
    trackers = make_trackers(chosen("file"), TrackedRun(folder=tmp_path, total_steps=2))
    trackers.rewind(0)
    trackers.log(1, {"reward/mean": 0.5})
    trackers.close()
    assert (tmp_path / "tracked.txt").read_text() == "1 [('reward/mean', 0.5)]\nclosed\n"


def test_a_tracker_that_cannot_be_made_never_stops_a_run(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("ramet-file", trackers={"file": "ledger_plugin:broken_tracker"})
    trackers = make_trackers(chosen("file"), TrackedRun(folder=tmp_path, total_steps=2))
    trackers.close()
    assert list(trackers.trackers) == ["jsonl", "run.log"]
    [message] = [record.getMessage() for record in caplog.records]
    line = 1 + MODULE[: MODULE.index("raise ConnectionError")].count("\n")
    assert message.startswith("tracker file could not be made")
    assert message.endswith(f": ConnectionError('no route to host') (ledger_plugin.py:{line})")


def test_a_tracker_that_cannot_be_imported_is_an_error_before_the_start(install: Install) -> None:
    install("ramet-file", trackers={"file": "ledger_plugin:gone"})
    broken, unknown = check_trackers(chosen("file", "filee"))
    assert broken.startswith("trackers: tracker 'file' of ramet-file: AttributeError: ")
    assert unknown.startswith("trackers: no tracker 'filee'. ") and unknown.endswith(", file")
