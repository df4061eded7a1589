"""A Python interpreter as a tool for Ramet."""

from __future__ import annotations

from ramet import Register, Tool, hookimpl
from ramet_tools_python.config import PythonConfig

ramet_contract = "1"


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("python", "ramet_tools_python.tool:PythonTool", config=PythonConfig)
