"""The tool `from_row`: answers calls of the tools that a task's row describes, without running anything.

For tasks of function calling, whose rewards compare the calls. Results of calls are in the row, or always the same
text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ramet.data.tool_schemas import without_nulls
from ramet.errors import ToolError
from ramet.helpers.arguments import argument_problem
from ramet.io.json_values import read_json
from ramet.rollout.config import FromRowConfig
from ramet.types import ToolCall, ToolResult, ToolSchema
from ramet.types.task import FROM_ROW


class FromRow:
    """`Tool`. Its calls have the names of the row's tools."""

    schema = ToolSchema(
        name=FROM_ROW, description="Answers calls of the tools of a task's row.", parameters={"type": "object"}
    )

    def __init__(self, config: FromRowConfig) -> None:
        self.config = config

    async def __call__(self, call: ToolCall) -> ToolResult:
        schemas = () if call.task is None else call.task.schemas or ()
        schema = next((schema for schema in schemas if schema.name == call.name), None)
        if schema is None:
            raise ToolError(f"There is no tool {call.name}.")
        if (problem := argument_problem(schema, call.arguments)) is not None:
            raise ToolError(problem)
        metadata = {} if call.task is None else call.task.metadata
        result = self._result(_parsed(metadata.get(self.config.results)), call)
        return ToolResult(text=result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))

    def _result(self, results: Any, call: ToolCall) -> Any:
        """The row's result, by the tool's name, or in a list of calls with their results; otherwise the default."""
        if isinstance(results, Mapping):
            results = [{"name": name, "result": result} for name, result in results.items()]
        for one in results if isinstance(results, list) else ():
            if isinstance(one, Mapping) and one.get("name") == call.name and one.get("result") is not None:
                if _is_of(one.get("arguments"), call.arguments):
                    return one["result"]
        return self.config.default


def _is_of(arguments: Any, given: Mapping[str, Any]) -> bool:
    """Whether the row's result for these arguments (perhaps JSON text) belongs to a call. None: to any call. A null
    counts as not given: parquet fills the keys of other rows with them.
    """
    if arguments is None:
        return True
    wanted = _parsed(arguments)
    return isinstance(wanted, Mapping) and bool(without_nulls(wanted) == without_nulls(given))


def _parsed(value: Any) -> Any:
    return read_json(value) if isinstance(value, str) else value
