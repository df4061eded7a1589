"""What `ramet new` writes and what it refuses. That the packages work is proved by tests/wheels."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ramet.cli import main
from ramet.errors import ConfigError
from ramet.plugins import CONTRACT_VERSION
from ramet.scaffold import KINDS, write_package

CORE = Path(__file__).resolve().parents[2] / "pyproject.toml"


def project_of(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_filled_in_and_python_parses(kind: str, tmp_path: Path) -> None:
    package = write_package(kind, "of_mine", tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == set(
        package.files
    )
    for file in package.files:
        text = (tmp_path / file).read_text()
        assert not [mark for mark in ("${", "PACKAGE", "NAME", ".tmpl") if mark in text + file]
        if file.endswith(".py"):
            ast.parse(text)


def imported(folder: Path) -> set[str]:
    """Top-level modules that neither Python nor Ramet brings."""
    trees = [ast.parse(path.read_text()) for path in folder.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names} - {"ramet", "ramet_of_mine", *sys.stdlib_module_names}


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_pins_agree_with_the_core(kind: str, tmp_path: Path) -> None:
    write_package(kind, "of_mine", tmp_path)
    project, core = project_of(tmp_path), tomllib.loads(CORE.read_text())["project"]
    minor = int(core["version"].split(".")[1])
    assert project["name"] == "ramet-of-mine"
    one = KINDS[kind]
    target = ":".join(filter(None, ["ramet_of_mine", one.attribute.format(name="of_mine")]))
    assert project["entry-points"] == {one.group: {"of_mine": target}}
    assert project["requires-python"] == core["requires-python"]
    extra, extras = f"[{one.extra}]" if one.extra else "", core["optional-dependencies"]
    assert project["dependencies"] == [f"ramet{extra}>={core['version']},<0.{minor + 1}", *one.needs]
    assert {one.extra, one.test_extra} <= {"", *extras}
    assert {re.split(r"\W", need)[0] for need in one.needs} == imported(tmp_path / "src")
    assert all(need in extras["train"] for need in one.needs if need.startswith("torch"))
    module = (tmp_path / "src/ramet_of_mine/__init__.py").read_text()
    assert (f'ramet_contract = "{CONTRACT_VERSION}"' in module) == bool(one.registry)
    readme = (tmp_path / "README.md").read_text()
    assert ("ramet_contract" in readme) == ("check_plugin" in readme) == bool(one.registry)
    assert (tmp_path / "src/ramet_of_mine/py.typed").is_file()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My-Tool", "Did you mean 'my_tool'?"),
        ("a__b", "Did you mean 'a_b'?"),
        ("3d-search2!", "Did you mean 'd_search2'?"),
        ("9", "a letter first"),
        ("", "a letter first"),
        ("../up", "Did you mean 'up'?"),
        ("x" * 41, "at most 40 characters"),
        ("ramet_weather", "leave 'ramet' out of 'ramet_weather': 'weather' becomes the distribution ramet-weather"),
        ("class", "would hide"),
        ("print", "would hide"),
        ("hookimpl", "would hide"),
        ("register", "would hide"),
        ("core", "is the name of a plugin that is installed (ramet)"),
    ],
)
def test_a_name_that_cannot_work_is_refused_with_the_reason(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write_package("tool", name, tmp_path / "made")
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_class_must_not_hide_a_name_of_the_contract(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="BranchPolicy"):
        write_package("branch_policy", "branch", tmp_path)
    assert write_package("reward", "print", tmp_path).distribution == "ramet-print"  # this template defines no name


def test_a_name_that_is_offered_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the advantage estimator 'grpo' is offered by ramet; choose another"):
        write_package("advantage", "grpo", tmp_path)
    with pytest.raises(ConfigError, match="the tracker 'jsonl' is offered by ramet; choose another"):
        write_package("tracker", "jsonl", tmp_path)
    assert main(["new", "command", "train", "--dir", str(tmp_path)]) == 1
    assert write_package("tool", "grpo", tmp_path).name == "grpo"  # kinds have names of their own


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty \(it has 'mine.txt'\)"):
        write_package("tool", "weather", tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        write_package("tool", "weather", tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["new", "tool", "No", "--dir", str(tmp_path)]) == 1
    assert [line.split(":")[1] for line in capsys.readouterr().err.splitlines()] == [" name", " folder"]


def test_the_command_says_what_it_made_and_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "benchmark", "quiz"]) == 0
    said = capsys.readouterr().out
    assert "  src/ramet_quiz/quiz_test.jsonl\n" in said and "cd ramet-quiz\n" in said
    assert "ramet eval benchmarks=[quiz]" in said
    assert (tmp_path / "ramet-quiz/README.md").read_text().startswith("# ramet-quiz\n")


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").split()
    assert set(KINDS) <= set(words)
    assert main(["new"]) == main(["new", "tool"]) == main(["new", "gizmo", "x"]) == 1
    said = capsys.readouterr().err
    assert said.count("give a kind and a name") == 2
    assert "no kind 'gizmo'; allowed: tool, reward" in said
