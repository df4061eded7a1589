"""Workflows are YAML whose commands exist here, and the release publishes only what was checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ramet.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return body


def commands(workflow: dict[str, Any]) -> list[str]:
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_runs_exists(path: Path) -> None:
    lines = commands(read(path))
    assert lines
    for line in lines:
        if make := re.match(r"make ([a-z -]+)", line):
            assert set(make[1].split()) <= TARGETS, line
        if ramet := re.match(r"ramet (\S+)", line):
            assert ramet[1] in COMMANDS, line
        for script in re.findall(r"(?<![\w/])scripts/[\w./]+", line):
            assert (ROOT / script).exists(), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_have_limits_and_need_jobs_that_exist(path: Path) -> None:
    jobs = read(path)["jobs"]
    for job in jobs.values():
        needs = job.get("needs", [])
        assert job["timeout-minutes"] <= 120
        assert set([needs] if isinstance(needs, str) else needs) <= set(jobs)
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


def test_packages_are_published_after_every_check_and_without_a_stored_token() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = read(ROOT / ".github/workflows/release.yml")["jobs"]
    assert set(jobs["packages"]["needs"]) == {"check", "install", "tests"}
    assert jobs["metapackage"]["needs"] == "packages" and jobs["site"]["needs"] == "metapackage"
    for name in ("packages", "metapackage"):
        assert jobs[name]["permissions"] == {"id-token": "write"} and "secrets." not in text
        assert jobs[name]["steps"][-1]["with"] == {"skip-existing": True}  # a run that failed may be run again
    assert [name for name, job in jobs.items() for step in job["steps"] if "make wheels" in step.get("run", "")] == [
        "build"
    ]


def repository(folder: Path, files: dict[str, str], script: str) -> Path:
    """Commit these files and a script of this repository to a repository of their own."""
    files = files | {script: (ROOT / script).read_text(encoding="utf-8")}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def test_the_address_of_the_repository_is_filled_in_by_one_script(tmp_path: Path) -> None:
    link = "[core](../../core/pyproject.toml#x), [none](../none.md), [page](https://page.example), [here](#here)\n"
    files = {"README.md": 'git clone "$RAMET_REPOSITORY"\n', "CITATION.cff": "version: 1\n", "mkdocs.yml": ""}
    files |= {"core/pyproject.toml": "[project]\n", "core/README.md": "Core\n"}
    files |= {"plugins/a/pyproject.toml": "[project]\n", "plugins/a/README.md": link}
    script = "scripts/set_repository.py"
    clone = repository(tmp_path / "clone", files, script)
    url = "https://forge.example/someone/ramet"
    for _ in range(2):
        subprocess.run([sys.executable, script, url], cwd=clone, check=True)
    assert (clone / "README.md").read_text() == f'git clone "{url}"\n'
    assert (clone / "CITATION.cff").read_text() == f"version: 1\nrepository-code: {url}\n"
    assert (clone / "core/pyproject.toml").read_text() == f'[project]\n\n[project.urls]\nRepository = "{url}"\n'
    assert (clone / "mkdocs.yml").read_text() == f"\nrepo_url: {url}\n"
    assert (clone / "plugins/a/README.md").read_text() == link
    for _ in range(2):
        subprocess.run([sys.executable, script, "--packages", url], cwd=clone, check=True)
    absolute = link.replace("../../core", f"{url}/blob/HEAD/core")
    assert (clone / "plugins/a/README.md").read_text() == absolute
    wrong = subprocess.run([sys.executable, script, "here"], cwd=clone, capture_output=True, text=True)
    assert wrong.returncode == 1 and "usage" in wrong.stderr


def test_plugins_of_a_release_that_exclude_this_core_are_named_and_not_installed(tmp_path: Path) -> None:
    project = '[project]\nname = "{}"\nversion = "0.1.1"\ndependencies = [{}]\n'
    files = {"core/pyproject.toml": project.format("ramet", "")}
    files |= {"plugins/a/pyproject.toml": project.format("ramet-a", '"ramet>=0.1.1,<0.2"'), "plugins/a/src/a.py": ""}
    script = "scripts/check_old_plugins.sh"
    clone = repository(tmp_path / "clone", files, script)
    (clone / "core/pyproject.toml").write_text(files["core/pyproject.toml"].replace("0.1.1", "0.2.0"))
    environment = os.environ | {"PYTHON": sys.executable}
    command = ["bash", script, "HEAD"]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "skipped: ramet-a 0.1.1 needs ramet<0.2,>=0.1.1, and this core is 0.2.0\n"
    assert "nothing to check" in done.stdout
