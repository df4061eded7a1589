"""The torch engine passes every engine check, for every architecture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_checks import CHECKS, check_logprobs_match, check_prefix_reuse
from engine_deterministic import check_deterministic
from engine_subject import EngineUnderTest
from engine_updates import (
    check_forks_after_update_in_flight,
    check_update_in_flight,
    check_weight_update,
)

from ramet.engines.torch.slots import SlotTable


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_engine_passes(
    check: Callable[[EngineUnderTest], None], architecture: str, make_subject: Callable[..., EngineUnderTest]
) -> None:
    check(make_subject(architecture))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_the_deterministic_engine_gives_the_same_bits(
    architecture: str, make_subject: Callable[..., EngineUnderTest]
) -> None:
    check_deterministic(make_subject(architecture))


@pytest.mark.parametrize(
    "check", [check_logprobs_match, check_prefix_reuse, check_deterministic, check_update_in_flight]
)
def test_prompts_may_be_computed_in_parts(
    check: Callable[[EngineUnderTest], None], make_subject: Callable[..., EngineUnderTest]
) -> None:
    check(make_subject(prefill_tokens=7))


@pytest.mark.parametrize("check", [check_logprobs_match, check_weight_update])
def test_an_output_head_of_its_own_is_used(
    check: Callable[[EngineUnderTest], None], make_subject: Callable[..., EngineUnderTest]
) -> None:
    check(make_subject(tie=False))


def test_caches_that_survive_an_update_in_flight_are_caught(
    make_subject: Callable[..., EngineUnderTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlotTable, "drop", lambda self: None)
    with pytest.raises(AssertionError, match=r"log-probabilities of request 'r\d' differ"):
        check_update_in_flight(make_subject())
    with pytest.raises(AssertionError, match="a cache of the old weights was used"):
        check_forks_after_update_in_flight(make_subject())
