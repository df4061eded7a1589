"""Messages name an instance by the key that the user wrote, whatever the plugin that offers it is called."""

from __future__ import annotations

from typing import Any

import pytest

from ramet import ConfigError, OpenAIClient, OpenAIOptions
from ramet.errors import ConfigErrors
from ramet.plugins.instance_keys import instance_key, instance_of
from ramet.plugins.registry import Entry


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("benchmarks.files.params.x is 0", "benchmarks.mine.params.x is 0"),
        ("benchmarks.files has no split 'x'", "benchmarks.mine has no split 'x'"),
        ("see benchmarks.files.split", "see benchmarks.mine.split"),
        (
            "benchmarks.files_2.split, old.benchmarks.files.split",
            "benchmarks.files_2.split, old.benchmarks.files.split",
        ),
    ],
)
def test_the_key_of_a_message_is_that_of_the_instance(said: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught, instance_of("benchmarks.files", "benchmarks.mine"):
        raise ConfigError(said)
    assert str(caught.value) == expected
    with pytest.raises(ConfigErrors) as several, instance_of("benchmarks.files", "benchmarks.mine"):
        raise ConfigErrors([said, said])
    assert several.value.problems == [expected] * 2 and str(several.value) == f"{expected}\n{expected}"


def test_a_reward_within_a_benchmark_has_the_benchmarks_key() -> None:
    with instance_of("benchmarks.gaia", "benchmarks.hard"):
        judge = instance_key("benchmarks.gaia.params.judge")
        with instance_of("rewards.llm_judge.params", judge):
            assert instance_key("rewards.llm_judge.params.server") == "benchmarks.hard.params.judge.server"
    assert instance_key("rewards.llm_judge.params.server") == "rewards.llm_judge.params.server"


def test_what_the_registry_builds_is_named_by_its_key() -> None:
    made: list[OpenAIClient] = []

    class Judge:
        per_rollout = True

        def __init__(self) -> None:
            made.append(OpenAIClient(OpenAIOptions(), "rewards.llm_judge.params.server"))

        async def __call__(self, group: Any) -> list[float]:
            return [0.0 for _ in group]

    entry = Entry(kind="reward", name="llm_judge", factory=Judge, config=None, plugin="p", distribution="d")
    entry.build(key="rewards.second")
    entry.build(key="rewards.llm_judge")
    entry.build()
    names = ["rewards.second.params.server", *["rewards.llm_judge.params.server"] * 2]
    assert [client.name for client in made] == names
