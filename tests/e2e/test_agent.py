"""A run whose rollout step is an agent: forked, killed anywhere and resumed, it is the run that was never disturbed."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.test_deterministic import Run

AGENT = '''
import aiohttp

async def run(task, ctx):
    """Three turns, and a second conversation between them."""
    headers = {"Authorization": f"Bearer {ctx.key}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async def ask(messages):
            body = {"model": ctx.model, "messages": messages, "max_tokens": 12}
            async with http.post(f"{ctx.base_url}/chat/completions", json=body) as response:
                return (await response.json())["choices"][0]["message"]
        messages = [{"role": "user", "content": task.question}]
        for more in ("again", "last"):
            said = await ask(messages)
            messages += [said, {"role": "user", "content": more}]
            await ask([{"role": "user", "content": f"sub-agent {more}"}])
        return (await ask(messages))["content"] + "."
'''
KILLS = ["fork:2", "updated:3", "saving:4"]


def test_a_killed_run_of_an_agent_ends_as_the_undisturbed_one(ramet, workspace, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    command = [
        *workspace.train(
            "rollout_step=function", "rollout_step.params.function=agent.py:run", "rollout_step.params.forks=replay",
            "tools=[]", "rollout.max_response_tokens=200", "train.save_every=1",
        ),
        f"run.root={tmp_path}",
    ]  # fmt: skip
    command = [key for key in command if key != "rollout_step=e2e_turns" and key != "tools=[e2e_digest]"]
    ended = ramet(*command, "run.name=undisturbed", cwd=tmp_path)
    assert ended.code == 0, ended.err
    undisturbed, killed = Run(tmp_path / "undisturbed"), Run(tmp_path / "killed")
    for kill in KILLS:
        ended = ramet(
            *command, "run.name=killed", cwd=tmp_path, E2E_KILL=kill, E2E_KILL_LOG=str(tmp_path / "kill.json")
        )
        assert ended.code == -9, f"{kill} did not strike: {ended.err}"
    ended = ramet(*command, "run.name=killed", cwd=tmp_path)
    assert ended.code == 0, ended.err
    for step in undisturbed.recorded():
        groups = undisturbed.records(step)
        assert killed.records(step) == groups, f"step {step}"
        rollouts = [rollout for group in groups for rollout in group["rollouts"]]
        assert all(rollout["fault"] is None for rollout in rollouts)
        assert sum(rollout["parent"] is not None for rollout in rollouts) >= 4
        assert all(rollout["threads"] for rollout in rollouts)
    assert killed.weights() == undisturbed.weights()
