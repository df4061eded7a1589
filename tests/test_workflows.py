"""Workflows are YAML whose commands exist here, and the release publishes only what was checked."""

from __future__ import annotations

import re
import subprocess
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
    assert set(jobs["packages"]["needs"]) == {"check", "install", "tests"} and jobs["site"]["needs"] == "packages"
    assert jobs["packages"]["permissions"] == {"id-token": "write"} and "secrets." not in text


def test_the_address_of_the_repository_is_filled_in_by_one_script(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "init", "-q", clone], check=True)
    files = {"README.md": 'git clone "$RAMET_REPOSITORY"\n', "CITATION.cff": "repository-code: RAMET_REPOSITORY\n"}
    files |= {
        "core/pyproject.toml": "[project]\n",
        "mkdocs.yml": "",
        "scripts/set_repository.py": (ROOT / "scripts/set_repository.py").read_text(),
    }
    for name, text in files.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)
    subprocess.run(["git", "add", "-A"], cwd=clone, check=True)
    url = "https://forge.example/someone/ramet"
    for _ in range(2):
        subprocess.run(["python", "scripts/set_repository.py", url], cwd=clone, check=True)
    assert (clone / "README.md").read_text() == f'git clone "{url}"\n'
    assert (clone / "CITATION.cff").read_text() == f"repository-code: {url}\n"
    assert (clone / "core/pyproject.toml").read_text() == f'[project]\n\n[project.urls]\nRepository = "{url}"\n'
    assert (clone / "mkdocs.yml").read_text() == f"\nrepo_url: {url}\n"
    wrong = subprocess.run(["python", "scripts/set_repository.py", "here"], cwd=clone, capture_output=True, text=True)
    assert wrong.returncode == 1 and "usage" in wrong.stderr
