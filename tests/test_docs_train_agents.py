"""The page about agents: its program is the quickstart's, and its tables have all that there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from ramet import AgentContext
from ramet.rollout.config import CommandConfig, FunctionConfig

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs/agents.md").read_text(encoding="utf-8")


def test_the_program_of_the_page_is_the_quickstarts() -> None:
    lines = (REPOSITORY / "scripts/quickstart/openai_agent.py").read_text(encoding="utf-8").splitlines()
    block = re.search(r"```python\n(import json\n.*?)```", PAGE, re.DOTALL)
    assert block is not None
    rest = iter(lines)
    assert [line for line in block[1].splitlines() if line not in rest] == []


def test_the_page_has_every_part_of_the_context_and_the_options_of_agents() -> None:
    methods = {"root_url", "session_url", "environ"}
    parts = {field.name for field in dataclasses.fields(AgentContext)} - {"model"} | methods
    assert [part for part in parts if f"`{part}" not in PAGE] == []
    options = {field.name for kind in (FunctionConfig, CommandConfig) for field in dataclasses.fields(kind)}
    assert [option for option in options if not re.search(rf"\b{option}\b", PAGE)] == []
