"""Layers: no file imports one of a higher layer, no files or folders import each other, and `ramet --help` is light.

A package is a folder or module right below `ramet`; `docs/design.md` has the same table.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ramet

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core" / "src" / "ramet"
PLUGINS = sorted(path for path in (ROOT / "plugins").iterdir() if (path / "src").is_dir())

UTILITIES = {"io", "processes"}
CONTRACT = {"", "errors", "event_loop", "helpers", "plugins", "types"}  # "": ramet/__init__.py
LAYERS = [
    UTILITIES,
    CONTRACT,
    {"conf", "config"},
    {"algorithms", "builtin", "data", "engines", "hub", "models", "policy", "rollout", "runs", "tracking"},
    {"components"},
    {"cluster", "planning"},
    {
        "check",
        "doctor",
        "evaluate",
        "export",
        "history",
        "migrate",
        "pipeline",
        "play",
        "report",
        "scaffold",
        "sft",
        "train",
    },
    {"api"},
    {"__main__", "cli", "testing"},
]
LAYER = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}
RELEASE = ROOT / "plugins" / "release" / "src" / "ramet_release"
HEAVY = {"accelerate", "aiohttp", "numpy", "ray", "torch", "transformers", "vllm"}
AT_FIRST_USE = ("aiohttp", "core/src/ramet/helpers/http.py")  # its functions import it; test_import_hygiene


@dataclass(frozen=True)
class Import:
    module: str  # "ramet.types", or "ramet" + a name that is a package: `from ramet import types`
    for_types_only: bool
    where: str


class Imports(ast.NodeVisitor):
    """Every import of a file, also inside functions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[Import] = []
        self._for_types = False

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)
            return
        self._for_types = True
        for child in node.body:
            self.visit(child)
        self._for_types = False
        for child in node.orelse:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            named = CORE.joinpath(*module.split(".")[1:], alias.name) if module.partition(".")[0] == "ramet" else None
            is_module = named is not None and (named.with_suffix(".py").is_file() or named.is_dir())
            self._add(f"{module}.{alias.name}" if is_module else module, node)

    def _add(self, module: str, node: ast.stmt) -> None:
        where = f"{self.path.relative_to(ROOT)}:{node.lineno}"
        self.found.append(Import(module, self._for_types, where))


def imports_of(path: Path) -> list[Import]:
    visitor = Imports(path)
    visitor.visit(ast.parse(path.read_text()))
    return visitor.found


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def package_of(module: str) -> str | None:
    """The package of a module of the core: `rollout` of `ramet.rollout.tree`; None if it is not the core's."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "ramet" else None


def module_of(path: Path) -> str:
    parts = path.relative_to(CORE).with_suffix("").parts
    return ".".join(("ramet", *(part for part in parts if part != "__init__")))


def package_of_file(path: Path) -> str:
    package = package_of(module_of(path))
    assert package is not None
    return package


def core_imports() -> Iterator[tuple[str, str, Import]]:
    """(package of the file, package that it imports, the import)."""
    for path in files(CORE):
        for found in imports_of(path):
            target = package_of(found.module)
            if target is not None:
                yield package_of_file(path), target, found


def test_every_room_is_on_a_layer() -> None:
    packages = {package_of_file(path) for path in files(CORE)}
    assert packages <= set(LAYER), f"give these packages a layer: {sorted(packages - set(LAYER))}"


def test_the_design_page_names_every_room_from_the_lowest_layer_up() -> None:
    """A row may hold several layers."""
    page = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ") and "modules of" not in line]
    packages = [[name for name in re.findall(r"`(\w+)/?`", row) if name in LAYER] for row in rows]
    assert {name for row in packages for name in row} == set(LAYER) - {""}
    layers = [LAYER[name] for row in packages for name in sorted(row, key=lambda name: LAYER[name])]
    assert layers == sorted(layers)


@pytest.mark.parametrize("package", ["engines", "cluster"])
def test_a_package_with_exchangeable_parts_names_them_all(package: str) -> None:
    said = ast.get_docstring(ast.parse((CORE / package / "__init__.py").read_text())) or ""
    parts = {path.parent.name for path in CORE.glob(f"{package}/*/__init__.py")}
    assert parts and {part for part in parts if f"`{part}/`" not in said} == set()


def test_nothing_imports_upwards() -> None:
    wrong = [f"{i.where} ({package} imports {to})" for package, to, i in core_imports() if LAYER[to] > LAYER[package]]
    assert not wrong, "imports of a layer above:\n" + "\n".join(wrong)


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for types alone do not count: nothing is loaded by them."""
    modules = {module_of(path): path for path in files(CORE)}
    needed = {
        module: {i.module for i in imports_of(path) if i.module in modules and not i.for_types_only} - {module}
        for module, path in modules.items()
    }
    free: set[str] = set()
    while ready := {module for module, others in needed.items() if module not in free and others <= free}:
        free |= ready
    circle = {module: sorted(others - free) for module, others in needed.items() if module not in free}
    assert not circle, f"these files import each other in a circle, or a file of one: {circle}"


def test_no_folders_import_each_other() -> None:
    """Also within a layer, and also for types alone."""
    arrows = {(package, to) for package, to, _ in core_imports() if package != to and "" not in (package, to)}
    assert {(one, other) for one, other in arrows if (other, one) in arrows} == set()


def test_the_contract_needs_only_the_standard_library_and_pluggy() -> None:
    allowed = set(sys.stdlib_module_names) | {"pluggy", "ramet"}
    wrong = []
    for path in (path for path in files(CORE) if package_of_file(path) in CONTRACT | UTILITIES):
        for found in imports_of(path):
            top = found.module.partition(".")[0]
            at_use = top == AT_FIRST_USE[0] and found.where.startswith(AT_FIRST_USE[1])
            if top not in allowed and not at_use and not (top == "torch" and found.for_types_only):
                wrong.append(f"{found.where} ({found.module})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["builtin", "cli", "conf", "config"])
def test_what_help_loads_imports_nothing_heavy(package: str) -> None:
    found = [i for path in files(CORE) if package_of_file(path) == package for i in imports_of(path)]
    assert not [f"{i.where} ({i.module})" for i in found if i.module.partition(".")[0] in HEAVY]


def test_the_core_imports_by_full_names() -> None:
    assert not [i.where for path in files(CORE) for i in imports_of(path) if i.module.startswith(".")]


def test_only_one_module_knows_hydra() -> None:
    knows = {
        path.relative_to(CORE).as_posix()
        for path in files(CORE)
        for found in imports_of(path)
        if found.module.partition(".")[0] == "hydra"
    }
    assert knows == {"config/hydra_adapter.py"}


def test_nothing_private_of_others_is_imported() -> None:
    """It may change in any version of theirs. Ray has no public way to say at which object store its worker is, nor to
    read its token again in a process that has imported it. torch's documents import `TorchDispatchMode` so.
    """
    allowed = {f"core/src/ramet/cluster/ray/session.py: {module}" for module in ("ray._private.worker", "ray._raylet")}
    allowed.add("core/src/ramet/testing/device_waits.py: torch.utils._python_dispatch")
    private = set()
    for folder in (CORE, *(plugin / "src" for plugin in PLUGINS)):
        for path in files(folder):
            for found in imports_of(path):
                if re.search(r"\._", found.module) and package_of(found.module) is None:
                    private.add(f"{path.relative_to(ROOT).as_posix()}: {found.module}")
    assert private == allowed


def test_components_and_jobs_never_see_omegaconf() -> None:
    """They receive dataclasses. `runs` and `report` read the configuration that a run has saved."""
    allowed = {"config", "cli", "runs", "report"}
    wrong = [
        found.where
        for path in files(CORE)
        if package_of_file(path) not in allowed
        for found in imports_of(path)
        if found.module.partition(".")[0] == "omegaconf"
    ]
    assert not wrong, "\n".join(wrong)


def _code(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".yaml")]


def test_nothing_of_the_core_and_of_other_plugins_mentions_the_released_schedule() -> None:
    """Of the rollout method that a branch policy names, the core knows the seam (`rollout/method`) alone."""
    others = [CORE, *(plugin / "src" for plugin in PLUGINS if plugin.name != "release")]
    mention = re.compile(r"lockstep|in_rounds|ramet_release", re.IGNORECASE)
    found = [path for folder in others for path in _code(folder) if mention.search(path.read_text(encoding="utf-8"))]
    assert found == []


def command_packages(plugin: Path) -> set[Path]:
    """The folders with commands of a plugin that needs exactly the core's version, also if only for an extra.

    They may import the core's jobs, as the core's own commands do: no version of one meets another version of the
    other. Commands of other plugins keep the rule of all plugins.
    """
    project = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]
    exact = re.compile(rf"ramet(\[\w+\])?=={re.escape(project['version'])}")
    needs = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    if not any(exact.fullmatch(need) for part in needs for need in part):
        return set()
    points = project["entry-points"].get("ramet.commands", {}).values()
    return {(plugin / "src").joinpath(*point.partition(":")[0].split(".")).parent for point in points}


def test_two_plugins_have_packages_of_commands() -> None:
    named = {f"{folder.parent.name}.{folder.name}" for plugin in PLUGINS for folder in command_packages(plugin)}
    assert named == {"ramet_benchmarks.branching", "ramet_replay.credit", "ramet_replay.replay_test"}


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_imports_ramet_from_its_top_and_helpers_only_and_no_other_plugin(plugin: Path) -> None:
    """`ramet_release` needs internals of the core: one file imports them. Packages of commands import the jobs."""
    own, commands = {path.name for path in (plugin / "src").iterdir()}, command_packages(plugin)
    wrong = []
    for path in files(plugin / "src"):
        for found in imports_of(path):
            top = found.module.partition(".")[0]
            public = (
                found.module in ("ramet", "ramet.helpers")
                or path == RELEASE / "internals.py"
                or path.parent in commands
            )
            deeper = top == "ramet" and not public
            if deeper or (top.startswith("ramet_") and top not in own):
                wrong.append(f"{found.where} ({found.module})")
    assert not wrong, "\n".join(wrong)


def test_the_list_of_internals_is_what_the_release_uses() -> None:
    """None of them twice, none that nothing imports, and nothing that `ramet` itself offers."""
    tree = ast.parse((RELEASE / "internals.py").read_text())
    listed = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    listed = [name for name in listed if name not in ("annotations", "TYPE_CHECKING")]
    used = {
        alias.name
        for path in files(RELEASE)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "ramet_release.internals"
        for alias in node.names
    }
    assert sorted(listed) == sorted(used)
    assert not used & set(ramet.__all__)
