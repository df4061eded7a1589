"""Errors carry all problems at once, and survive the way between processes."""

from __future__ import annotations

import pickle

import pytest

from ramet.errors import ConfigError, ConfigErrors, InfraError, PluginError, RametError, ToolError, raise_all


def test_all_problems_are_raised_together_one_per_line() -> None:
    with pytest.raises(ConfigErrors) as caught:
        raise_all(["no file 'a'", "no file 'b'"])
    assert caught.value.problems == ["no file 'a'", "no file 'b'"]
    assert str(caught.value) == "no file 'a'\nno file 'b'"
    assert isinstance(caught.value, ConfigError)


def test_no_problem_raises_nothing() -> None:
    assert raise_all(iter([])) is None


@pytest.mark.parametrize("error", [ConfigError, PluginError, ToolError, InfraError])
def test_every_error_is_a_ramet_error_and_pickles(error: type[RametError]) -> None:
    copy = pickle.loads(pickle.dumps(error("what was wrong")))
    assert type(copy) is error and str(copy) == "what was wrong"


def test_several_problems_pickle_as_they_are() -> None:
    copy = pickle.loads(pickle.dumps(ConfigErrors(["first", "second"])))
    assert copy.problems == ["first", "second"]
    assert str(copy) == "first\nsecond"
