"""Servers to play with: a small one of these tests, and one of the package `openenv` in its own virtual environment.

`RAMET_OPENENV=FOLDER` names that environment (`python -m venv FOLDER; FOLDER/bin/pip install openenv==0.10.0`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet_openenv import OpenEnvConfig
from ramet_openenv.server import OpenEnvServer

HERE = Path(__file__).parent
SERVERS = ("small", "openenv")
Command = Callable[..., list[str]]


def command_of(server: str) -> Command:
    """The command of a server: `command(kind, places)`."""
    if server == "small":
        program = [sys.executable, str(HERE / "small_server.py")]
    else:
        python = Path(os.environ.get("RAMET_OPENENV", "-"), "bin", "python")
        if not python.exists():
            pytest.skip("RAMET_OPENENV does not name a virtual environment with openenv")
        program = [str(python), str(HERE / "openenv_server.py")]
    return lambda kind="guess", places=16: [*program, "{port}", kind, str(places)]


@pytest.fixture(scope="session", params=SERVERS)
def command(request: Any) -> Command:
    return command_of(request.param)


@pytest.fixture(scope="session")
def url_of(command: Command) -> Callable[[str], str]:
    """The address of a server that all tests share, by the kind of its environment."""
    servers: dict[str, OpenEnvServer] = {}

    def url(kind: str = "guess") -> str:
        if kind not in servers:
            servers[kind] = OpenEnvServer(OpenEnvConfig(command=command(kind), start_timeout_s=240.0))
        return servers[kind].url()

    return url


@pytest.fixture
def url(url_of: Callable[[str], str]) -> str:
    return url_of("guess")
