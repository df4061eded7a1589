from __future__ import annotations

from typing import Any

import pytest

from ramet.errors import ToolError
from ramet.rollout.tools.arguments import check_arguments
from ramet.types import ToolSchema

SCHEMA = ToolSchema(
    name="find",
    description="",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "n": {"type": "integer"},
            "rate": {"type": "number"},
            "sort": {"enum": ["new", "old"]},
            "site": {"type": ["string", "null"]},
        },
        "required": ["query"],
    },
)


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "x"},
        {"query": "x", "n": 3, "rate": 3, "sort": "new", "site": None},
        {"query": "x", "n": None},
    ],
)
def test_arguments_that_fit_pass(arguments: dict[str, Any]) -> None:
    assert check_arguments(SCHEMA, arguments) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "query is missing"),
        ({"query": 3}, "query must be of type string, got 3"),
        ({"query": None}, "query must be of type string, got None"),
        ({"query": "x", "n": True}, "n must be of type integer, got True"),
        ({"query": "x", "n": "3"}, "n must be of type integer, got '3'"),
        ({"query": "x", "sort": "best"}, "sort must be one of 'new', 'old', got 'best'"),
        ({"query": "x", "qurey": "y"}, r"there is no qurey \(known: query, n, rate, sort, site\)"),
        ({"query": ["x" * 1000]}, r"got \['x{70,80}\.\.\.$"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        check_arguments(SCHEMA, arguments)


def test_arguments_nested_without_end_are_refused() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    with pytest.raises(ToolError) as caught:
        check_arguments(SCHEMA, {"x": deep})
    assert str(caught.value) == f"{SCHEMA.name}: the arguments are nested more than 64 levels deep"


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ToolError, match="query is missing; n must be of type integer"):
        check_arguments(SCHEMA, {"n": "many"})
