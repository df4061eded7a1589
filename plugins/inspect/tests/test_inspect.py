"""Real inspect_ai: samples run through a gateway whose engine is scripted.

`RAMET_INSPECT` names its environment, which `python3 -m venv FOLDER && FOLDER/bin/pip install inspect_ai openai` makes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ramet import AgentBudget, AgentContext, AgentResult, AgentStatus, ConfigError, InfraError, Task
from ramet.config.schema import RolloutConfig, SystemPrompt
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.config import RandomBranchConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import ScriptedEngine, tiny_encoder
from ramet_inspect.agent import InspectAgent
from ramet_inspect.benchmark import InspectBenchmark
from ramet_inspect.config import InspectBenchmarkConfig, InspectConfig

FOLDER = os.environ.get("RAMET_INSPECT") or (sys.prefix if find_spec("inspect_ai") else None)
TASK = f"{Path(__file__).parent / 'tasks' / 'sums.py'}@sums"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        FOLDER is None,
        reason="ramet-inspect[inspect] is not installed, and RAMET_INSPECT names no environment of inspect_ai",
    ),
]


def script(prompt: str) -> str:
    """Call `add`, then say its result."""
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", prompt, re.DOTALL)
    if "<tools>" in prompt and not results:
        [(a, b)] = re.findall(r"What is (\d+)\+(\d+)", prompt)
        tool, arguments = ("add", {"a": int(a), "b": int(b)}) if '"add"' in prompt else ("wait", {})
        return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"
    return f"It is {results[0] if results else 7}."


def config(**options: Any) -> dict[str, Any]:
    return {"python": f"{FOLDER}/bin/python", "task": TASK, **options}


Make = Callable[..., InspectAgent]
Run = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[InspectAgent] = []

    def build(args: dict[str, Any] | None = None, **options: Any) -> InspectAgent:
        made.append(InspectAgent(InspectConfig(**config(args=args or {}, **options))))
        return made[-1]

    yield build
    for agent in made:
        asyncio.run(agent.aclose())


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(InspectBenchmark(InspectBenchmarkConfig(**config())).load("test", None))


@pytest.fixture
def task(tasks: list[Task]) -> Task:
    return tasks[2]


async def run(agent: InspectAgent, task: Task, served: Any, folder: Path, key: str | None = None) -> AgentResult:
    budget = AgentBudget(turns=20, tokens=50_000, tool_calls=20, seconds=60)
    folder.mkdir(exist_ok=True)
    return await agent.run(
        task,
        AgentContext(
            base_url=f"{served.url}/v1", key=key or served.key, model="policy", budget=budget, folder=folder, seed=1
        ),
    )


@pytest.fixture
def run_one(gateway: Any, tmp_path: Path) -> Run:
    """Runs a task; returns the result and its rollout, whose tokens are what the engine saw."""

    def run_one(agent: InspectAgent, task: Task, max_turns: int = 20, replies: Any = script, **kwargs: Any) -> Any:
        async def work() -> Any:
            async with gateway.serve_one(replies, replace(gateway.LARGE, max_turns=max_turns)) as served:
                result = await run(agent, task, served, tmp_path / "run", **kwargs)
                return result, served.check()

        return asyncio.run(work())

    return run_one


def test_a_sample_runs_through_the_gateway_and_its_score_is_the_reward(
    make: Make, task: Task, run_one: Run, tmp_path: Path
) -> None:
    result, rollout = run_one(make(log_dir=str(tmp_path / "logs")), task)
    assert (result.answer, result.reward, result.status) == ("It is 4.", 1.0, AgentStatus.DONE)
    info = result.info["inspect"]
    assert info["scores"] == {"includes": 1.0, "counts/words": 3.0, "counts/digits": 1.0}
    assert len(rollout.threads) == 1 and rollout.response.endswith("It is 4.")
    assert Path(info["log"]).parent == tmp_path / "logs"
    dump = subprocess.run([f"{FOLDER}/bin/inspect", "log", "dump", info["log"]], capture_output=True, check=True)
    [logged] = json.loads(dump.stdout)["samples"]
    assert (logged["id"], logged["scores"]["includes"]["value"]) == ("sum[2]", "C")


def test_samples_that_run_at_once_have_sessions_of_their_own(
    gateway: Any, make: Make, tasks: list[Task], tmp_path: Path
) -> None:
    agent, tasks = make(scorer="counts/words"), [*tasks[:4], tasks[2]]

    async def work() -> None:
        async with AsyncExitStack() as stack:
            served = [await stack.enter_async_context(gateway.serve_one(script)) for _ in tasks]
            runs = [
                run(agent, task, one, tmp_path / str(i))
                for i, (task, one) in enumerate(zip(tasks, served, strict=True))
            ]
            results = await asyncio.gather(*runs)
            assert [result.answer for result in results] == ["It is 0.", "It is 2.", "It is 4.", "It is 6.", "It is 4."]
            assert [result.reward for result in results] == [3.0] * 5
            for one, result in zip(served, results, strict=True):
                assert one.check().response.endswith(str(result.answer))

    asyncio.run(work())


def test_a_crash_after_a_reply_is_the_agents_and_one_before_is_an_outage(make: Make, task: Task, run_one: Run) -> None:
    result, _ = run_one(make({"solve": "crash"}), task)
    assert (result.status, result.reward) == (AgentStatus.FAILED, None)
    assert "a mistake of the solver" in result.info["inspect"]["error"]
    with pytest.raises(InfraError, match="a mistake of the solver"):
        run_one(make({"solve": "crash early"}), task)


def test_a_gateway_that_refuses_is_an_outage(make: Make, task: Task, run_one: Run) -> None:
    with pytest.raises(InfraError, match="401"):
        run_one(make(), task, key="wrong")


def test_a_sample_that_reaches_a_limit_is_scored_and_has_no_answer(make: Make, task: Task, run_one: Run) -> None:
    """A limit of the task's own, and the gateway's, at which Inspect stops asking."""
    for limit, agent, max_turns in (("message", make({"messages": 3}), 20), ("context", make(), 1)):
        result, rollout = run_one(agent, task, max_turns=max_turns)
        assert (result.reward, result.answer, result.status) == (0.0, None, AgentStatus.DONE)
        assert result.info["inspect"]["limit"] == limit and rollout.n_sampled_tokens > 0


def test_forks_run_the_sample_again_and_share_what_was_recorded(make: Make, task: Task) -> None:
    def replies(task: str, path: str, turn: int) -> str:
        return script('<tools> What is 2+2? "add"') if turn == 0 else f"It is 4, by {path}."

    engine = ScriptedEngine(replies, encoder := tiny_encoder())

    async def work() -> Any:
        worker = RolloutWorker(
            engine=engine,
            encoder=encoder,
            step=make(forks="replay", scorer="includes"),
            branch_policy=RandomBranching(RandomBranchConfig(initial_rollouts=1, probability=1.0)),
            tools={},
            config=RolloutConfig(group_size=2),
            system_prompt=SystemPrompt.NEVER,
            deterministic=False,
            seed=1,
        )
        try:
            [group] = await worker.run(RolloutRequest(tasks=[task], step=1, plan=RolloutPlan()))
            return group.rollouts
        finally:
            await worker.close()

    root, fork = asyncio.run(work())
    assert fork.parent == root.id and fork.fork_turn == 1
    for rollout in (root, fork):
        assert rollout.valid, rollout.fault
        assert rollout.answer == f"It is 4, by {rollout.id}."
        assert [(call.name, call.text) for call in rollout.tool_calls] == [("add", "4")]
        assert rollout.turn_rewards == (None, 1.0) and rollout.infos[-1]["inspect"]["score"] == 1.0
    assert all(a is b for a, b in zip(fork.segments[:3], root.segments, strict=False))
    assert len(engine.requests) == 3  # the fork's first turn is the root's


def test_a_scorer_that_asks_the_policy_is_refused(make: Make, task: Task, run_one: Run) -> None:
    with pytest.raises(ConfigError, match="model_roles"):
        run_one(make({"score": "grader"}), task)


def test_a_score_without_a_number_is_a_crash_unless_the_scorer_says_that_it_failed(
    make: Make, task: Task, run_one: Run
) -> None:
    for score in ("text", "divides"):
        result, _ = run_one(make({"score": score}), task)
        assert result.status is AgentStatus.FAILED and "not a number" in result.info["inspect"]["error"]
    with pytest.raises(InfraError, match="'divides' has the reason scoring_failed"):
        run_one(make({"score": "scorer fails"}), task)


def test_a_model_with_a_role_grades(
    gateway: Any, make: Make, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with gateway.serve_one(script) as served, gateway.serve_one(lambda _: "0.5") as judge:
            monkeypatch.setenv("JUDGE_BASE_URL", f"{judge.url}/v1")
            monkeypatch.setenv("JUDGE_API_KEY", judge.key)
            agent = make({"score": "grader"}, model_roles={"grader": "openai-api/judge/any"})
            result = await run(agent, task, served, tmp_path)
            assert result.reward == 0.5
            assert "right?" not in served.check().response

    asyncio.run(work())


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _waited(condition: Callable[[], bool]) -> bool:
    ends = time.monotonic() + 20
    while not condition() and time.monotonic() < ends:
        time.sleep(0.1)
    return condition()


def test_a_cancelled_sample_ends_with_what_it_started(gateway: Any, make: Make, task: Task, tmp_path: Path) -> None:
    agent, pid = make({"solve": "wait", "folder": str(tmp_path)}), tmp_path / "pid"

    async def work() -> None:
        async with gateway.serve_one(script) as served:
            running = asyncio.create_task(run(agent, task, served, tmp_path / "run"))
            assert await asyncio.to_thread(_waited, lambda: pid.exists() and bool(pid.read_text()))
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(work())
    assert _waited(lambda: not _is_running(int(pid.read_text())))


def test_a_killed_process_is_an_outage_and_is_started_again(
    gateway: Any, make: Make, task: Task, tmp_path: Path
) -> None:
    agent, pid = make({"solve": "wait", "folder": str(tmp_path)}), tmp_path / "pid"

    async def work() -> None:
        async with gateway.serve_one(script) as served:
            for _ in range(2):
                running = asyncio.create_task(run(agent, task, served, tmp_path / "run"))
                assert await asyncio.to_thread(_waited, lambda: pid.exists() and bool(pid.read_text()))
                os.kill(agent._process._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
                with pytest.raises(InfraError, match="ended"):
                    await running
                assert await asyncio.to_thread(_waited, lambda: not _is_running(int(pid.read_text())))
                pid.unlink()

    asyncio.run(work())


def test_a_task_of_an_installed_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, metadata = tmp_path / "my_evals", tmp_path / "my_evals-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text((Path(__file__).parent / "tasks" / "sums.py").read_text())
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_evals\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[inspect_ai]\nmy_evals = my_evals\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    benchmark = InspectBenchmark(InspectBenchmarkConfig(**config(task="my_evals/sums", args={"n": 1})))
    assert [task.id for task in benchmark.load("test", None)] == ["sum[0]"]
    with pytest.raises(ConfigError, match="packages with tasks in this environment: my_evals"):
        list(InspectBenchmark(InspectBenchmarkConfig(**config(task="sums"))).load("test", None))


def test_the_task_of_the_page_runs(make: Make, run_one: Run, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "inspect.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "sums.py").write_text(code, encoding="utf-8")
    options = config(task=f"{tmp_path}/sums.py@sums", args={"n": 3})
    task = list(InspectBenchmark(InspectBenchmarkConfig(**options)).load("test", None))[2]
    result, _ = run_one(make({"n": 3}, task=options["task"]), task, replies=lambda prompt: "It is 16.")
    assert (result.answer, result.reward) == ("It is 16.", 1.0)


def test_samples_are_tasks_with_splits_and_ids() -> None:
    benchmark = InspectBenchmark(InspectBenchmarkConfig(**config(n_train=2, args={"n": 6})))
    train, test = (list(benchmark.load(split, None)) for split in ("train", "test"))
    assert len(train) == 2 and len(test) == 4
    assert {task.id for task in train + test} == {f"sum[{i}]" for i in range(6)}
    assert [task.id for task in benchmark.load("test", 2)] == [task.id for task in test[:2]]
    first = test[0]
    assert first.question.startswith("What is") and first.answer[0].isdigit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": TASK.replace("sums.py", "none.py")}, "no file"),
        ({"task": TASK + "s"}, "no task 'sumss'"),
        ({"task": "sums"}, "PACKAGE/NAME"),
        ({"task": TASK.replace("@sums", "@twins")}, "two samples have the id 'a'"),
        ({"args": {"m": 1}}, "unexpected keyword argument 'm'"),
        ({"n_train": 5}, "under 5"),
    ],
)
def test_tasks_that_cannot_be_loaded_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        list(InspectBenchmark(InspectBenchmarkConfig(**config(**options))).load("test", None))
