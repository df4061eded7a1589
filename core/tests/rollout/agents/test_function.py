"""Which functions are agents, and how they are found."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from ramet.errors import ConfigError
from ramet.rollout.agents.function import FunctionAgent
from ramet.rollout.config import FunctionConfig

CODE = """
from ramet_test_beside import ANSWER

async def run(task, ctx):
    return ANSWER

def blocks(task, ctx):
    return ANSWER

async def short(task):
    return ANSWER
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an agent in a sub-folder, whose module imports one beside it."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "mine.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "agents" / "script.py").write_text("import sys; sys.exit('usage: script.py FILE')", encoding="utf-8")
    (tmp_path / "agents" / "ramet_test_beside.py").write_text("ANSWER = '4'", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_an_agent_in_a_sub_folder_finds_the_modules_beside_it(folder: Path) -> None:
    agent = FunctionAgent(FunctionConfig(function="agents/mine.py:run"))
    assert asyncio.run(agent.run(cast(Any, None), cast(Any, None))).answer == "4"


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("agents/mine.py", "as FILE.py:NAME or MODULE:NAME"),
        ("agents/mine.py:rum", "there is no such function"),
        ("agents/mine.py:blocks", "it is a function without `async`.*rollout_step=command"),
        ("agents/mine.py:short", r"it cannot be called with \(task, ctx\)"),
        ("agents/mein.py:run", "FileNotFoundError.*agents/mein.py"),
        ("mein_agent:run", "ModuleNotFoundError"),
        ("agents/script.py:run", "SystemExit: usage: script.py FILE"),
    ],
)
def test_what_cannot_be_an_agent_is_named(folder: Path, function: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"rollout_step.params.function=.*{problem}"):
        FunctionAgent(FunctionConfig(function=function))
