"""`ramet eval --replay` with benchmarks that hold something open, or that a judge scores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from core.tests.evaluate.test_results import HEADER, INFO, earlier, played, rollout, score

from ramet import InfraError, OpenAIClient, OpenAIOptions
from ramet.config.compose import compose
from ramet.errors import ConfigErrors
from ramet.evaluate.files import read_results
from ramet.evaluate.judge_pass import run as judge
from ramet.evaluate.measure import score_group
from ramet.evaluate.partial import PartialResults
from ramet.evaluate.replay import _gone, replay
from ramet.plugins import PluginInfo, Plugins, load_plugins
from ramet.plugins.registry import Registries
from ramet.testing import OpenAIServer, RawReply
from ramet.types import Group, Rollout, Services, Task, user_prompt


class Opened:
    """Scores as the file has it, from its start to its end."""

    def __init__(self, *, judged: bool) -> None:
        self.info = replace(INFO, judged=judged)
        self.calls: list[str] = []

    def load(self, split: str, limit: int | None) -> list[Task]:
        raise AssertionError("a replay needs no tasks")

    async def start(self, services: Services) -> None:
        self.calls.append(f"start {services.seed} {services.folder.is_dir()}")

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        if len(self.calls) != 1:
            raise OSError("not open")
        return score(1.0 if rollout.id == "0" else 0.0)

    async def aclose(self) -> None:
        self.calls.append("aclose")


@pytest.fixture(params=[False, True], ids=["rules", "judged"])
def benchmark(request: pytest.FixtureRequest, register: Callable[..., None]) -> Opened:
    made = Opened(judged=request.param)
    register("benchmarks", "opened", lambda: made)
    return made


def test_a_benchmark_is_open_while_it_scores_and_a_judge_is_not_asked(tmp_path: Path, benchmark: Opened) -> None:
    config = json.dumps({"run": {"seed": 7}, "benchmarks": {"arithmetic": {"use": "opened"}}})
    header = replace(HEADER, settings={"config": config}, benchmarks={"arithmetic": benchmark.info})
    partial = PartialResults(tmp_path / "results.json", header)
    for name in "ab":
        partial.add(*played(name, [0, 1], [score(1.0), score(0.0)]))
    partial.finish()
    body = json.loads((tmp_path / "results.json").read_text())
    del body["results"][0]["ends"], body["results"][0]["metrics"][0]["bounds"]  # as earlier versions wrote it
    (tmp_path / "results.json").write_text(json.dumps(body))
    found = replay(tmp_path / "results.json")
    assert (found.differences, found.n_rollouts) == ((), 4)
    judged = benchmark.info.judged
    assert found.from_file == (("arithmetic",) if judged else ())
    assert benchmark.calls == ([] if judged else ["start 7 True", "aclose"])


def test_results_of_an_earlier_version_are_scored_again(tmp_path: Path, benchmark: Opened) -> None:
    found = replay(earlier(tmp_path) / "results.json")
    assert found.n_rollouts == 4
    if not benchmark.info.judged:
        assert found.differences == ("benchmark arithmetic: accuracy is 0.5, was 0.75, other scores of b/1",)


def test_a_plugin_that_is_gone_is_named_with_the_way_to_have_it_again(tmp_path: Path) -> None:
    config = json.dumps({"run": {"seed": 7}, "benchmarks": {"arithmetic": {"use": "own_sums"}}})
    gone = {"name": "own_reward", "distribution": "module own_reward", "version": ""}
    other = {"name": "theirs", "distribution": "ramet-theirs", "version": "0.2.0"}
    plugins = [*HEADER.plugins, gone, other]
    header = replace(HEADER, settings={"config": config}, benchmarks={"arithmetic": INFO}, plugins=plugins)
    partial = PartialResults(tmp_path / "results.json", header)
    partial.add(*played("a", [0, 1], [score(1.0), score(0.0)]))
    partial.finish()
    with pytest.raises(ConfigErrors) as caught:
        replay(tmp_path / "results.json")
    first, second = caught.value.problems
    assert first.startswith("benchmarks: no benchmark named 'own_sums'")
    assert second == (
        f"{tmp_path}/results.json: made with the module own_reward, which is not here: set RAMET_PLUGINS=own_reward, "
        "and with ramet-theirs, which is not here: install it again"
    )


def test_what_is_blocked_or_broken_is_not_told_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    info = PluginInfo(name="broken", module="m", distribution="ramet-broken", version="", broken="ImportError: no")
    monkeypatch.setattr("ramet.evaluate.replay.load_plugins", lambda: Plugins(registries=Registries(), infos=[info]))
    monkeypatch.setenv("RAMET_BLOCK_PLUGINS", "blocked")
    names = ["broken", "blocked", "gone"]
    [gone] = _gone({"plugins": [{"name": name, "distribution": f"ramet-{name}"} for name in names]})
    assert gone.startswith("ramet-gone, ")


class Asking:
    """Asks a model about every rollout but the first, by benchmark or as a reward."""

    per_rollout = True

    def __init__(self, url: str) -> None:
        self.info = replace(INFO, judged=True)
        self.client = OpenAIClient(OpenAIOptions(urls=[url], model="tiny", retries=0), "judge.server")

    def load(self, split: str, limit: int | None) -> list[Task]:
        raise AssertionError("a replay needs no tasks")

    async def start(self, services: Services) -> None:
        await self.client.start(services)
        await self.client.check()

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        try:
            reply = await self.client.chat(user_prompt(f"{rollout.task.id}/{rollout.id}?"), prompt="v1", temperature=0)
        except InfraError:
            return score(None)
        return score(float(reply.text == "right"))

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | None]:
        return [(await self.score(rollout))["accuracy"] for rollout in group]

    async def aclose(self) -> None:
        await self.client.aclose()


def says(body: dict[str, Any]) -> Any:
    """Fails on a/1, and finds all others right that end in 0."""
    (asked,) = body["messages"]
    return RawReply(status=500) if asked["content"] == "a/1?" else "right" if asked["content"][2] == "0" else "wrong"


@pytest.fixture
def judged(tmp_path: Path, register: Callable[..., None]) -> Path:
    """Results of a benchmark that asked a judge, and those of a pass of that judge; its server is gone."""
    with OpenAIServer(says) as server:
        made = Asking(server.url)
        for kind in ("benchmarks", "rewards"):
            register(kind, "asking", lambda: made)
        config = json.dumps({"run": {"seed": 7}, "benchmarks": {"arithmetic": {"use": "asking"}}})
        header = replace(HEADER, settings={"config": config}, benchmarks={"arithmetic": made.info})
        partial = PartialResults(tmp_path / "results.json", header)

        async def measure() -> None:
            for name in "ab":
                group = Group(task=(one := task(name)), rollouts=(rollout(one, "0"), rollout(one, "1")))
                measured = await score_group("arithmetic", made, group)
                partial.add(measured.result, measured.record)
            await made.aclose()

        asyncio.run(measure())
        partial.finish()
        judge(tmp_path / "results.json", compose(["model.path=''", "rewards=[asking]"], job="judge"))
    return tmp_path / "results.json"


def task(name: str) -> Task:
    return Task(id=name, prompt=user_prompt("17 * 23?"), answer=("391",), data_source="sums")


def test_judges_are_answered_from_the_results_and_asked_nothing(judged: Path) -> None:
    """The raw answers are read again, and what failed fails again."""
    first = read_results(judged)["results"][0]["tasks"][0]["rollouts"]
    assert first[0]["asked"][0]["reply"] == "right" and first[0]["asked"][0]["prompt"] == "v1"
    assert first[0]["asked"][0]["messages"] == [{"role": "user", "content": "a/0?"}]
    assert first[1]["asked"][0]["reply"] is None and "500" in first[1]["asked"][0]["error"]
    found = replay(judged)
    assert (found.differences, found.from_file, found.n_rollouts) == ((), (), 4)
    assert found.verdicts == {judged.with_name("results.judge-asking.json"): 3}


def test_an_answer_that_is_read_otherwise_is_told(judged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def strict(self: Asking, rollout: Rollout) -> Mapping[str, float | None]:
        await self.client.chat(user_prompt(f"{rollout.task.id}/{rollout.id}?"), temperature=0)
        return score(0.0)

    monkeypatch.setattr(Asking, "score", strict)
    benchmark, verdicts = replay(judged).differences
    assert benchmark.startswith("benchmark arithmetic: accuracy is 0.0, ") and benchmark.endswith(" a/0, a/1, b/0")
    assert verdicts == "judge asking: other verdicts of a/0, b/0"


@dataclass(kw_only=True, slots=True)
class CodeOptions:
    path: str = ""
    title: str = ""

    def runs_code(self) -> dict[str, str]:
        return {"path": self.path} if self.path else {}


def test_code_that_a_result_names_runs_only_if_the_command_line_names_it(
    judged: Path, monkeypatch: pytest.MonkeyPatch, register: Callable[..., None]
) -> None:
    """A result is passed on: neither its file of code nor a variable of the environment is for it to choose."""
    made = load_plugins().get("rewards", "asking").build()
    built: list[CodeOptions] = []
    register("rewards", "asking", lambda options: built.append(options) or made, config=CodeOptions)
    monkeypatch.setenv("SECRET", "s3cret")
    file = judged.with_name("results.judge-asking.json")
    body = json.loads(file.read_text())
    body["options"]["params"] = {"path": "given/evil.py", "title": "${oc.env:SECRET}"}
    file.write_text(json.dumps(body))
    key = "rewards.asking.params.path"
    with pytest.raises(ConfigErrors) as caught:
        replay(judged)
    assert caught.value.problems == [
        f"{judged}: {key} names 'given/evil.py', whose code would run; results are passed on, so read it, and name it "
        f"yourself: ramet eval --replay {judged} {key}=given/evil.py"
    ]
    assert built == []
    assert replay(judged, [f"{key}=mine.py"]).differences == ()
    assert built == [CodeOptions(path="mine.py", title="${oc.env:SECRET}")]
    for wrong in (
        "rewards.asking.params.title=x",
        "rewards.other.params.path=x",
        "tools=[python]",
        "rewards.asking.params.path",
    ):
        with pytest.raises(ConfigErrors):
            replay(judged, [f"{key}=mine.py", wrong])
