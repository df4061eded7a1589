"""What `ramet doctor` says of the sandbox."""

from __future__ import annotations

import asyncio

import pytest

from ramet import DoctorContext, Finding, Severity
from ramet_tools_python import PythonConfig
from ramet_tools_python.doctor import FIXES, _of, isolation_check
from ramet_tools_python.isolation import Isolation


def findings(options: PythonConfig) -> list[Finding]:
    return asyncio.run(isolation_check(DoctorContext(options={"tools.python": options})))


def test_a_level_that_was_chosen_is_named_with_the_key_that_chose_it() -> None:
    [found] = findings(PythonConfig(isolation="0", preload=[]))
    assert (found.what, found.severity) == ("tools.python isolation", Severity.WARNING)
    assert found.text.startswith("isolation level 0 (limits and no privileges")
    assert found.fix == "tools.python.params.isolation=auto, not 0"


def test_what_keeps_the_tool_from_starting_is_a_problem() -> None:
    [found] = findings(PythonConfig(preload=["no_such_module"]))
    assert found.severity is Severity.PROBLEM
    assert found.text == "tools.python.params.preload names 'no_such_module', which is not installed"


@pytest.mark.parametrize(
    ("level", "severity"), [(0, Severity.WARNING), (1, Severity.WARNING), (2, Severity.NOTE), (3, Severity.OK)]
)
def test_a_host_that_allows_less_is_told_why_and_what_to_do(level: int, severity: Severity) -> None:
    missing = {} if level == 3 else {level + 1: "unshare: Operation not permitted"}
    found = _of("tools.python", Isolation(level=level, missing=missing))
    assert (found.severity, found.fix) == (severity, FIXES.get(level + 1))
    assert found.text.endswith("Operation not permitted") or level == 3


def test_programs_that_run_as_root_are_named_with_the_reason() -> None:
    missing = {3: "own user: another user cannot read /opt/python"}
    found = _of("tools.python", Isolation(level=1, way="root", missing=missing))
    assert "but as root" in found.text and found.text.endswith("another user cannot read /opt/python")
    assert found.fix == "tools.python.params.isolation=auto, not 1"
