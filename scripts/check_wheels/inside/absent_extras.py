"""A pytest plugin: what cannot run because an extra is absent is skipped, with that extra as the reason.

Only a missing module that an extra brings is taken so; everything else stays the failure that it is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from wheel_extras import extra_for, modules_of_extras

MISSING = re.compile(r"^E\s+ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--absent-extras-of", help="name of the distribution")
    parser.addoption("--absent-extras-summary", type=Path, help="JSON file for the numbers of tests")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(AbsentExtras(config), "absent_extras_of_distribution")


class AbsentExtras:
    def __init__(self, config: pytest.Config) -> None:
        self.extras = modules_of_extras(config.getoption("--absent-extras-of"))
        self.summary: Path = config.getoption("--absent-extras-summary")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A test module, or the conftest of a folder, that cannot be imported."""
        report = yield
        missing = MISSING.findall(str(report.longrepr)) if report.failed else []
        if missing and missing[-1] in self.extras:
            _skip(report, collector.path, self.extras[missing[-1]])
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        extra = extra_for(call.excinfo.value, self.extras) if report.failed and call.excinfo else None
        if extra is not None:
            _skip(report, item.path, extra)
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        skipped = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
        numbers = {"passed": len(terminalreporter.stats.get("passed", [])), "skipped": _short(skipped)}
        self.summary.write_text(json.dumps(numbers))


def _skip(report: pytest.CollectReport | pytest.TestReport, path: Path, extra: str) -> None:
    report.outcome = "skipped"
    report.longrepr = (str(path), 0, f"Skipped: {extra} is not installed")


def _short(skipped: Counter[str]) -> dict[str, int]:
    """By reason; a folder or module counts once."""
    return {reason.removeprefix("Skipped: "): n for reason, n in skipped.items()}
