"""Web search and page reading as tools for Ramet."""

from __future__ import annotations

from ramet import Register, Tool, hookimpl

ramet_contract = "1"


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    pass
