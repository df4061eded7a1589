from __future__ import annotations

from ramet.tracking.columns import RL, SFT, count, fitting, layout_of, rate, seconds, source_columns, with_sources


def titles(width: int, metrics: dict[str, float] | None = None) -> list[str]:
    columns = with_sources(RL.columns, source_columns(metrics or {}))
    return [column.title for column in fitting(columns, width)]


def test_columns_that_do_not_fit_are_left_out_by_rank() -> None:
    assert titles(25) == ["reward", "length", "time"]
    assert titles(66) == ["reward", "tool use", "forks", "length", "cut", "masked", "tok/s", "time"]
    assert titles(100) == [column.title for column in RL.columns]


def test_sources_have_columns_where_there_are_several() -> None:
    one, two = {"source/qa/reward": 0.5}, {"source/qa/reward": 0.5, "source/a_long_name_of_one/reward": 0.25}
    assert titles(100, one) == titles(100)
    assert titles(100, two)[:3] == ["reward", "a_long_nam", "qa"]
    assert "qa" not in titles(40, two)


def test_the_layout_follows_from_the_metrics() -> None:
    assert layout_of({"reward/roots_mean": 0.5, "valid/reward": 0.5}) is RL
    assert layout_of({"sft/loss": 0.5}) is SFT
    assert layout_of({"valid/reward": 0.5}) is None


def test_numbers_are_short() -> None:
    assert [count(value) for value in (0.4, 999.0, 12_345.0, 2_340_000.0)] == ["0", "999", "12.3k", "2.3M"]
    assert [seconds(value) for value in (2.04, 95.0, 3660.0)] == ["2.0s", "1m35", "1h01"]
    assert [rate(value) for value in (5.31, 0.1, 0.0049)] == ["5.31", "0.10", "0.0049"]  # a real model on a CPU
