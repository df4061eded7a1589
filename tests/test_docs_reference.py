"""The generated reference is complete: variables, keys, files of a run and their fields are those of the code."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from ramet.api import evaluate, train
from ramet.models.tiny import make_tiny_model
from ramet.planning.run_plan import RECORDS

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "docs"
MODULES = [path.stem for path in SCRIPT.glob("*.py")]
SOURCES = [ROOT / "core" / "src", *sorted(ROOT.glob("plugins/*/src"))]
READS = ("os.environ.get", "os.environ.setdefault", "os.environ.pop", "os.getenv")
# Names that come from elsewhere: a table of the same module, an option, or the environment of another process.
ELSEWHERE = {
    "core/src/ramet/cluster/ray/driver_environment.py", "core/src/ramet/cluster/ray/session.py",
    "core/src/ramet/config/secrets.py", "core/src/ramet/engines/vllm/environment.py",
    "core/src/ramet/engines/vllm/launch.py", "core/src/ramet/helpers/openai/client.py",
    "core/src/ramet/migrate/shell_values.py", "core/src/ramet/plugins/sources.py",
    "core/src/ramet/rollout/agents/command.py", "core/src/ramet/runs/stopped.py",
    "core/src/ramet/sft/world.py", "plugins/tools_bing/src/ramet_tools_bing/config.py",
}  # fmt: skip
TINY = ["model.device=cpu", "data.max_prompt_tokens=500", "rollout.max_response_tokens=8", "trackers=[jsonl]"]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """`load(name)`: a module of the script, whose names are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(SCRIPT))
    kept = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


def constants(tree: ast.Module) -> dict[str, object]:
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def names_read() -> Iterator[tuple[str, object]]:
    """File and environment variable of each read; None for a name that is neither written nor a module's constant."""
    paths = [path for source in SOURCES for path in sorted(source.rglob("*.py"))]
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    imported = {name: value for tree in trees.values() for name, value in constants(tree).items()}
    for where, tree in trees.items():
        known = imported | constants(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in READS:
                name = node.args[0]
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
                name = node.slice
            elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
                name = node.left
            else:
                continue
            yield where, name.value if isinstance(name, ast.Constant) else known.get(ast.unparse(name))


def test_every_environment_variable_that_the_code_reads_is_on_its_page(load) -> None:
    module: ModuleType = load("variables")
    documented = {*module.VARIABLES, *module.INTERNAL}
    unknown = [(where, name) for where, name in names_read() if name not in documented]
    assert [(where, name) for where, name in unknown if name is not None or where not in ELSEWHERE] == []


def test_every_variable_of_the_page_is_in_the_code(load) -> None:
    module: ModuleType = load("variables")
    text = "".join(path.read_text(encoding="utf-8") for source in SOURCES for path in source.rglob("*.py"))
    assert [name for name in (*module.VARIABLES, *module.INTERNAL) if f'"{name}"' not in text] == []


def test_every_key_is_on_the_page_of_its_section(load) -> None:
    data: ModuleType = importlib.import_module("ramet.cli.help_data")
    pages = load("keys").key_pages()
    for section in data.sections():
        page = pages[f"reference/keys/{section.name}.md"]
        keys = [*section.keys, *(key for component in section.components for key in component.keys)]
        assert [key.key for key in keys if f"| `{key.key}` |" not in page] == []
        assert f"({section.name}.md)" in pages["reference/keys/index.md"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of a training of one step and of an evaluation."""
    folder = tmp_path_factory.mktemp("runs")
    model = make_tiny_model(folder / "tiny", hidden=32, layers=2, heads=2, intermediate=64)
    (folder / "tasks.jsonl").write_text('{"prompt": "2+3?", "answer": "5"}\n{"prompt": "4+3?", "answer": "7"}\n')
    common = [f"model.path={model}", f"run.root={folder}", *TINY]
    train(
        [
            *common, f"data.train=[{folder / 'tasks.jsonl'}]", "rewards=[math]", "run.name=train", "train.steps=1",
            "train.tasks_per_step=2", "rollout.group_size=2",
        ]
    )  # fmt: skip
    evaluate(
        [*common, "benchmarks=[arithmetic]", "benchmarks.arithmetic.params.n_test=2", "evaluate.k=1", "run.name=eval"]
    )
    return [folder / "train", folder / "eval"]


def test_the_page_of_files_has_what_runs_write_and_the_fields_of_their_manifest(load, runs: list[Path]) -> None:
    module: ModuleType = load("files")
    documented = {name for names in module.FILES for name in names.split(", ")}
    for run in runs:
        written = {f"{path.name}/" if path.is_dir() else path.name for path in run.iterdir()}
        assert written <= documented
        assert set(json.loads((run / "manifest.json").read_text(encoding="utf-8"))) == set(module.MANIFEST)
    assert set(RECORDS) <= documented


def test_the_page_of_commands_has_the_help_of_each(load) -> None:
    page = load("commands").commands_page()
    commands = importlib.import_module("ramet.cli.commands").COMMANDS
    assert [name for name in commands if f"\n## ramet {name}\n" not in page] == []
    assert page.count("usage: ramet") >= len(commands)


def test_the_pictures_are_those_that_the_code_draws(load) -> None:
    pictures: ModuleType = load("pictures")
    drawn = {f"{name}.svg": draw() for name, draw in pictures.PICTURES.items()}
    assert {path.name: path.read_text(encoding="utf-8") for path in pictures.FOLDER.glob("*.svg")} == drawn
