"""The checks of the core and of every package, one after the other. None of them can stop the others."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ramet.components.toolbox import OPEN_TIMEOUT_S
from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.config.secrets import hide
from ramet.config.sections import COMPONENTS
from ramet.doctor.host import check_host
from ramet.errors import PluginError, RametError
from ramet.event_loop import run_async
from ramet.plugins import extensions, load_plugins
from ramet.plugins.extensions import ExtensionEntry
from ramet.plugins.plugin_code import raised_at
from ramet.plugins.registry import BUILTIN
from ramet.rollout.config import McpConfig
from ramet.types import DoctorContext, Finding, Severity, ToolSet

CHECK_TIMEOUT_S = 60.0  # of a check that is async; others are waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The findings of one package. `name`: of its check."""

    name: str
    distribution: str
    findings: tuple[Finding, ...]


def examine(resolved: Resolved, *, offline: bool) -> list[Examined]:
    """Every check, the core's first. Never raises for what a check does."""
    context = DoctorContext(options=options_of(resolved.config), offline=offline)
    found = [*check_host(resolved.config), *_plugins()]
    failed = {finding.what for finding in found if finding.severity is Severity.PROBLEM}
    found += _started_servers(resolved.config, failed, offline=offline)
    examined = [Examined(name=BUILTIN, distribution="ramet", findings=tuple(map(_hidden, found)))]
    for entry in extensions.extensions(extensions.DOCTOR):
        if _is_concerned(entry.distribution, resolved.config):
            with _without_news():
                findings = tuple(_hidden(finding) for finding in _ask(entry, context))
            examined.append(Examined(name=entry.name, distribution=entry.distribution, findings=findings))
    return examined


def _is_concerned(distribution: str, config: Config) -> bool:
    """Whether a run with this configuration may need the package: it uses something of it, or the package has no
    components. A configuration that chooses no tools, rewards and benchmarks concerns every package.
    """
    registries, offers, chooses = load_plugins().registries, False, False
    for group in COMPONENTS:
        if group.kind is None:
            continue
        owners = {entry.name: entry.distribution for entry in getattr(registries, group.kind)}
        node: Any = getattr(config, group.name)
        names = [settings.use or name for name, settings in node.items()] if group.many else [node.name]
        if distribution in {owners.get(name) for name in names}:
            return True
        offers = offers or distribution in owners.values()
        chooses = chooses or (group.many and bool(names))
    return not (offers and chooses)


@contextmanager
def _without_news() -> Iterator[None]:
    """Drop what a component logs of its start: it is among the findings."""
    logger = logging.getLogger("ramet")
    level = logger.level
    if level == logging.INFO:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def options_of(config: Config) -> dict[str, Any]:
    """The options of every chosen component, by its key."""
    by_key: dict[str, Any] = {}
    for group in COMPONENTS:
        configured: Any = getattr(config, group.name)
        named = configured.items() if isinstance(configured, Mapping) else [(None, configured)]
        by_key |= {group.name if name is None else f"{group.name}.{name}": settings.params for name, settings in named}
    return {key: options for key, options in by_key.items() if options is not None}


def _plugins() -> Iterator[Finding]:
    for info in load_plugins().infos:
        if info.broken is not None:
            yield Finding(
                what=f"plugin {info.name}",
                severity=Severity.PROBLEM,
                text=" ".join(info.broken.split()),
                fix=f"pip install --upgrade {info.distribution}, or leave it out: RAMET_BLOCK_PLUGINS={info.name}",
            )
        elif info.slow is not None:
            yield Finding(what=f"plugin {info.name}", severity=Severity.NOTE, text=info.slow)


def _started_servers(config: Config, failed: set[str], *, offline: bool) -> Iterator[Finding]:
    """Start each MCP server, ask it for its tools, and end it. With `offline` none is: it may use the network.

    Servers of `failed` checks cannot start, which was reported.
    """
    for name, settings in config.tools.items():
        what = f"tools.{name}"
        if not isinstance(settings.params, McpConfig) or {what, "mcp"} & failed:
            continue
        if offline:
            yield Finding(what=what, severity=Severity.NOTE, text="the MCP server was not started (--offline)")
            continue
        try:
            server = load_plugins().get("tools", settings.use or name).build(settings.params, key=what)
            tool_names = run_async(_listed_tools(server))
        except (RametError, TimeoutError) as error:
            fix = f"see {what}.params, and try it: ramet tool call"
            text = str(error) or f"the MCP server did not list its tools within {OPEN_TIMEOUT_S:g} s"
            yield Finding(what=what, severity=Severity.PROBLEM, text=text, fix=fix)
        else:
            listed = ", ".join(tool_names) or "none"
            yield Finding(what=what, severity=Severity.OK, text=f"the MCP server offers: {listed}")


async def _listed_tools(server: ToolSet) -> list[str]:
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            return [tool.schema.name for tool in await server.open()]
    finally:
        await server.aclose()


def _ask(entry: ExtensionEntry, context: DoctorContext) -> list[Finding]:
    try:
        check: Callable[[DoctorContext], Any] = entry.load()
        returned = check(context)
        findings = list(run_async(_awaited(returned)) if inspect.isawaitable(returned) else returned)
        wrong = next((finding for finding in findings if not isinstance(finding, Finding)), None)
        if wrong is not None:
            raise TypeError(f"returned {wrong!r:.80}, which is not a Finding")
        return findings
    except PluginError as error:
        problem = str(error)
    except (Exception, SystemExit) as error:
        problem = f"the check itself failed: {type(error).__name__}: {error}{raised_at(error)}"
    return [
        Finding(
            what="doctor",
            severity=Severity.PROBLEM,
            text=problem,
            fix=f"report it to the authors of {entry.distribution}",
        )
    ]


async def _awaited(awaitable: Any) -> Any:
    async with asyncio.timeout(CHECK_TIMEOUT_S):
        return await awaitable


def _hidden(finding: Finding) -> Finding:
    """Hide keys, whatever the check wrote."""
    fix = None if finding.fix is None else hide(finding.fix)
    return Finding(what=finding.what, severity=finding.severity, text=hide(finding.text), fix=fix)
