"""Checks of `ramet doctor` for the sandbox: the level of isolation that this host allows, and why no higher one."""

from __future__ import annotations

from ramet import ConfigError, DoctorContext, Finding, InfraError, Severity
from ramet_tools_python.config import PythonConfig
from ramet_tools_python.isolation import LEVELS, Isolation
from ramet_tools_python.tool import python_tool

HIGHEST = max(LEVELS)
FIXES = {
    1: "use Linux on x86-64 or ARM64, and a container whose profile allows the system call seccomp",
    2: "use Linux 5.13 or newer with Landlock, and a container whose profile allows it, as Docker's default does",
    3: "allow user namespaces, or run Ramet as root with an interpreter and a scratch folder that other users can read",
}


async def isolation_check(context: DoctorContext) -> list[Finding]:
    """One finding for each configured Python tool; its interpreter is started and ended again."""
    configured = context.configured(PythonConfig, "tools.python")
    return [await _finding(key, options) for key, options in configured.items()]


async def _finding(key: str, options: PythonConfig) -> Finding:
    try:
        async with python_tool(options) as tool:
            return _of(key, await tool.isolation())
    except (ConfigError, InfraError) as error:
        fix = "choose what this host allows, or let it allow more"
        return Finding(what=f"{key} isolation", severity=Severity.PROBLEM, text=str(error), fix=fix)


def _of(key: str, isolation: Isolation) -> Finding:
    what = f"{key} isolation"
    if isolation.level == HIGHEST:
        return Finding(what=what, severity=Severity.OK, text=isolation.text)
    severity = Severity.NOTE if isolation.level == 2 else Severity.WARNING
    reasons = [f"no level {level}: {why}" for level, why in sorted(isolation.missing.items())]
    fix = (
        FIXES[isolation.level + 1]
        if isolation.level + 1 in isolation.missing
        else f"tools.python.params.isolation=auto, not {isolation.level}"
    )
    return Finding(what=what, severity=severity, text="; ".join([isolation.text, *reasons]), fix=fix)
