from __future__ import annotations

from collections import Counter

import pytest

from ramet.data.benchmarks import even_share
from ramet.types import Task, user_prompt


@pytest.mark.parametrize(
    ("counts", "limit", "expected"),
    [
        ({"a": 10, "b": 10}, 4, {"a": 2, "b": 2}),
        ({"a": 10, "b": 10}, 5, {"a": 3, "b": 2}),
        ({"a": 10, "b": 1, "c": 10}, 9, {"a": 4, "b": 1, "c": 4}),
        ({"a": 2, "b": 2}, 9, {"a": 2, "b": 2}),
        ({"a": 3, "b": 3, "c": 3}, 2, {"a": 1, "b": 1}),
    ],
)
def test_a_limit_takes_an_even_share_of_every_source(
    counts: dict[str, int], limit: int, expected: dict[str, int]
) -> None:
    tasks = [
        Task(id=f"{source}{i}", prompt=user_prompt("?"), data_source=source)
        for source, n in counts.items()
        for i in range(n)
    ]
    chosen = even_share(tasks, limit)
    assert Counter(one.data_source for one in chosen) == expected
    assert chosen == [one for one in tasks if one in chosen]  # in their order
    first = {source: tasks[[t.data_source for t in tasks].index(source)] for source in expected}
    assert all(one in chosen for one in first.values())
