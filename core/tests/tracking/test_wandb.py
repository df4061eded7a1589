"""The tracker `wandb` with the real package, offline."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ramet.config import secrets
from ramet.config.schema import Config
from ramet.errors import ConfigError
from ramet.tracking.jsonl import JsonlTracker
from ramet.tracking.trackers import check_trackers
from ramet.tracking.wandb import HandedOver, WandbMode, WandbOptions, WandbTracker
from ramet.types import TrackedRun

wandb = pytest.importorskip("wandb", reason="needs ramet[wandb]")
pytestmark = pytest.mark.usefixtures("without_key")
CONFIG = """
run: {name: r, seed: 1}
tools:
  web:
    params: {key: "${oc.env:SEARCH_KEY}", url: "https://me:hunter2@search.example"}
"""


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[None]:
    """The package's own process ends with these tests."""
    yield
    wandb.teardown()


@pytest.fixture
def tracked(tmp_path: Path) -> Callable[..., WandbTracker]:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.yaml").write_text(CONFIG)

    def make(logged: int = -1, **options: Any) -> WandbTracker:
        run = TrackedRun(folder=tmp_path / "r", total_steps=9, job="train", id="abc123", logged=logged)
        return WandbTracker(run, WandbOptions.of(options))

    return make


def of_kind(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in records if record["type"] == kind]


def logged(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The history without what W&B adds."""
    rows = (row["item"] for row in of_kind(records, "history"))
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]


def test_a_run_is_offline_without_a_key_and_says_how_to_upload_it(
    tracked: Callable[..., WandbTracker], wandb_records: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="ramet"):
        tracker = tracked(project="sums", entity="team", group="g", tags=["a", "b"])
    tracker.rewind(-1)
    tracker.log(1, {"reward/mean": 0.5, "valid/x/pass@4": math.nan})
    tracker.ended(0)
    tracker.close()
    folder = tmp_path / "r" / "wandb"
    assert [record.getMessage() for record in caplog.records if record.name.startswith("ramet")] == [
        "wandb: offline, since there is no key (WANDB_API_KEY, or `wandb login`); "
        f"upload with: wandb sync --id abc123 {folder}/offline-run-*"
    ]
    records = wandb_records(folder)
    (run,) = of_kind(records, "run")
    named = {key: run[key] for key in ("run_id", "display_name", "project", "entity", "run_group", "job_type", "tags")}
    assert named == {
        "run_id": "abc123", "display_name": "r", "project": "sums", "entity": "team", "run_group": "g",
        "job_type": "train", "tags": ["a", "b"],
    }  # fmt: skip
    assert logged(records) == [{"step": 1, "reward/mean": 0.5, "valid/x/pass@4": "NaN"}]
    assert {metric.get("glob_name"): metric.get("step_metric") for metric in of_kind(records, "metric")}["*"] == "step"
    assert of_kind(records, "exit")[0].get("exit_code", 0) == 0


def test_the_configuration_is_there_without_secrets(
    tracked: Callable[..., WandbTracker], wandb_records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "_values", {})  # of other tests in this process
    monkeypatch.setenv("SEARCH_KEY", "topsecretvalue")
    monkeypatch.setattr(sys, "argv", ["ramet", "train", "tools.web.params.password=typedsecret"])
    tracked().close()
    folder = tmp_path / "r" / "wandb"
    config = of_kind(wandb_records(folder), "run")[0]["config"]["update"]
    assert config["run"] == {"name": "r", "seed": 1}
    assert config["tools"]["web"]["params"] == {"key": "${oc.env:SEARCH_KEY}", "url": "https://me:***@search.example"}
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert not [secret for secret in (b"topsecretvalue", b"typedsecret", b"hunter2") if secret in written]


def test_a_resumed_run_has_its_id_and_repeats_no_step(
    tracked: Callable[..., WandbTracker], wandb_records: Any, tmp_path: Path
) -> None:
    first = tracked()
    first.rewind(-1)
    for step in (1, 2, 3):
        first.log(step, {"reward/mean": step / 10})
    first.ended(143)
    first.close()
    second = tracked(logged=3)
    second.rewind(2)  # step 3 came after the checkpoint
    second.log(2, {"valid/reward": 0.5})  # made up for: it was not logged before
    for step in (3, 4):
        second.log(step, {"reward/mean": step / 10})
    second.close()
    records = wandb_records(tmp_path / "r" / "wandb")
    assert [run["run_id"] for run in of_kind(records, "run")] == ["abc123", "abc123"]
    assert [(row["step"], *(set(row) - {"step"})) for row in logged(records)] == [
        (1, "reward/mean"), (2, "reward/mean"), (3, "reward/mean"), (2, "valid/reward"), (4, "reward/mean"),
    ]  # fmt: skip
    assert [end.get("exit_code", 0) for end in of_kind(records, "exit")] == [143, 0]


def test_rows_that_a_killed_process_had_not_handed_over_are_taken_from_the_metrics_file(
    tracked: Callable[..., WandbTracker], wandb_records: Any, tmp_path: Path
) -> None:
    first = tracked()
    first.rewind(-1)
    for step in (1, 2):
        first.log(step, {"reward/mean": step / 10})
    first.close()
    rows = [(1, "reward/mean"), (2, "reward/mean"), (2, "valid/reward"), (3, "reward/mean"), (4, "reward/mean")]
    metrics = JsonlTracker(tmp_path / "r" / "metrics.jsonl")
    for step, name in rows:
        metrics.log(step, {name: 0.5})
    second = tracked(logged=4)
    second.rewind(3)
    for step in (4, 5):  # 4 was logged after the checkpoint, and not handed over either
        second.log(step, {"reward/mean": step / 10})
    second.close()
    assert [(row["step"], *(set(row) - {"step"})) for row in logged(wandb_records(tmp_path / "r" / "wandb"))] == [
        *rows, (5, "reward/mean"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"id": "abc", "step": 2, "rows": 1}', (2, 1)),
        ('{"id": "other", "step": 2, "rows": 1}', (-1, 0)),  # of a run that began anew under another id
        ("{", (7, sys.maxsize)),
        (None, (7, sys.maxsize)),  # what an earlier ramet left
        ("no folder", (-1, 0)),
    ],
)
def test_how_far_the_rows_are_handed_over(tmp_path: Path, content: str | None, expected: tuple[int, int]) -> None:
    folder = tmp_path / "wandb"
    if content != "no folder":
        folder.mkdir()
        if content is not None:
            (folder / "handed_over.json").write_text(content)
    found = HandedOver.read(TrackedRun(folder=tmp_path, total_steps=9, job="train", id="abc", logged=7))
    assert (found.step, found.rows) == expected


def test_online_without_a_key_is_refused_before_the_start() -> None:
    config = Config(trackers=["wandb"], wandb={"mode": "online"})
    assert check_trackers(config) == [
        "wandb.mode=online: there is no key (WANDB_API_KEY, or `wandb login`); wandb.mode=auto is offline then"
    ]


@pytest.mark.parametrize(
    ("mode", "variables", "offline"),
    [
        ("auto", {}, True),
        ("auto", {"WANDB_API_KEY": "0" * 40}, False),
        ("auto", {"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "offline"}, True),
        ("offline", {"WANDB_API_KEY": "0" * 40}, True),
        ("online", {"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "offline"}, False),
    ],
)
def test_a_key_and_the_mode_decide_whether_a_run_is_online(
    mode: str, variables: dict[str, str], offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramet.tracking.wandb import _is_offline

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _is_offline(WandbMode(mode), os.environ.get("WANDB_MODE")) is offline


SCRIPT = """
import logging, sys
from pathlib import Path
from ramet.config.schema import Config
from ramet.tracking.trackers import make_trackers
from ramet.types import TrackedRun
logging.basicConfig(level=logging.INFO, format="%(message)s")
folder = Path(sys.argv[1])
trackers = make_trackers(Config(trackers=["wandb"]), TrackedRun(folder=folder, total_steps=2, job="train", id="abc"))
trackers.log(1, {"reward/mean": 0.5})
trackers.close(2)
"""


def test_offline_nothing_asks_the_network(tmp_path: Path, wandb_records: Any) -> None:
    """Every request would go to this proxy: of Python and of W&B's own process, also when the interpreter ends."""
    asked = []

    class Proxy(BaseHTTPRequestHandler):
        def handle(self) -> None:
            asked.append(self.request.recv(100))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        proxy = f"http://127.0.0.1:{server.server_port}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        proxies = {name: proxy for upper in names for name in (upper, upper.lower())}
        environment = {**os.environ, **proxies, "NO_PROXY": "", "no_proxy": ""}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        careless = [sys.executable, "-c", "import requests; requests.get('http://outside.test/')"]
        subprocess.run(careless, env=environment, capture_output=True, timeout=120)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert len(asked) == 1 and asked[0].startswith(b"GET http://outside.test/")  # of the careless one alone
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("wandb: offline, "), json.dumps(lines)
    assert done.stdout == ""
    assert of_kind(wandb_records(tmp_path / "wandb"), "exit")[0]["exit_code"] == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "onlin"}, "wandb.mode=onlin: allowed: auto, online, offline"),
        ({"tags": "a"}, "wandb.tags=a: expected a list of texts"),
    ],
)
def test_options_of_another_kind_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WandbOptions.of(given)
    assert str(caught.value) == said
