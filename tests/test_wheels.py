"""Every wheel works with the core alone: those of this repository, and those of what `ramet new` writes.

`scripts/check_wheels.sh` proves it in fresh virtual environments; it runs once for all the tests here. Scaffolds that
need torch are tried in this environment instead, since a second torch would take minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramet.plugins import load_plugins
from ramet.scaffold import KINDS, write_package

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [ROOT / "core", *sorted(path.parent for path in ROOT.glob("plugins/*/src"))]
ALL = ROOT / "plugins/all"  # the metapackage
TORCH = [name for name, kind in KINDS.items() if kind.test_extra == "train" or kind.needs]
LIGHT = [name for name in KINDS if name not in TORCH]
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Proof:
    """What the script said, and the directory that it left."""

    code: int
    said: str
    work: Path

    def row(self, distribution: str) -> str:
        """The row of one package in the script's table."""
        (row,) = [line for line in self.said.splitlines() if line.split(" ")[0] == distribution]
        return row


def check_wheels(work: Path, packages: list[Path], together: list[Path]) -> Proof:
    """`together`: packages that share an environment."""
    done = subprocess.run(
        [ROOT / "scripts/check_wheels.sh", "--work", work, *packages, *(["--together", *together] if together else [])],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
    )
    return Proof(done.returncode, done.stdout + done.stderr, work)


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def name_of(package: Path) -> str:
    return str(tomllib.loads((package / "pyproject.toml").read_text())["project"]["name"])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Removed at the end: environments are too large to be kept."""
    with tempfile.TemporaryDirectory(prefix="ramet-wheels-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def scaffolds(folder: Path) -> dict[str, Path]:
    """Kind -> a package as `ramet new KIND my_KIND` writes it."""
    return {kind: write_package(kind, f"my_{kind}", folder / f"my_{kind}").folder for kind in KINDS}


@pytest.fixture(scope="module")
def proof(folder: Path, scaffolds: dict[str, Path]) -> Proof:
    """What `ramet new` writes is installed together: one template makes what all of them declare."""
    return check_wheels(folder / "work", PACKAGES, [scaffolds[kind] for kind in LIGHT])


def test_every_package_stands_alone(proof: Proof) -> None:
    assert proof.code == 0 and "every package works alone" in proof.said, proof.said


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_only_an_absent_extra_published_data_or_shell_keeps_modules_and_tests_of_a_package_back(
    proof: Proof, package: Path
) -> None:
    row = proof.row(name_of(package))
    assert row.endswith("  ok")
    assert int(re.findall(r"(\d+) passed", row)[0]) >= 3
    assert int(re.findall(r"(\d+) compose", row)[0]) >= (package.name != "replay")  # it has commands alone
    for reason in re.findall(r"\(\d+ (?:need|skipped:) ([^)]+)\)", row):
        assert excused(reason), f"neither for want of an extra, of published data nor of a shell: {reason}"


def excused(reason: str) -> bool:
    """An extra that is not installed, published data that is not next to the repository, a shell that is missing, a
    virtual environment of another project, or what this host forbids."""
    if re.match(r"this host does not allow |only root can try |RAMET_[A-Z]+ does not name a virtual env", reason):
        return True
    data = re.fullmatch(r"needs (\.\./shared/data/[\w./-]+)", reason)
    shell = re.fullmatch(r"(zsh|fish) is not installed", reason)  # no package of Python, so no extra can bring it
    return (
        re.match(r"ramet[\w-]*\[\w+\]", reason) is not None
        or (data is not None and not (ROOT / data[1]).exists())
        or (shell is not None and shutil.which(shell[1]) is None)
    )


def test_nothing_else_excuses_a_skipped_test() -> None:
    assert excused("ramet-benchmarks[hub] is not installed") and excused("needs ../shared/data/no/such/folder")
    assert not excused("needs ../shared/golden/no_such.json")
    assert not excused("the published data is not next to the repository")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_shell_that_completion_is_for_excuses_a_test_only_where_it_is_missing(
    shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert excused(f"{shell} is not installed") and not excused("git is not installed")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert not excused(f"{shell} is not installed")


def test_the_bare_core_installs_in_seconds_and_without_torch(proof: Proof) -> None:
    row = proof.row("ramet")
    assert float(re.findall(r"([\d.]+) s", row)[0]) < 60
    assert int(re.findall(r"(\d+) passed", row)[0]) > 300
    (packages,) = (proof.work / "environments/ramet").glob("lib/python3*/site-packages")
    assert {"ramet", "hydra"} <= {path.name for path in packages.iterdir()}
    assert not {"torch", "transformers", "numpy"} & {path.name for path in packages.iterdir()}


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_wheel_holds_types_and_licence_and_no_tests(proof: Proof, package: Path) -> None:
    (wheel,) = (proof.work / "built").glob(f"{name_of(package).replace('-', '_')}-[0-9]*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    assert any(file.endswith("/py.typed") for file in files)
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in files)
    own = {path.name for path in (package / "src").iterdir()}
    assert {file.split("/")[0] for file in files if ".dist-info/" not in file} == own
    assert not [file for file in files if Path(file).match("test_*.py") or Path(file).name == "conftest.py"]


@pytest.fixture(scope="module")
def built(proof: Proof, folder: Path) -> Callable[..., list[Path]]:
    """`built(name, *packages)` returns wheels in a folder of that name, made by the environment of the others."""
    pip = [sys.executable, "-m", "pip", "-q", "--python", str(proof.work / "builder/bin/python")]

    def build(name: str, *packages: Path) -> list[Path]:
        run(*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", folder / name, *packages, cwd=folder)
        return sorted((folder / name).glob("*.whl"))

    return build


def test_the_wheel_of_the_metapackage_holds_nothing_and_needs_every_other(
    built: Callable[..., list[Path]],
) -> None:
    [wheel] = built("all", ALL)
    with zipfile.ZipFile(wheel) as packed:
        assert {file.split("/")[0] for file in packed.namelist()} == {
            f"{wheel.name[: -len('-py3-none-any.whl')]}.dist-info"
        }
        [metadata] = [packed.read(file).decode() for file in packed.namelist() if file.endswith("/METADATA")]
    needs = re.findall(r"^Requires-Dist: ([\w-]+)\S*$", metadata, re.MULTILINE)
    assert sorted(needs) == sorted(map(name_of, PACKAGES))


@pytest.mark.parametrize("kind", LIGHT)
def test_a_scaffold_works_with_the_core_alone(kind: str, proof: Proof) -> None:
    row = proof.row(f"ramet-my-{kind.replace('_', '-')}")
    assert row.endswith("  ok")
    assert f"{int(bool(KINDS[kind].registry))} compose" in row and "skipped" not in row
    assert int(re.findall(r"(\d+) passed", row)[0]) >= 1 + bool(KINDS[kind].registry)


@pytest.fixture(scope="module")
def torch_wheels(built: Callable[..., list[Path]], scaffolds: dict[str, Path]) -> list[Path]:
    return built("torch-wheels", *(scaffolds[kind] for kind in TORCH))


@pytest.mark.parametrize("kind", TORCH)
def test_a_scaffold_that_needs_torch_works_where_torch_is(
    kind: str, torch_wheels: list[Path], scaffolds: dict[str, Path], tmp_path: Path
) -> None:
    """Every other plugin is blocked, as if it were not installed."""
    others = ",".join(info.name for info in load_plugins().infos if info.name != "core")
    (wheel,) = [wheel for wheel in torch_wheels if wheel.name.startswith(f"ramet_my_{kind}-")]
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel, cwd=empty)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", scaffolds[kind] / "tests"]
    said = run(*command, cwd=empty, PYTHONPATH=str(site), RAMET_BLOCK_PLUGINS=others)
    assert "2 passed" in said


def test_the_installed_core_writes_the_same_packages(proof: Proof, scaffolds: dict[str, Path], tmp_path: Path) -> None:
    """The templates are in its wheel, hidden files too."""
    ramet = proof.work / "environments/ramet/bin/ramet"
    for kind, expected in scaffolds.items():
        made = tmp_path / kind
        assert f"made {made}" in run(ramet, "new", kind, f"my_{kind}", "--dir", made, cwd=tmp_path)
        assert texts(made) == texts(expected)


RECIPES = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in (ROOT / "hydra_configs").rglob("*.yaml")}


def recipes_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as packed:
        found = [name for name in packed.namelist() if name.startswith("ramet/hydra_configs/")]
        return {name.removeprefix("ramet/"): packed.read(name) for name in found}


def test_the_wheel_of_the_core_holds_the_recipes(proof: Proof) -> None:
    (wheel,) = (proof.work / "built").glob("ramet-[0-9]*.whl")
    assert recipes_of(wheel) == RECIPES != {}


def test_so_does_a_wheel_that_is_built_from_the_source_distribution(proof: Proof, tmp_path: Path) -> None:
    builder = proof.work / "builder/bin/python"
    run(builder, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT / "core")
    (packed,) = tmp_path.glob("ramet-*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    run(
        builder,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        tmp_path,
        cwd=tmp_path / packed.name[: -len(".tar.gz")],
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert recipes_of(wheel) == RECIPES


def test_a_recipe_composes_with_wheels_alone_in_any_folder(proof: Proof, tmp_path: Path) -> None:
    """In the bare core's environment, to which the plugins' wheels are added, it needs no checkout."""
    environment, site = proof.work / "environments/ramet/bin", tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site]
    run(*pip, *(proof.work / "built").glob("ramet_*.whl"), cwd=tmp_path)
    command = [environment / "python", "-m", "ramet"]
    said = run(*command, "config", "experiment=quickstart", cwd=tmp_path, PYTHONPATH=str(site))
    assert "name: arpo" in said and "tasks_per_step: 16" in said
    assert "experiment=quickstart\n  The quickstart: " in run(*command, "recipes", cwd=tmp_path, PYTHONPATH=str(site))


def test_the_core_alone_says_what_a_recipe_needs(proof: Proof, tmp_path: Path) -> None:
    ramet = proof.work / "environments/ramet/bin/ramet"
    done = subprocess.run(
        [ramet, "config", "experiment=quickstart"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    [error] = done.stderr.splitlines()
    presets = sorted(file.stem for file in (ROOT / "core/src/ramet/conf/algorithm").glob("*.yaml"))
    assert error == (
        f"error: algorithm: no 'arpo'. Did you mean 'sapo'? Available: {', '.join(presets)} (asked for by "
        "experiment=quickstart, which needs ramet[train] ramet-arpo ramet-tools-python ramet-rewards "
        "ramet-benchmarks: not installed)"
    )


def texts(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_the_proof_sees_what_a_plugin_forgot(folder: Path) -> None:
    """Every one of these passes in an environment for development."""
    package = write_package("tool", "forgetful", folder / "forgetful").folder
    module = package / "src/ramet_forgetful"
    (module / "builder.py").write_text("import hatchling\n")
    (module / "numbers.py").write_text("import numpy\n")
    with (module / "__init__.py").open("a") as file:
        file.write('    register("absent", "ramet_forgetful.absent:Absent")\n')
    proof = check_wheels(folder / "forgetful-work", [package], [])
    row = proof.row("ramet-forgetful")
    assert proof.code == 1 and "1 of 1 packages are not in order" in proof.said
    assert row.endswith("WRONG")
    assert "ramet_forgetful.builder cannot be imported: ModuleNotFoundError: No module named 'hatchling'" in proof.said
    assert "1 need ramet[train]" in row  # numpy, which an extra of the core brings
    assert "tools.absent: cannot build it" in proof.said
