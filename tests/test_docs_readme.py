"""The plugin of README.md is what it says: one file that `RAMET_PLUGINS` names."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet import Task, ToolCall, user_prompt
from ramet.plugins import load_plugins
from ramet.testing import check_plugin

PAGE = (Path(__file__).resolve().parents[1] / "README.md").read_text()
[(FILE, TEXT)] = re.findall(r"^`(\w+\.py)`\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
[COMMAND] = re.findall(rf"^RAMET_PLUGINS={FILE.removesuffix('.py')} PYTHONPATH=\. ramet plugins$", PAGE, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / FILE).write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    load_plugins.cache_clear()
    sys.modules.pop(FILE.removesuffix(".py"), None)


def test_the_command_lists_the_plugin(folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", COMMAND], capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert [line.split() for line in done.stdout.splitlines() if "clock" in line] == [
        ["clock_tool", "module", "clock_tool", "-", "1", "tools:", "clock"]
    ]


def test_the_plugin_keeps_the_contract_and_tells_the_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("RAMET_PLUGINS", "clock_tool")
    load_plugins.cache_clear()
    check_plugin("clock_tool")
    tool = load_plugins().registries.tools.get("clock").build()
    task = Task(id="t", prompt=user_prompt("What time is it?"))
    call = ToolCall(name="clock", arguments={"zone": "UTC"}, rollout="0", turn=0, task=task, deadline_s=9.0)
    assert re.fullmatch(r"\d\d:\d\d", asyncio.run(tool(call)).text)
