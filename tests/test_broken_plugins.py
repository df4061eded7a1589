"""Broken, double, missing and unpackaged plugins, as a user meets them: fake distributions, real commands.

A distribution is written as the importer finds it: a module next to a `.dist-info` folder, on PYTHONPATH.
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

from ramet import ConfigError
from ramet.config import compose as composing
from ramet.plugins import load_plugins
from ramet.plugins import sources as plugin_sources

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
class Workspace:
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
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


HOOKS = (
    "register_rollout_steps, register_branch_policies, register_advantages, register_policy_losses, register_tools, "
    "register_rewards, register_benchmarks"
)
RAISES = """
from ramet import hookimpl
from raising_helper import fail

ramet_contract = "1"

@hookimpl
def register_rewards(register):
    fail("lost")
"""
NO_MARK = GOOD.replace("@hookimpl\n", "").replace("register_rewards", "register_reward")
BROKEN = {
    "missing_import": (
        "import json\nimport no_such_library",
        "ModuleNotFoundError: No module named 'no_such_library' (missing_import.py:2)",
    ),
    "leaves": ("import sys; sys.exit('good-bye')", "SystemExit: good-bye (leaves.py:1)"),
    "no_syntax": ("x = 1\ndef broken(:", "SyntaxError: invalid syntax (no_syntax.py, line 2) (no_syntax.py:2)"),
    "raises": (RAISES, "KeyError: 'lost' (raises.py:9)"),
    "unknown_hook": (
        UNKNOWN_HOOK,
        f"PluginError: no hook 'register_toolz'. Did you mean 'register_tools'? Hooks: {HOOKS}",
    ),
    "misnamed_hook": (
        GOOD.format(name="good").replace("register_rewards", "register_reward"),
        f"PluginError: no hook 'register_reward'. Did you mean 'register_rewards'? Hooks: {HOOKS}",
    ),
    "misnamed_function": (
        NO_MARK.format(name="good"),
        "PluginError: 'register_reward' is not a hook and would never be called. Did you mean 'register_rewards'?",
    ),
    "old": (
        GOOD.format(name="old").replace('"1"', '"0"'),
        "PluginError: built for contract version 0, this ramet supports 1: install a matching release of dist-old",
    ),
    "number": (
        GOOD.format(name="number").replace('"1"', "1"),
        'PluginError: ramet_contract is 1 (int); write it as text: ramet_contract = "1"',
    ),
    "silent": (
        GOOD.format(name="silent").replace("ramet_contract", "other"),
        "PluginError: module 'silent' does not state ramet_contract = '1'",
    ),
    "bad_name": (
        GOOD.format(name="Bad Name"),
        "PluginError: reward 'Bad Name' of plugin 'bad_name': this name is not allowed: lower-case letters, digits and "
        "underscores, a letter first, at most 63 characters (bad_name.py:8)",
    ),
    "factory": (
        GOOD.format(name="f").replace("lambda: per_rollout(lambda rollout: 1.0)", "3"),
        "PluginError: reward 'f' of plugin 'factory': the factory must be callable, got 3 (factory.py:8)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_listed_with_its_reason_and_the_others_are_healthy(workspace: Workspace, name: str) -> None:
    code, reason = BROKEN[name]
    workspace.install(f"dist-{name}", name, code)
    workspace.install("dist-good", "good_plugin", GOOD.format(name="kind"))
    (workspace.site / "raising_helper.py").write_text("def fail(what):\n    raise KeyError(what)\n")
    listed = workspace.listed()
    assert listed[name]["broken"] == reason
    assert listed[name]["distribution"] == f"dist-{name}"
    assert listed["good_plugin"]["broken"] is None and listed["good_plugin"]["offers"] == {"rewards": ["kind"]}
    assert listed["core"]["broken"] is None


def test_help_names_the_broken_plugins_as_the_table_does(workspace: Workspace) -> None:
    workspace.install("dist-odd", "odd", "raise RuntimeError('line one\\nline two')")
    told = workspace.ramet("train", "--help").stdout
    assert told.endswith(
        "\nPlugins that failed to load:\n  odd  — dist-odd; BROKEN: RuntimeError: line one line two (odd.py:1)\n"
    )


def test_presets_are_listed_also_of_a_package_without_code(workspace: Workspace) -> None:
    for name in ("with_code", "only_presets"):
        workspace.install(f"dist-{name}", name, GOOD.format(name=name))
        info = workspace.site / f"dist_{name}-1.0.dist-info" / "entry_points.txt"
        code = f"[ramet]\n{name} = {name}\n" if name == "with_code" else ""
        info.write_text(f"{code}[ramet.conf]\n{name} = {name}_conf\n")
        folder = workspace.site / f"{name}_conf" / "algorithm"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        (folder / f"{name}_wide.yaml").write_text("# @package _global_\n")
    listed = workspace.listed()
    assert listed["with_code"]["presets"] == {"algorithm": ["with_code_wide"]}
    assert listed["only_presets"]["presets"] == {"algorithm": ["only_presets_wide"]}
    assert "rewards: with_code; presets: algorithm=with_code_wide\n" in workspace.ramet("plugins").stdout
    blocked = workspace.listed(RAMET_BLOCK_PLUGINS="only_presets")
    assert "only_presets" not in blocked


def test_the_table_says_broken_and_why_on_one_line(workspace: Workspace) -> None:
    workspace.install("dist-odd", "odd", "raise RuntimeError('line one\\nline two')")
    ran = workspace.ramet("plugins")
    assert ran.returncode == 0
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("odd ")]
    assert "dist-odd" in line and "BROKEN RuntimeError: line one line two" in line


def test_the_whole_traceback_of_a_broken_plugin_is_shown_with_debug(workspace: Workspace) -> None:
    workspace.install("dist-odd", "odd", RAISES)
    (workspace.site / "raising_helper.py").write_text("def fail(what):\n    raise KeyError(what)\n")
    plain, debug = workspace.ramet("plugins"), workspace.ramet("plugins", "--debug")
    assert "Traceback" not in plain.stderr
    assert "plugin 'odd' of dist-odd is broken\nTraceback (most recent call last):" in debug.stderr
    assert f'File "{workspace.site}/raising_helper.py", line 2, in fail' in debug.stderr


def test_a_distribution_without_metadata_is_listed_as_unknown(workspace: Workspace) -> None:
    workspace.install("dist-odd", "odd", GOOD.format(name="kind"))
    (workspace.site / "dist_odd-1.0.dist-info" / "METADATA").unlink()
    assert workspace.ramet("plugins").returncode == 0
    assert workspace.listed()["odd"]["distribution"] == "unknown"


def compose(workspace: Workspace, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return workspace.ramet("train", "--cfg", "job", "model.path=none", *overrides, **environment)


def test_a_broken_plugin_hurts_only_a_run_that_selects_from_it(workspace: Workspace) -> None:
    workspace.install("dist-odd", "odd", "import no_such_library")
    healthy = compose(workspace)
    assert healthy.returncode == 0, healthy.stderr
    selecting = compose(workspace, "rewards=[odd_reward]")
    assert selecting.returncode == 1
    assert "rewards: no" in selecting.stderr and "'odd_reward'" in selecting.stderr
    assert "failed to load: odd" in selecting.stderr


def test_one_name_from_two_packages_is_fatal_and_names_both(workspace: Workspace) -> None:
    workspace.install("dist-one", "one", GOOD.format(name="same"))
    workspace.install("dist-two", "two", GOOD.format(name="same"))
    for ran in (workspace.ramet("plugins"), compose(workspace)):
        assert ran.returncode == 1
        assert ran.stderr == (
            "error: reward 'same' is registered twice: by plugin 'one' (dist-one) and by plugin 'two' (dist-two); "
            "uninstall one, or block it with RAMET_BLOCK_PLUGINS=two\n"
        )


def test_blocking_one_of_two_packages_with_one_name_mends_it(workspace: Workspace) -> None:
    workspace.install("dist-one", "one", GOOD.format(name="same"))
    workspace.install("dist-two", "two", GOOD.format(name="same"))
    listed = workspace.listed(RAMET_BLOCK_PLUGINS="one")
    assert "one" not in listed and listed["two"]["offers"] == {"rewards": ["same"]}


def test_one_plugin_name_in_two_distributions_is_fatal_and_names_both(workspace: Workspace) -> None:
    workspace.install("dist-one", "one", GOOD.format(name="first"), plugin="twin")
    workspace.install("dist-two", "two", GOOD.format(name="second"), plugin="twin")
    ran = workspace.ramet("plugins")
    assert ran.returncode == 1
    for part in ("'twin' is used twice", "dist-one", "dist-two"):
        assert part in ran.stderr


def test_a_name_of_the_core_cannot_be_taken(workspace: Workspace) -> None:
    code = GOOD.format(name="none").replace("register_rewards", "register_branch_policies")
    workspace.install("dist-thief", "thief", code)
    ran = workspace.ramet("plugins")
    assert ran.returncode == 1
    assert ran.stderr == (
        "error: branch policy 'none' is registered twice: by plugin 'core' (ramet) and by plugin 'thief' (dist-thief); "
        "Ramet itself cannot be blocked: rename it there, or set RAMET_BLOCK_PLUGINS=thief\n"
    )
    assert workspace.ramet("plugins", RAMET_BLOCK_PLUGINS="thief").returncode == 0


def test_the_plugin_name_of_the_core_cannot_be_taken(workspace: Workspace) -> None:
    workspace.install("dist-thief", "thief", GOOD.format(name="loot"), plugin="core")
    ran = workspace.ramet("plugins")
    assert (ran.returncode, ran.stderr) == (
        1,
        "error: plugin name 'core' is Ramet's own: give the entry point of dist-thief another name, or uninstall it\n",
    )


def test_a_name_that_one_plugin_registers_twice_is_its_own_to_remove(workspace: Workspace) -> None:
    workspace.install("dist-odd", "odd", GOOD.format(name="same") + '    register("same", dict)\n')
    ran = workspace.ramet("plugins")
    assert ran.returncode == 1 and ran.stderr.startswith("error: reward 'same' ")
    assert ran.stderr.endswith(" plugin 'odd' (dist-odd) does both; remove one\n")


@pytest.mark.parametrize(
    ("blocked", "problem"),
    [
        ("core", "'core' is Ramet itself and cannot be blocked"),
        ("good_plugin,core", "'core' is Ramet itself and cannot be blocked"),
        ("good_plugim", "no plugin named 'good_plugim' is installed. Did you mean 'good_plugin'? Installed: "),
    ],
)
def test_a_name_that_cannot_be_blocked_is_refused(workspace: Workspace, blocked: str, problem: str) -> None:
    workspace.install("dist-good", "good_plugin", GOOD.format(name="kind"))
    installed = ", ".join(sorted(name for name in workspace.listed() if name != "core"))
    ran = workspace.ramet("plugins", RAMET_BLOCK_PLUGINS=blocked)
    told = problem + installed if problem.endswith(": ") else problem
    assert (ran.returncode, ran.stderr) == (1, f"error: RAMET_BLOCK_PLUGINS: {told}\n")


def test_a_module_that_is_no_distribution_can_be_blocked_too(workspace: Workspace) -> None:
    (workspace.site / "experiment.py").write_text(GOOD.format(name="shiny"))
    assert "experiment" not in workspace.listed(RAMET_PLUGINS="experiment", RAMET_BLOCK_PLUGINS="experiment")


def removed(workspace: Workspace) -> subprocess.CompletedProcess[str]:
    return compose(workspace, "branch_policy=arpo", RAMET_BLOCK_PLUGINS="arpo")


def absent(workspace: Workspace) -> subprocess.CompletedProcess[str]:
    return compose(workspace, "branch_policy=nobody")


@pytest.mark.parametrize(("select", "name"), [(removed, "arpo"), (absent, "nobody")])
def test_a_plugin_that_is_not_installed_is_named_with_what_is(
    workspace: Workspace, select: Callable[[Workspace], subprocess.CompletedProcess[str]], name: str
) -> None:
    ran = select(workspace)
    assert ran.returncode == 1
    assert "branch_policy: no" in ran.stderr and f"'{name}'" in ran.stderr
    assert "Installed: " in ran.stderr and "none, random" in ran.stderr


def test_a_misspelt_name_gets_a_suggestion(workspace: Workspace) -> None:
    assert "Did you mean 'random'?" in compose(workspace, "branch_policy=randon").stderr


def test_an_unpackaged_module_is_loaded_by_name(workspace: Workspace) -> None:
    (workspace.site / "experiment.py").write_text(GOOD.format(name="shiny"))
    assert "experiment" not in workspace.listed()
    assert workspace.listed(RAMET_PLUGINS="experiment")["experiment"]["offers"] == {"rewards": ["shiny"]}
    ran = compose(workspace, "rewards=[shiny]", RAMET_PLUGINS="experiment")
    assert ran.returncode == 0, ran.stderr
    assert "shiny" in ran.stdout


def test_an_unpackaged_module_that_is_not_there_is_broken(workspace: Workspace) -> None:
    listed = workspace.listed(RAMET_PLUGINS="nowhere")
    assert listed["nowhere"]["broken"] == "ModuleNotFoundError: No module named 'nowhere'"


def test_options_that_cannot_be_typed_spoil_only_their_own_component(workspace: Workspace) -> None:
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
    workspace.install("dist-odd", "odd", code)
    listed = workspace.listed()["odd"]
    reason = "its options Options cannot be typed: Unexpected type annotation: Callable[int, int]"
    assert (listed["broken"], listed["unusable"]) == (None, {"rewards.untyped": reason})
    table, page = workspace.ramet("plugins").stdout, workspace.ramet("train", "--help", "rewards").stdout
    assert f"rewards: untyped; UNUSABLE rewards.untyped: {reason}\n" in table
    assert f" rewards=[untyped] — odd (dist-odd); UNUSABLE: {reason}" in " ".join(page.split())
    healthy, selecting = compose(workspace), compose(workspace, "rewards=[untyped]")
    assert healthy.returncode == 0, healthy.stderr
    assert selecting.returncode == 1
    assert "'untyped'" in selecting.stderr and "odd (dist-odd)" in selecting.stderr


def test_wheels_of_before_ramet_release_are_one_error_that_says_what_to_install(workspace: Workspace) -> None:
    """Beside the new core, and where ramet-release is there too."""
    for name in ("aepo", "arpo"):
        info = workspace.site / f"ramet_{name}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ramet-{name}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[ramet]\n{name}_release = ramet_{name}.release\n")
        (workspace.site / f"ramet_{name}/release").mkdir(parents=True)
    done = workspace.ramet("plugins")
    assert done.returncode == 1
    assert done.stderr == (
        "error: too old for this Ramet: ramet-aepo 0.1.0, ramet-arpo 0.1.0; what they had as released is a separate "
        "package now: pip install --upgrade ramet-aepo ramet-arpo ramet-release\n"
    )


@pytest.mark.parametrize("key", ["algorithm", "branch_policy"])
def test_what_only_ramet_release_has_is_an_error_with_its_name(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_sources, "find_spec", lambda name: None)
    monkeypatch.setenv("RAMET_BLOCK_PLUGINS", "release")  # as if it were not installed
    load_plugins.cache_clear()
    try:
        with pytest.raises(ConfigError) as caught:
            composing.compose(["model.path=m", f"{key}=arpo_release"], job="train")
    finally:
        load_plugins.cache_clear()
    assert str(caught.value).startswith(f"{key}: no 'arpo_release'. Install it with: pip install ramet-release. ")
