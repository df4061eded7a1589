"""Tools: a schema and an async call. Time-outs, retries, caps and metrics are the core's (`rollout.tool_runtime`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """What the model is told. `parameters` is a JSON schema of type object."""

    name: str  # an identifier; also the tag in the `tags` step
    description: str
    parameters: Mapping[str, Any]
    concurrent: bool = True  # False: calls of one rollout worker run one at a time
    deterministic: bool = False  # True: identical calls may be answered by one execution (single flight)

    @property
    def text_parameter(self) -> str | None:
        """The one required string parameter, if the tool has exactly that: it then gets the raw text of a tag."""
        properties = self.parameters.get("properties", {})
        required = list(self.parameters.get("required", []))
        if len(required) == 1 and properties.get(required[0], {}).get("type") == "string":
            return str(required[0])
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call as the rollout step read it. `rollout` is a key that is unique within a step of training."""

    name: str
    arguments: Mapping[str, Any]
    rollout: str = ""
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool returned. `error` True: the model's own doing (its code raised); the text says what."""

    text: str
    error: bool = False
    cached: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Tool(Protocol):
    """Hook 5. Raise `ToolError` for the model's mistake, `InfraError` for ours; anything else counts as ours.

    Optional: `async def open(self, rollout: str) -> None` and `async def close(self, rollout: str) -> None` for state
    that belongs to one rollout, and `async def aclose(self) -> None` for the end of the run.
    """

    schema: ToolSchema

    async def __call__(self, call: ToolCall) -> ToolResult: ...
