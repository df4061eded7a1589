"""A Python interpreter as a tool for Ramet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ramet import Register, Tool, hookimpl
from ramet_tools_python.config import PythonConfig

if TYPE_CHECKING:
    from ramet_tools_python.result import PythonResult
    from ramet_tools_python.tool import KeepingPythonTool, PythonTool

ramet_contract = "1"
__all__ = ["KeepingPythonTool", "PythonConfig", "PythonResult", "PythonTool"]
_MODULES = {"KeepingPythonTool": "tool", "PythonTool": "tool", "PythonResult": "result"}


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("python", "ramet_tools_python.tool:python_tool", config=PythonConfig)


def __getattr__(name: str) -> Any:
    """Import what needs asyncio when it is used: `ramet --help` loads this module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
