"""One tool, reward or benchmark several times, each under a name and with options of its own: `tools.NAME.use`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose, layers
from ramet.errors import ConfigErrors

MODEL = "model.path=m"


def tools(*overrides: str, **options: Any) -> Any:
    return compose([MODEL, *overrides], job="train", **options).config.tools


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        compose([MODEL, *overrides], job="train")
    return caught.value.problems


def test_an_instance_has_options_of_its_own_beside_the_tool_itself() -> None:
    found = tools("tools=[python]", "tools.big.params.memory_mb=4096", "tools.big.use=python", "tools.big.timeout_s=9")
    assert list(found) == ["python", "big"]
    assert (found["python"].use, found["python"].params.memory_mb, found["python"].timeout_s) == (None, 512, 60)
    assert (found["big"].use, found["big"].params.memory_mb, found["big"].timeout_s) == ("python", 4096, 9)


def test_a_preset_may_make_instances_and_the_user_set_their_options(tmp_path: Path) -> None:
    preset = tmp_path / "presets" / "experiment" / "two.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text(
        "# @package _global_\n"
        "tools:\n  first: {use: python, params: {memory_mb: 2}}\n  second: {use: python, retries: 7}\n"
        "rewards:\n  exact: {use: math, weight: 0.5}\n"
    )
    chosen = ["experiment=two", "tools.second.params.memory_mb=3"]
    config = compose([MODEL, *chosen], job="train", config_dir=tmp_path / "presets").config
    assert {name: tool.params.memory_mb for name, tool in config.tools.items()} == {"first": 2, "second": 3}
    assert config.tools["second"].retries == 7
    assert (config.rewards["exact"].use, config.rewards["exact"].weight) == ("math", 0.5)
    found = layers([MODEL, *chosen], job="train", config_dir=tmp_path / "presets")
    assert [one.kind for one in found.origins("tools.second.params.memory_mb")] == ["command line"]


def test_a_chosen_name_may_be_made_an_instance_of_something_else() -> None:
    found = tools("tools=[echo]", "tools.echo.use=python", "tools.echo.params.memory_mb=5")
    assert (found["echo"].use, found["echo"].params.memory_mb) == ("python", 5)


def test_an_instance_may_be_named_in_the_list_of_its_group() -> None:
    found = tools("tools=[big,echo]", "tools.big.use=python")
    assert {name: one.use for name, one in found.items()} == {"echo": None, "big": "python"}
    assert list(tools("tools=[big]", "tools.big.use=python")) == ["big"]
    assert list(compose([MODEL, "rewards=[m]", "rewards.m.use=math"], job="train").config.rewards) == ["m"]


def test_rewards_and_benchmarks_have_instances_too() -> None:
    assert compose([MODEL, "rewards.m.use=math"], job="train").config.rewards["m"].use == "math"
    evaluated = compose([MODEL, "benchmarks.a.use=arithmetic", "benchmarks.a.limit=3"], job="eval").config.benchmarks
    assert (evaluated["a"].use, evaluated["a"].limit) == ("arithmetic", 3)


def test_instances_of_a_recipe_can_be_chosen_by_name(tmp_path: Path) -> None:
    file = tmp_path / "experiment/mine.yaml"
    file.parent.mkdir()
    file.write_text(
        "# @package _global_\nbenchmarks:\n  held: {use: arithmetic, limit: 3}\n  easy: {use: arithmetic}\n"
    )

    def chosen(*more: str) -> dict[str, int | None]:
        found = compose([MODEL, "experiment=mine", *more], job="eval", config_dir=tmp_path).config.benchmarks
        return {name: one.limit for name, one in found.items()}

    assert chosen() == {"held": 3, "easy": None}
    assert chosen("benchmarks=[held]") == {"held": 3}
    assert chosen("benchmarks=held", "benchmarks.held.limit=5") == {"held": 5}
    assert chosen("benchmarks=[held,own]", "benchmarks.own.use=arithmetic") == {"held": 3, "own": None}
    with pytest.raises(ConfigErrors) as caught:
        chosen("benchmarks=[hold]", "benchmarks.hold.limit=5")
    (problem,) = caught.value.problems
    assert problem.startswith("benchmarks: no 'hold'.")


def test_a_choice_leaves_out_what_a_recipe_sets_options_of(tmp_path: Path) -> None:
    file = tmp_path / "experiment/mine.yaml"
    file.parent.mkdir()
    file.write_text(
        "# @package _global_\ndefaults:\n  - override /tools: [python]\n  - override /benchmarks: [arithmetic]\n"
        "tools:\n  python: {timeout_s: 7}\nbenchmarks:\n  arithmetic: {limit: 3}\n"
    )

    def chosen(*more: str) -> tuple[list[str], list[str]]:
        config = compose([MODEL, "experiment=mine", *more], job="eval", config_dir=tmp_path).config
        return list(config.tools), list(config.benchmarks)

    assert chosen() == (["python"], ["arithmetic"])
    assert chosen("tools=[]") == ([], ["arithmetic"])
    assert chosen("tools=echo") == (["echo"], ["arithmetic"])
    assert chosen("tools=[]", "tools.big.use=python") == (["big"], ["arithmetic"])
    assert chosen("benchmarks=[a]", "benchmarks.a.use=arithmetic") == (["python"], ["a"])
    assert tools("experiment=mine", "tools=[python]", config_dir=tmp_path)["python"].timeout_s == 7
    file.write_text("# @package _global_\ntools:\n  big: {timeout_s: 9}\n")
    assert tools("experiment=mine", "tools=[big]", "tools.big.use=python", config_dir=tmp_path)["big"].timeout_s == 9


def test_the_record_says_what_an_instance_is() -> None:
    text = compose([MODEL, "tools.big.use=python"], job="train").text
    assert "tools:\n  big:\n" in text and "    use: python\n" in text


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["tools.big.use=pyhton", "tools.big.timeout_s=9"],
            "tools.big.use: no 'pyhton'. Did you mean 'python'? Installed: echo, from_row, mcp, python, search. "
            "Plugins that failed to load: brk (ImportError: no module x)",
        ),
        (["tools=[python]", "tools.python.use=odd"], "tools.python.use: no 'odd'. "),
        (
            ["tools.Big-1.use=python"],
            "tools.Big-1: this name is not allowed: lower-case letters, digits and underscores, a letter first, at "
            "most 63 characters",
        ),
        (["tools.big.use=python", "tools.big.params.memory_mb=0"], "tools.big.params.memory_mb "),
        (["tools.bare.use=echo", "tools.bare.params.x=1"], "tools.bare.params.x: 'bare' takes no options"),
        (
            ["tools.big.timeout_s=9"],
            "tools.big.timeout_s: 'big' is not chosen; add tools=[big]; an instance under a name of its own: "
            "tools.big.use=NAME.",
        ),
    ],
)
def test_a_mistake_in_an_instance_is_one_line(overrides: list[str], expected: str) -> None:
    [problem] = problems(*overrides)
    assert problem.startswith(expected)
