"""The presets of the package choose its estimators, and wrong options are refused; none of it needs torch."""

from __future__ import annotations

import pytest

from ramet.config.compose import compose
from ramet.errors import ConfigErrors


@pytest.mark.parametrize("name", ["distill", "sdpo", "igpo"])
def test_a_preset_chooses_the_estimator_of_its_name(name: str) -> None:
    config = compose(["model.path=m", f"algorithm={name}"], job="train").config
    assert config.advantage.name == name


@pytest.mark.parametrize("name", ["distill", "sdpo", "igpo"])
def test_an_option_that_the_estimator_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigErrors, match=r"advantage\.params\.temperatur"):
        compose(["model.path=m", f"algorithm={name}", "advantage.params.temperatur=1"], job="train")
