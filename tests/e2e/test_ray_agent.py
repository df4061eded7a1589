"""An agent under Ray: each rollout worker has a gateway of its own, forks are replayed, and nothing is left."""

from __future__ import annotations

import json
import socket
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("ray")

from tests.e2e.test_ray import MARK, Command, gone, recorded

AGENT = '''
import asyncio, json, os, urllib.request

from ramet import AgentResult

def ask(ctx, messages):
    """What any client does: a request that knows nothing of Ramet."""
    body = json.dumps({"model": ctx.model, "messages": messages, "max_tokens": 12}).encode()
    headers = {"Authorization": f"Bearer {ctx.key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{ctx.base_url}/chat/completions", body, headers)) as reply:
        return json.load(reply)["choices"][0]["message"]

async def run(task, ctx):
    messages = [{"role": "user", "content": task.question}]
    for more in ("again", "last"):
        messages += [await asyncio.to_thread(ask, ctx, messages), {"role": "user", "content": more}]
    said = await asyncio.to_thread(ask, ctx, messages)
    return AgentResult(answer=f"{said['content']}.", info={"url": ctx.base_url, "pid": os.getpid()})
'''
STEPS, TASKS, ROLLOUTS = 2, 2, 4
TURNS = 3


def test_each_worker_has_a_gateway_of_its_own_and_forks_are_replayed(ramet, workspace, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    folder, mark = tmp_path / "temporary", uuid.uuid4().hex
    folder.mkdir()
    running = ramet.start(
        "train", f"run.root={tmp_path}", "run.name=agents", f"model.path={workspace.model}", "model.device=cpu",
        f"data.train=[{workspace.folder / 'tasks.jsonl'}]", "data.max_prompt_tokens=32", "rewards=[e2e_even]",
        "rollout_step=function", "rollout_step.params.function=agent.py:run", "rollout_step.params.forks=replay",
        "branch_policy=random", "branch_policy.params.initial_rollouts=2", "branch_policy.params.probability=1",
        "cluster=ray", "cluster.rollout_workers=2", f"rollout.group_size={ROLLOUTS}", "rollout.max_concurrent=16",
        "rollout.max_response_tokens=200", f"train.steps={STEPS}", f"train.tasks_per_step={TASKS}",
        "train.minibatches=2", "policy.lr=0.001",
        cwd=tmp_path, TMPDIR=str(folder), **{MARK: mark},
    )  # fmt: skip
    ended = running.wait()
    assert ended.code == 0, ended.err
    addresses = set()
    for step in range(1, STEPS + 1):
        groups = recorded(tmp_path / "agents", step)
        assert [len(group["rollouts"]) for group in groups] == [ROLLOUTS] * TASKS
        rollouts = [rollout for group in groups for rollout in group["rollouts"]]
        assert [rollout["fault"] for rollout in rollouts] == [None] * len(rollouts)
        assert sum(rollout["parent"] is not None for rollout in rollouts) >= TASKS
        for rollout in rollouts:
            assert rollout["stop"] == "answer" and rollout["answer"].endswith(".")
            assert len(rollout["infos"]) == TURNS - (rollout["fork_turn"] or 0)
        infos = [rollout["infos"][-1] for rollout in rollouts]
        addresses |= {(info["pid"], info["url"]) for info in infos}
    assert len(addresses) == 2, addresses  # of two workers, in both steps
    assert len({pid for pid, _ in addresses}) == len({url for _, url in addresses}) == 2
    metrics = [json.loads(line) for line in (tmp_path / "agents/metrics.jsonl").read_text().splitlines()]
    assert all(line["step/replayed_turns"] > 0 and line["train/grad_norm"] > 0 for line in metrics)
    gone(Command(running.pid, mark, ended.code, ended.out, ended.err), within_s=5.0)
    for _, url in addresses:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=5)
    assert list(folder.iterdir()) == []
