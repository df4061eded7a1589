"""Broken, double, missing and unpackaged plugins, as a user meets them: fake distributions, real commands.

A distribution is written as the importer finds it: a module beside a `.dist-info` folder, on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

GOOD = """
from ramet import hookimpl, per_rollout

ramet_contract = "1"

@hookimpl
def register_rewards(register):
    register("{name}", lambda: per_rollout(lambda rollout: 1.0))
"""
UNKNOWN_HOOK = """
from ramet import hookimpl

ramet_contract = "1"

@hookimpl
def register_toolz(register):
    register("hammer", dict)
"""


@dataclass(frozen=True)
class House:
    """A folder of fake distributions, and commands that see them."""

    site: Path

    def install(self, distribution: str, module: str, code: str, *, plugin: str | None = None) -> None:
        """Write a distribution whose entry point `plugin` is this module."""
        info = self.site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[ramet]\n{plugin or module} = {module}\n")
        (self.site / f"{module}.py").write_text(code)

    def ramet(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        code = "import sys; from ramet.cli import main; sys.exit(main(sys.argv[1:]))"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAMET_")}
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=self.site,
            env=inherited | {"PYTHONPATH": str(self.site)} | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def listed(self, **environment: str) -> dict[str, dict[str, Any]]:
        """`ramet plugins --json`, by name."""
        ran = self.ramet("plugins", "--json", **environment)
        assert ran.returncode == 0, ran.stderr
        return {info["name"]: info for info in json.loads(ran.stdout)}


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


BROKEN = {
    "missing_import": ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
    "leaves": ("import sys; sys.exit('good-bye')", "SystemExit: good-bye"),
    "no_syntax": ("def broken(:", "SyntaxError"),
    "unknown_hook": (UNKNOWN_HOOK, "unknown hook 'register_toolz'"),
    "old": (GOOD.format(name="old").replace('"1"', '"0"'), "built for contract version 0, this ramet speaks 1"),
    "silent": (GOOD.format(name="silent").replace("ramet_contract", "other"), "does not state ramet_contract = '1'"),
    "bad_name": (GOOD.format(name="Bad Name"), "'Bad Name'"),
    "factory": (GOOD.format(name="f").replace("lambda: per_rollout(lambda rollout: 1.0)", "3"), "must be callable"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_listed_with_its_reason_and_the_others_are_healthy(house: House, name: str) -> None:
    code, reason = BROKEN[name]
    house.install(f"dist-{name}", name, code)
    house.install("dist-good", "good_plugin", GOOD.format(name="kind"))
    listed = house.listed()
    assert reason in listed[name]["broken"]
    assert listed[name]["distribution"] == f"dist-{name}"
    assert listed["good_plugin"]["broken"] is None and listed["good_plugin"]["offers"] == {"rewards": ["kind"]}
    assert listed["core"]["broken"] is None


def test_the_table_says_broken_and_why_on_one_line(house: House) -> None:
    house.install("dist-odd", "odd", "raise RuntimeError('line one\\nline two')")
    ran = house.ramet("plugins")
    assert ran.returncode == 0
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("odd ")]
    assert "dist-odd" in line and "BROKEN RuntimeError: line one line two" in line


def test_a_distribution_without_metadata_is_listed_as_unknown(house: House) -> None:
    house.install("dist-odd", "odd", GOOD.format(name="kind"))
    (house.site / "dist_odd-1.0.dist-info" / "METADATA").unlink()
    assert house.ramet("plugins").returncode == 0
    assert house.listed()["odd"]["distribution"] == "unknown"


def compose(house: House, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return house.ramet("train", "--cfg", "job", "model.path=none", *overrides, **environment)


def test_a_broken_plugin_hurts_only_a_run_that_selects_from_it(house: House) -> None:
    house.install("dist-odd", "odd", "import no_such_library")
    healthy = compose(house)
    assert healthy.returncode == 0, healthy.stderr
    selecting = compose(house, "rewards=[odd_reward]")
    assert selecting.returncode == 1
    assert "rewards: no" in selecting.stderr and "'odd_reward'" in selecting.stderr
    assert "Plugins that failed to load: odd" in selecting.stderr


def test_one_name_from_two_packages_is_fatal_and_names_both(house: House) -> None:
    house.install("dist-one", "one", GOOD.format(name="same"))
    house.install("dist-two", "two", GOOD.format(name="same"))
    for ran in (house.ramet("plugins"), compose(house)):
        assert ran.returncode == 1
        for part in ("reward 'same' is registered twice", "'one' (dist-one)", "'two' (dist-two)"):
            assert part in ran.stderr


def test_blocking_one_of_two_packages_with_one_name_mends_it(house: House) -> None:
    house.install("dist-one", "one", GOOD.format(name="same"))
    house.install("dist-two", "two", GOOD.format(name="same"))
    listed = house.listed(RAMET_BLOCK_PLUGINS="one")
    assert "one" not in listed and listed["two"]["offers"] == {"rewards": ["same"]}


def test_one_plugin_name_in_two_distributions_is_fatal_and_names_both(house: House) -> None:
    house.install("dist-one", "one", GOOD.format(name="first"), plugin="twin")
    house.install("dist-two", "two", GOOD.format(name="second"), plugin="twin")
    ran = house.ramet("plugins")
    assert ran.returncode == 1
    for part in ("'twin' is used twice", "dist-one", "dist-two"):
        assert part in ran.stderr


def test_a_name_of_the_core_cannot_be_taken(house: House) -> None:
    code = GOOD.format(name="none").replace("register_rewards", "register_branch_policies")
    house.install("dist-thief", "thief", code)
    ran = house.ramet("plugins")
    assert ran.returncode == 1
    assert "'core' (ramet)" in ran.stderr and "'thief' (dist-thief)" in ran.stderr


def removed(house: House) -> subprocess.CompletedProcess[str]:
    return compose(house, "branch_policy=arpo", RAMET_BLOCK_PLUGINS="arpo")


def absent(house: House) -> subprocess.CompletedProcess[str]:
    return compose(house, "branch_policy=nobody")


@pytest.mark.parametrize(("select", "name"), [(removed, "arpo"), (absent, "nobody")])
def test_a_plugin_that_is_not_installed_is_named_with_what_is(
    house: House, select: Callable[[House], subprocess.CompletedProcess[str]], name: str
) -> None:
    ran = select(house)
    assert ran.returncode == 1
    assert "branch_policy: no" in ran.stderr and f"'{name}'" in ran.stderr
    assert "Installed: " in ran.stderr and "none, random" in ran.stderr


def test_a_misspelt_name_gets_a_suggestion(house: House) -> None:
    assert "Did you mean 'random'?" in compose(house, "branch_policy=randon").stderr


def test_an_unpackaged_module_is_loaded_by_name(house: House) -> None:
    (house.site / "experiment.py").write_text(GOOD.format(name="shiny"))
    assert "experiment" not in house.listed()
    assert house.listed(RAMET_PLUGINS="experiment")["experiment"]["offers"] == {"rewards": ["shiny"]}
    ran = compose(house, "rewards=[shiny]", RAMET_PLUGINS="experiment")
    assert ran.returncode == 0, ran.stderr
    assert "shiny" in ran.stdout


def test_an_unpackaged_module_that_is_not_there_is_broken(house: House) -> None:
    listed = house.listed(RAMET_PLUGINS="nowhere")
    assert listed["nowhere"]["broken"] == "ModuleNotFoundError: No module named 'nowhere'"


def test_options_that_cannot_be_typed_spoil_only_their_own_component(house: House) -> None:
    code = """
from collections.abc import Callable
from dataclasses import dataclass

from ramet import hookimpl, per_rollout

ramet_contract = "1"

@dataclass
class Options:
    function: Callable[[int], int] = abs

@hookimpl
def register_rewards(register):
    register("untyped", lambda options: per_rollout(lambda rollout: 1.0), config=Options)
"""
    house.install("dist-odd", "odd", code)
    healthy, selecting = compose(house), compose(house, "rewards=[untyped]")
    assert healthy.returncode == 0, healthy.stderr
    assert selecting.returncode == 1
    assert "'untyped'" in selecting.stderr and "odd (dist-odd)" in selecting.stderr
