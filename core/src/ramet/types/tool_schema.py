"""The description of a tool that a model reads: name, purpose and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """The description that the model reads. `parameters` is a JSON schema of type object."""

    name: str  # an identifier; also the tag in the `tags` step
    description: str
    parameters: Mapping[str, Any]
    concurrent: bool = True  # False: calls of one rollout worker run one at a time
    deterministic: bool = False  # True: identical calls may be answered by one execution (single flight)
    idempotent: bool = True  # False: a call is not repeated once it may have run, so it changes things at most once

    @property
    def text_parameter(self) -> str | None:
        """The one required string parameter, if the tool has exactly that: it then gets the raw text of a tag."""
        required = required_of(self.parameters)
        if len(required) == 1 and properties_of(self.parameters).get(required[0], {}).get("type") == "string":
            return required[0]
        return None

    @property
    def function(self) -> dict[str, Any]:
        """The form in which chat templates and OpenAI-compatible servers read tools."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def properties_of(parameters: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The arguments that a tool's parameters describe, each with its schema. What rows of data have as parameters need
    not be a JSON schema; it then describes none.
    """
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): spec if isinstance(spec, Mapping) else {} for name, spec in properties.items()}


def required_of(parameters: Mapping[str, Any]) -> list[str]:
    """Names of the arguments that must be given; none where parameters are not a JSON schema."""
    required = parameters.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list | tuple) else []
