"""The rewards of docs/rewards.md are what the page says, and its tables name what there is."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ramet import CallStatus, Rollout, StopReason, Task, ToolRecord, user_prompt
from ramet.config.schema import RewardConfig
from ramet.plugins import load_plugins
from ramet.testing import check_reward, written_rollout

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
README = (ROOT / "plugins" / "rewards" / "README.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def answered(answer: str, *, calls: int = 0, more: str = "", stop: StopReason = StopReason.ANSWER) -> Rollout:
    task = Task(id="t", prompt=user_prompt("?"), answer=("5",), data_source="sums")
    made = written_rollout(task, [f"<think>{more}</think><answer>{answer}</answer>"], answer=answer)
    call = ToolRecord(turn=0, name="a", arguments={}, status=CallStatus.OK, text="", wait_s=0, run_s=0, attempts=1)
    return replace(made, tool_calls=(call,) * calls, stop=stop)


def custom(path: Path, group: list[Rollout], **options: Any) -> list[Any]:
    entry = load_plugins().get("rewards", "custom")
    assert entry.config is not None
    reward = entry.build(entry.config(path=str(path), **options))

    async def main() -> list[Any]:
        found = list(await reward(group))
        await reward.aclose()
        return found

    return asyncio.run(main())


def test_the_function_of_the_group_is_as_described(folder: Path) -> None:
    group = [answered("5", more="long"), answered("5"), answered("6")]
    found = [score.value for score in custom(folder / "group_reward.py", group)]
    assert found == pytest.approx([1.0, 1.05, 0.2])


def test_the_function_of_verls_form_is_as_described(folder: Path) -> None:
    found = custom(folder / "keyword_reward.py", [answered("5", calls=3), answered("6")])
    assert [(score.value, dict(score.parts)) for score in found] == [
        (pytest.approx(0.97), {"right": 1.0, "calls": 3.0}),
        (0.0, {"right": 0.0, "calls": 0.0}),
    ]


@pytest.fixture
def tiered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("RAMET_PLUGINS", "tiered_reward")
    load_plugins.cache_clear()
    importlib.invalidate_caches()
    yield load_plugins().get("rewards", "tiered")
    load_plugins.cache_clear()
    sys.modules.pop("tiered_reward", None)


def test_the_hierarchy_is_as_described_and_keeps_the_contract(tiered: Any) -> None:
    reward = tiered.build(tiered.config(per_call=0.2))
    group = [
        answered("5"), answered("5", calls=1), answered("5", calls=9), answered("6"),
        answered("5", stop=StopReason.LENGTH),
    ]  # fmt: skip
    scores = asyncio.run(reward(group))
    assert [score.value for score in scores] == pytest.approx([1.0, 0.8, 0.5, 0.0, -1.0])
    assert scores[2].parts == {"right": 1.0, "calls": 9.0}
    check_reward(reward)


def test_the_page_names_every_key_of_a_reward() -> None:
    named = set(re.findall(r"^\| `rewards\.NAME\.(\w+)", PAGE, re.MULTILINE))
    assert named == {field.name for field in dataclasses.fields(RewardConfig)} - {"params"}


def test_the_readme_has_a_row_for_every_reward() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", README, re.MULTILINE)
    offered = [entry.name for entry in load_plugins().registries.rewards if entry.plugin == "rewards"]
    assert sorted(rows) == sorted(offered)


class _Scores(BaseHTTPRequestHandler):
    """A reward model: the score is the number of letters x in the text."""

    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"score": text.count("x")}).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_reward_model_is_asked_and_one_that_is_down_judges_nothing(folder: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Scores)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = {"function": "compute_score", "arguments": {"url": f"http://127.0.0.1:{server.server_port}/score"}}
    group = [answered("5", more="xx"), answered("5")]
    assert [score.value for score in custom(folder / "reward_model.py", group, **options)] == [2.0, 0.0]
    server.shutdown()
    server.server_close()
    with pytest.raises(Exception, match="compute_score: URLError"):  # the core then judges none of them
        custom(folder / "reward_model.py", group, **options)
