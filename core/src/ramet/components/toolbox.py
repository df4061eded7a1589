"""The tools of a run: built, started, and tool sets opened.

A tool set is opened before the start, for its schemas, and again by each rollout worker, which compares them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramet.components.services import RunServices
from ramet.config.schema import Config, ToolConfig
from ramet.errors import ConfigError, InfraError, PluginError, RametError
from ramet.event_loop import run_async
from ramet.plugins import load_plugins
from ramet.plugins.component_checks import is_tool_set, misfits
from ramet.plugins.lifecycle import close_component, start_component
from ramet.plugins.plugin_code import defined_at, raised_at
from ramet.rollout.config import FromRowConfig
from ramet.rollout.faults import is_defect
from ramet.rollout.jobs import expanded
from ramet.rollout.stateful import StatefulComponent, tool_components
from ramet.rollout.tools.from_row import FromRow
from ramet.types import Task, Tool, ToolSchema, ToolSet
from ramet.types.task import FROM_ROW

OPEN_TIMEOUT_S = 120.0
Schemas = tuple[ToolSchema, ...]


@dataclass(slots=True, kw_only=True)
class Toolbox:
    """Tools by the names that the model sees, with their limits. `sets`: the names of the tools of each set."""

    tools: dict[str, tuple[Tool, ToolConfig]] = field(default_factory=dict)
    sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    opened: list[tuple[str, ToolSet]] = field(default_factory=list)
    started: list[tuple[str, Tool]] = field(default_factory=list)

    @property
    def schemas(self) -> dict[str, ToolSchema]:
        return {name: replace(tool.schema, name=name) for name, (tool, _) in self.tools.items()}

    @property
    def set_schemas(self) -> dict[str, Schemas]:
        schemas = self.schemas
        return {name: tuple(schemas[tool] for tool in tools) for name, tools in self.sets.items()}

    async def close_sets(self) -> None:
        """Close the sets, after a rollout worker has closed the tools. Never raises: the run is over."""
        for name, tool_set in self.opened:
            await close_component(tool_set, f"tool set {name}")
        self.opened.clear()

    async def close(self) -> None:
        """Tools and sets, where no rollout worker was built with them. Never raises."""
        for name, tool in self.started:
            await close_component(tool, f"tool {name}")
        self.started.clear()
        await self.close_sets()


async def open_tools(
    config: Config, services: RunServices, *, expected: Mapping[str, Schemas] | None = None, for_schemas: bool = False
) -> Toolbox:
    """All configured tools, ready to be called. `expected`: by set, the schemas found before the start.

    `for_schemas` starts only sets. Raises `ConfigError` for names that are used twice, `PluginError` for broken
    components, `InfraError` if a set cannot be reached.
    """
    box = Toolbox()
    try:
        for name, settings in config.tools.items():
            await _add_entry(box, name, settings, services, expected, for_schemas)
    except BaseException:
        await box.close()
        raise
    return box


async def _add_entry(
    box: Toolbox,
    name: str,
    settings: ToolConfig,
    services: RunServices,
    expected: Mapping[str, Schemas] | None,
    for_schemas: bool,
) -> None:
    if settings.use == FROM_ROW and name != FROM_ROW:
        raise ConfigError(
            f"tools.{name}.use={FROM_ROW}: it answers the calls of all tools that a row describes, only under its own "
            f"name; write tools=[{FROM_ROW}], and its options as tools.{FROM_ROW}.params"
        )
    entry = load_plugins().get("tools", settings.use or name)
    built: Any = entry.build(settings.params, key=f"tools.{name}")
    label = f"tool {name!r} of plugin {entry.plugin!r} ({entry.distribution})"

    async def start(component: object) -> None:
        await start_component(component, label, services.of(f"tools.{name}"))

    if not is_tool_set(built):
        _add(box, name, built, settings, entry=name)
        if not for_schemas:
            await start(built)
            box.started.append((name, built))
        return
    await start(built)
    box.opened.append((name, built))
    tools = await _open(built, name, label)
    if expected is not None:
        _compare(label, expected.get(name, ()), tuple(tool.schema for tool in tools))
    for tool in tools:
        _add(box, tool.schema.name, tool, settings, entry=name)
        if not for_schemas:
            await start(tool)
            box.started.append((tool.schema.name, tool))
    box.sets[name] = tuple(tool.schema.name for tool in tools)


def _add(box: Toolbox, name: str, tool: Tool, settings: ToolConfig, *, entry: str) -> None:
    owners = {tool_name: owner for owner, names in box.sets.items() for tool_name in (*names, owner)}
    taken = owners.get(name) or owners.get(entry) or (name if name in box.tools else None)
    if taken is not None and taken != entry:
        raise ConfigError(f"tools: {entry!r} and {taken!r} both offer a tool named {name!r}; leave one of them out")
    box.tools[name] = (tool, settings)


async def _open(tool_set: ToolSet, name: str, label: str) -> Sequence[Tool]:
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S) as deadline:
            opened = list(await tool_set.open())
    except ConfigError as error:
        raise ConfigError(f"tools.{name}: {error}") from error
    except InfraError as error:
        raise InfraError(f"tools.{name}: {error}", retry_after_s=error.retry_after_s) from error
    except RametError:
        raise
    except (Exception, SystemExit) as error:
        if deadline.expired():
            raise InfraError(f"tools.{name}: the tool set did not open within {OPEN_TIMEOUT_S:g} s") from error
        raise (PluginError if is_defect(error) else InfraError)(
            f"{label}: `open` raised {type(error).__name__}: {error}{raised_at(error)}"
        ) from error
    if not opened:
        raise PluginError(f"{label}: `open` returned no tools{defined_at(tool_set, 'open')}")
    for tool in opened:
        wrong = misfits(tool, "tool")
        if wrong or is_tool_set(tool):
            raise PluginError(f"{label}: `open` returned {tool!r:.80}, not a tool: {'; '.join(wrong) or 'a set'}")
    names = [tool.schema.name for tool in opened]
    twice = sorted({tool for tool in names if names.count(tool) > 1})
    if twice:
        raise PluginError(f"{label}: `open` returned several tools named {', '.join(map(repr, twice))}")
    return opened


def _compare(label: str, before: Schemas, after: Schemas) -> None:
    if before == after:
        return
    earlier, later = {schema.name: schema for schema in before}, {schema.name: schema for schema in after}
    changes = [
        *(f"{name} is gone" for name in earlier if name not in later),
        *(f"{name} is new" for name in later if name not in earlier),
        *(f"{name} has another description" for name in earlier if name in later and earlier[name] != later[name]),
    ]
    raise PluginError(
        f"{label}: the tool set has other tools than before the start: "
        f"{', '.join(changes) or 'their order has changed'}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolNames:
    """Names and schemas of the configured tools, known before the start. `sets`: schemas of the tools of each set.

    `stateful`: tools with states of rollouts. `are_started`: one of the tools has a `start`, or there is a set, whose
    tools may have one; they may ask for a limiter there.
    """

    schemas: Mapping[str, ToolSchema] = field(default_factory=dict)
    sets: Mapping[str, Schemas] = field(default_factory=dict)
    stateful: tuple[StatefulComponent, ...] = ()
    are_started: bool = False
    results: str | None = None  # the column that `tools.from_row.params.results` names, if it does

    @property
    def all(self) -> list[str]:
        """Every name that a task may use."""
        return [*self.schemas, *(name for name in self.sets if name not in self.schemas)]

    def of(self, task: Task) -> list[ToolSchema]:
        """The tools that a task may use: its row's, or configured ones."""
        return self.allowed(task.tools) if task.schemas is None else list(task.schemas)

    def unanswered(self, tasks: Iterable[Task]) -> list[str]:
        """A problem if tasks describe tools, and no configured tool of the right name answers their calls."""
        described = [task for task in tasks if task.schemas]
        if described and FROM_ROW not in self.schemas:
            return [
                f"tools: rows describe tools (task {described[0].id!r} is the first); name what answers "
                f"their calls, as in tools=[{FROM_ROW}]"
            ]
        if described and self.results is not None and all(self.results not in task.metadata for task in described):
            return [f"tools.{FROM_ROW}.params.results={self.results}: no row that describes tools has this column"]
        return []

    def allowed(self, names: Sequence[str] | None) -> list[ToolSchema]:
        """The tools that a task may use; None: all."""
        if names is None:
            return [schema for name, schema in self.schemas.items() if name != FROM_ROW]
        sets = {name: tuple(schema.name for schema in schemas) for name, schemas in self.sets.items()}
        return [self.schemas[name] for name in expanded(names, sets) if name in self.schemas]


def tool_names(config: Config) -> ToolNames:
    """Return the names before the start: sets are opened for them, and closed again. Raises as `open_tools` does."""

    async def find() -> ToolNames:
        with tempfile.TemporaryDirectory(prefix="ramet-tools-") as folder:
            box = await open_tools(config, RunServices(folder=Path(folder), seed=config.run.seed), for_schemas=True)
            await box.close_sets()
        started = bool(box.sets) or any(hasattr(tool, "start") for tool, _ in box.tools.values())
        mock = box.tools[FROM_ROW][0] if FROM_ROW in box.tools else None
        results = mock.config.results if isinstance(mock, FromRow) else None
        return ToolNames(
            schemas=box.schemas,
            sets=box.set_schemas,
            stateful=tool_components(box.tools),
            are_started=started,
            results=None if results == FromRowConfig().results else results,
        )

    return run_async(find())
