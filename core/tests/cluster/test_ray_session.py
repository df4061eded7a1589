"""Connecting to Ray: a cluster that a run starts refuses all that do not have the run's token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import ray
import ray._private.worker

from ramet.cluster.ray.session import Session, _connect
from ramet.config.schema import ClusterConfig, ModelConfig
from ramet.errors import ConfigError

ASK = """
import sys
from ray._raylet import GcsClient
try:
    print("in, nodes:", len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20)))
except Exception as error:
    print(type(error).__name__, str(error).partition(".")[0])
"""


@ray.remote
def token() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    opened = Session.open(ClusterConfig(name="ray"), ModelConfig(path=str(tmp_path_factory.mktemp("model"))))
    folder = Path(ray._private.worker.global_worker.node.get_session_dir_path()).parents[1]
    assert folder.name.startswith("ramet-ray-") and folder.stat().st_mode & 0o777 == 0o700
    yield opened
    opened.close()
    assert not folder.exists()


def ask(home: Path, **environment: str) -> str:
    """What another process of this machine, which knows the address, gets for an answer."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", ASK, address],
        env={**clean, "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("given", [None, "f" * 64])
def test_a_process_without_the_token_is_kept_out(session: Session, tmp_path: Path, given: str | None):
    environment = {} if given is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": given}
    assert ask(tmp_path, **environment) == (
        "AuthenticationError RPC error: InvalidAuthToken: Authentication token is missing or incorrect"
    )


def test_the_runs_own_processes_have_the_token(session: Session, tmp_path: Path):
    found = ray.get(token.remote(), timeout=60)
    assert set(found) == {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} and len(found["RAY_AUTH_TOKEN"]) == 64
    assert ask(tmp_path, **found) == "in, nodes: 1"


def test_the_token_stays_within_the_run(session: Session):
    assert not [name for name in os.environ if name.startswith("RAY_AUTH_")]
    kept = Path.home() / ".ray" / "auth_token"  # Ray's own, which another cluster may have left
    own = ray.get(token.remote(), timeout=60)["RAY_AUTH_TOKEN"]
    assert not kept.exists() or own not in kept.read_text()


def test_an_address_where_nobody_listens_is_refused_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"^cluster.address={address}: cannot join a Ray cluster there: "):
        _connect(ClusterConfig(name="ray", address=address), ModelConfig(path="."))
