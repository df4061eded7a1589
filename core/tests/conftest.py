"""Shared by the core's tests, which also run where no other package of this repository is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ramet import function_tool
from ramet.testing import registered


def python(code: str) -> str:
    """Returns its input."""
    return code


@pytest.fixture
def python_tool() -> Iterator[None]:
    """A tool `python`, also where ramet-tools-python is not installed."""
    with registered("tools", "python", lambda: function_tool(python)):
        yield
