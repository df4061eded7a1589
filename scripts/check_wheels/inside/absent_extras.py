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
        """A folder or a file that cannot be imported counts as one."""
        skipped = Counter(self._reason(report) for report in terminalreporter.stats.get("skipped", []))
        numbers = {"passed": len(terminalreporter.stats.get("passed", [])), "skipped": skipped}
        self.summary.write_text(json.dumps(numbers))

    def _reason(self, report: pytest.CollectReport | pytest.TestReport) -> str:
        """The same words for one extra, however a test says that it is absent."""
        text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        missing = re.search(r"No module named '(\w+)", text)  # as `pytest.importorskip` says it
        named = [extra for extra in set(self.extras.values()) if extra in text]
        extra = self.extras.get(missing[1]) if missing else next(iter(named), None)
        return _absent(extra) if extra else text.removeprefix("Skipped: ")


def _skip(report: pytest.CollectReport | pytest.TestReport, path: Path, extra: str) -> None:
    report.outcome = "skipped"
    report.longrepr = (str(path), 0, f"Skipped: {_absent(extra)}")


def _absent(extra: str) -> str:
    return f"{extra} is not installed"
