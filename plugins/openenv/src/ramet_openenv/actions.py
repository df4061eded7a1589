"""Actions of the policy, read from what it wrote.

An action is a JSON object. Three kinds are read: the text of a turn as one field of it; a tool call whose arguments are
the action; a tool call that is an action of kind `call_tool`, where the environment offers tools (`CallToolAction` in
openenv 0.10.0, `openenv/core/env_server/mcp_types.py`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ramet import ConfigError, ToolSchema, neutralise_chat_markup
from ramet.helpers import MalformedCall, argument_problem, find_calls, message_of
from ramet_openenv.server import OpenEnvServer

STEP = "step"  # the function of an environment that has one kind of action
CALL = '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}\n</tool_call>'
BY_THE_HOST = "metadata"  # of an action; not the policy's


class Mistake(Exception):
    """A mistake of the policy, with the text that it reads.

    `called`: it wrote a tool call. `ended`: the episode is over. `failed`: the environment failed at its action.
    """

    def __init__(self, message: str, *, called: bool = False, ended: bool = False, failed: bool = False) -> None:
        super().__init__(message)
        self.called, self.ended, self.failed = called, ended, failed


class Actions(Protocol):
    """The actions of one environment. `are_calls`: each is a tool call."""

    @property
    def prompt(self) -> str:
        """How the policy acts."""
        ...

    @property
    def are_calls(self) -> bool: ...

    @property
    def fields(self) -> Sequence[str]:
        """The fields of an action."""
        ...

    def read(self, text: str) -> dict[str, Any]:
        """The action in the text of a turn. Raises `Mistake`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextActions:
    """The message of a turn is one field of the action."""

    field: str
    kind: Any  # its type in the schema
    schema: ToolSchema
    prompt: str
    are_calls: bool = False

    @property
    def fields(self) -> Sequence[str]:
        return list(self.schema.parameters["properties"])

    def read(self, text: str) -> dict[str, Any]:
        said = message_of(text).strip()
        if not said:
            raise Mistake("The action is empty.")
        value: Any = said
        if self.kind not in ("string", None):
            with contextlib.suppress(ValueError, RecursionError):  # a text, which is the problem below
                value = json.loads(said)
        if (problem := argument_problem(self.schema, {self.field: value})) is not None:
            raise Mistake(f"The action was not taken. {problem.partition(': ')[2]}.")
        return {self.field: value}


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledActions:
    """The one tool call of a turn is the action."""

    functions: Mapping[str, ToolSchema]
    are_tools: bool  # of the environment
    prompt: str
    are_calls: bool = True

    @property
    def fields(self) -> Sequence[str]:
        if self.are_tools:
            return ("tool_name", "arguments")
        return [name for schema in self.functions.values() for name in schema.parameters.get("properties", ())]

    def read(self, text: str) -> dict[str, Any]:
        calls = find_calls(text, "auto")
        if not calls:
            raise Mistake(f"There is no action in this message. Write one as\n{CALL}")
        call = calls[0]
        if isinstance(call, MalformedCall):
            raise Mistake(call.text, called=True)
        if len(calls) > 1:
            raise Mistake(f"A message has one action, this one has {len(calls)}. None was taken.", called=True)
        schema = self.functions.get(call.name)
        if schema is None:
            known = ", ".join(self.functions)
            raise Mistake(f"There is no action {call.name[:80]!r}. Actions: {known}.", called=True)
        if (problem := argument_problem(schema, call.arguments)) is not None:
            raise Mistake(f"The action was not taken. {problem}.", called=True)
        if self.are_tools:
            return {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
        return dict(call.arguments)


def actions_of(server: OpenEnvServer, schemas: Mapping[str, Any]) -> Actions:
    """The actions of the server's environment. Raises `ConfigError` and `InfraError`."""
    parameters = dict(schemas["action"])
    if "properties" in parameters:  # not in a schema of several kinds of action
        parameters["properties"] = {
            name: spec for name, spec in parameters["properties"].items() if name != BY_THE_HOST
        }
    properties = parameters.get("properties", {})
    step = ToolSchema(name=STEP, description=str(parameters.get("description") or ""), parameters=parameters)
    if server.config.action:
        return _text_actions(server.config.action, step)
    if properties.keys() >= {"tool_name", "arguments"}:
        return _called({tool["name"]: _tool(tool) for tool in server.tools()}, are_tools=True)
    return _called({STEP: step}, are_tools=False)


def _text_actions(name: str, step: ToolSchema) -> TextActions:
    key, properties = f"rollout_step.params.action={name}", step.parameters.get("properties", {})
    if name not in properties:
        raise ConfigError(f"{key}: the environment's actions have no such field; allowed: {', '.join(properties)}")
    others = [other for other in step.parameters.get("required", ()) if other not in (name, BY_THE_HOST)]
    if others:
        text = f"the environment's actions need {', '.join(others)} too"
        raise ConfigError(f"{key}: {text}; leave params.action empty, so that the policy writes tool calls")
    spec = properties[name] if isinstance(properties[name], dict) else {}
    described = json.dumps({key: spec[key] for key in spec if key not in ("title", "default")}, ensure_ascii=False)
    prompt = f"You act in an environment. Each of your messages is one action, a value of the form {described}. "
    prompt = neutralise_chat_markup(f"{prompt}The next message is what you observe.")
    return TextActions(field=name, kind=spec.get("type"), schema=step, prompt=prompt)


def _called(functions: Mapping[str, ToolSchema], *, are_tools: bool) -> CalledActions:
    described = "\n".join(json.dumps(schema.function, ensure_ascii=False) for schema in functions.values())
    how = f"In each message write one action as\n{CALL}\nand nothing after it. The next message is what you observe."
    prompt = "You act in an environment. Its actions, each described by a JSON schema:\n"
    return CalledActions(
        functions=functions, are_tools=are_tools, prompt=f"{prompt}{neutralise_chat_markup(described)}\n{how}"
    )


def _tool(tool: Mapping[str, Any]) -> ToolSchema:
    """A tool of the environment: `inputSchema` of MCP, or `input_schema` of openenv's own `Tool`."""
    given = tool.get("inputSchema") or tool.get("input_schema")
    parameters = given if isinstance(given, dict) else {"type": "object", "properties": {}}
    return ToolSchema(name=tool["name"], description=str(tool.get("description") or ""), parameters=parameters)
