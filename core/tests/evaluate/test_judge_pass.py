"""`ramet judge`: rewards over stored rollouts, resumed, re-run and compared."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from core.tests.evaluate.test_results import HEADER, earlier, played, score

from ramet.cli.app import main
from ramet.config.compose import compose
from ramet.errors import ConfigError, ConfigErrors
from ramet.evaluate import judge_pass
from ramet.evaluate.agreement import Verdicts, agreement, with_verdicts
from ramet.evaluate.files import load_results
from ramet.evaluate.judge_pass import run
from ramet.evaluate.partial import PartialResults
from ramet.plugins import load_plugins
from ramet.testing import OpenAIServer
from ramet.types import Rollout

needs_judge = pytest.mark.skipif(
    "llm_judge" not in load_plugins().registries.rewards or find_spec("aiohttp") is None,
    reason="ramet-rewards[judge] is not installed",
)


class Judge:
    """Says the same of every rollout, and nothing of those in `silent`."""

    per_rollout = True

    def __init__(self, verdict: float) -> None:
        self.verdict = verdict
        self.asked: list[str] = []
        self.silent: set[str] = set()

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | None]:
        names = [f"{one.task.id}/{one.id}" for one in group]
        self.asked += names
        return [None if name in self.silent else self.verdict for name in names]


@pytest.fixture
def judges(register: Callable[..., None]) -> dict[str, Judge]:
    found = {"kind": Judge(1.0), "strict": Judge(0.0)}
    for name, judge in found.items():
        register("rewards", name, lambda j=judge: j)
    return found


@pytest.fixture
def result(tmp_path: Path) -> Path:
    partial = PartialResults(tmp_path / "results.json", HEADER)
    for name in "abc":
        partial.add(*played(name, [0, 1], [score(1.0), score(0.0)]))
    partial.finish()
    return tmp_path / "results.json"


def keys(*names: str) -> list[str]:
    return ["model.path=''", f"rewards=[{','.join(names)}]"]


def test_what_is_missing_alone_is_judged_again(result: Path, judges: dict[str, Judge]) -> None:
    judge = judges["kind"]
    judge.silent = {"a/1", "c/0"}
    (first,) = run(result, compose(keys("kind"), job="judge"))
    assert (first.n_judged, first.n_rollouts) == (4, 6)
    assert first.results[0].judged == "4 of 6 judged"
    assert first.results[0].metrics[0].avg.mean == 1.0
    assert len(judge.asked) == 6
    judge.silent, judge.asked = set(), []
    (second,) = run(result, compose(keys("kind"), job="judge"))
    assert sorted(judge.asked) == ["a/1", "c/0"]
    assert second.n_judged == 6
    judge.asked = []
    run(result, compose(keys("kind"), job="judge"))
    assert judge.asked == []
    assert not list(result.parent.glob("*.partial.jsonl"))


def test_a_killed_pass_goes_on(result: Path, judges: dict[str, Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    judge, kept = judges["kind"], []
    partial = result.with_name("results.judge-kind.json.partial.jsonl")

    async def dying(self: Judge, group: Sequence[Rollout]) -> Sequence[float | None]:
        while len(kept) == 2:
            if len(partial.read_bytes().splitlines()) == 3:  # both are on disk, after the header
                raise KeyboardInterrupt
            await asyncio.sleep(0.01)
        kept.append(group[0].task.id)
        return [1.0] * len(group)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "__call__", dying)
        with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)):
            run(result, compose(keys("kind"), job="judge"))
    partial.write_bytes(partial.read_bytes() + b'{"benchmark": "ari')  # torn
    run(result, compose(keys("kind"), job="judge"))
    assert {name[0] for name in judge.asked} == set("abc") - set(kept)


def test_passes_of_an_earlier_version_continue(
    judges: dict[str, Judge], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was killed after task b, and one that is finished."""
    result = earlier(tmp_path) / "results.json"
    first, second = run(result, compose(keys("kind", "strict"), job="judge"))
    assert sorted(judges["kind"].asked) == ["a/0", "a/1"] and judges["strict"].asked == []
    assert (first.n_judged, second.n_judged) == (4, 4)
    assert main(["compare", str(result), str(result.parent), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {one["metric"]: one["before"] for one in found["metrics"]} == {
        "accuracy": 0.75, "f1": 0.5, "judge-kind": 1.0, "judge-strict": 0.0,
    }  # fmt: skip


def test_what_stops_a_pass_is_one_message(
    result: Path, judges: dict[str, Judge], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refusing(self: Judge, group: Sequence[Rollout]) -> Sequence[float | None]:
        raise ConfigError("the gold answer 'Rome' is no number")

    monkeypatch.setattr(Judge, "__call__", refusing)
    assert main(["judge", str(result), "rewards=[kind]"]) == 1
    said = "error: reward 'kind' of plugin 'test': the gold answer 'Rome' is no number (core/tests/evaluate/"
    assert capsys.readouterr().err.startswith(said)


def test_options_that_make_one_reward_of_several_are_refused(
    result: Path, judges: dict[str, Judge], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", str(result), "rewards=[kind]", "rewards.kind.weight=2", "rewards.kind.clip=[0,1]"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: rewards.kind.{key}: has no effect on a judge, whose scores are kept as they are; remove it"
        for key in ("weight", "clip")
    ]


def test_another_judge_needs_another_name(result: Path, judges: dict[str, Judge]) -> None:
    run(result, compose(keys("kind"), job="judge"))
    with pytest.raises(ConfigError) as caught:
        run(result, compose([*keys("kind"), "rewards.kind.use=strict"], job="judge"))
    assert str(caught.value) == (
        f"{result.with_name('results.judge-kind.json')}: contains verdicts of another judge or other rollouts (it "
        "differs in: rewards.kind.use); give this judge a name of its own, as in rewards.kind_2.use=kind, or remove "
        "the file"
    )


def test_where_a_named_model_is_asked_and_how_patiently_is_no_other_judge(
    result: Path, judges: dict[str, Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(**server: object) -> None:
        params = {"prompt": "p", "deadline_s": server["timeout_s"], "server": server}
        monkeypatch.setattr(judge_pass, "stored_entry", lambda *_: {"params": params})

    choose(urls=["http://a/v1"], model="large", timeout_s=1.0)
    run(result, compose(keys("kind"), job="judge"))
    choose(urls=["http://b/v1"], model="large", timeout_s=2.0)
    run(result, compose(keys("kind"), job="judge"))
    for other in ({"urls": ["http://b/v1"], "model": "small"}, {"urls": ["http://b/v1"], "model": None}):
        choose(**other, timeout_s=2.0)
        with pytest.raises(ConfigError) as caught:
            run(result, compose(keys("kind"), job="judge"))
        more = ", rewards.kind.params.server.urls" if other["model"] is None else ""
        assert str(caught.value).startswith(f"{result.with_name('results.judge-kind.json')}: ")
        assert f": rewards.kind.params.server.model{more});" in str(caught.value)


def test_tasks_that_a_judge_can_never_judge_are_told_together_before_the_first_is_judged(
    result: Path, judges: dict[str, Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "check_task", lambda _, task: "no gold" if task.id in "ac" else None, raising=False)
    with pytest.raises(ConfigErrors) as caught:
        run(result, compose(keys("kind"), job="judge"))
    assert caught.value.problems == [f"{result}, task {name}: rewards.kind: no gold" for name in "ac"]
    assert judges["kind"].asked == []


@needs_judge
def test_a_pass_goes_on_with_other_limits_of_its_server_and_not_with_another_prompt(
    result: Path, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Q {question} G {gold} A {answer}")
    with OpenAIServer(lambda body: "VERDICT: correct") as server:

        def judge(*more: str) -> int:
            options = [f"server.urls=[{server.url}]", "server.model=tiny", f"prompt={prompt}", *more]
            run(
                result,
                compose([*keys("llm_judge"), *(f"rewards.llm_judge.params.{one}" for one in options)], job="judge"),
            )
            return len(server.requests)

        before = judge()
        assert judge("server.timeout_s=500", "server.retries=9", f"server.urls=[{server.url}/]") == before
        with pytest.raises(ConfigError, match=r": rewards\.llm_judge\.params\.max_tokens\);"):
            judge("max_tokens=9")
        prompt.write_text("Question {question} G {gold} A {answer}")
        with pytest.raises(ConfigError, match=r": the file of rewards\.llm_judge\.params\.prompt\);"):
            judge()


def test_the_command_says_how_many_were_judged_and_how_judges_agree(
    result: Path, judges: dict[str, Judge], capsys: pytest.CaptureFixture[str]
) -> None:
    judges["strict"].silent = {"a/0"}
    command = ["judge", str(result), "rewards=[kind,strict]", "--format", "markdown"]
    assert main(command) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == (
        "error: rewards.strict: 1 verdicts failed. The scores are of the rest, which may be a biased subset. "
        "What is judged is kept: remove the cause and start the same command again, which asks only for what is "
        "missing"
    )
    lines = said.out.splitlines()
    assert "| rules | kind | 6 | 0.500 | 0.000 | 0 | 3 |" in lines
    assert "| kind | strict | 5 | 0.000 | 0.000 | 5 | 0 |" in lines
    assert lines[-1] == f"strict: 5 of 6 judged, in {result.with_name('results.judge-strict.json')}"
    judges["strict"].silent, judges["strict"].asked = set(), []
    assert main(command) == 0
    assert judges["strict"].asked == ["a/0"]
    capsys.readouterr()
    assert main(["judge", "rewards=[kind]"]) == 1
    assert main(["judge", str(result)]) == 1
    told = capsys.readouterr().err
    assert "judge: give a result first, as in `ramet judge runs/measured rewards=[llm_judge]`" in told
    assert "rewards: none chosen; name a judge, as in rewards=[llm_judge]" in told


def test_what_judges_said_is_compared_as_a_metric(
    result: Path, judges: dict[str, Judge], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judges["kind"].silent = {"a/1"}
    run(result, compose(keys("kind"), job="judge"))
    other = tmp_path / "other"
    shutil.copytree(tmp_path, other, ignore=shutil.ignore_patterns("other"))
    capsys.readouterr()
    assert main(["compare", str(result), "--format", "markdown"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "judge-kind" in line]
    assert rows == [
        "| arithmetic | judge-kind | 1.000 ± 0.000 [0.833, 1.000] | @1 1.000  @2 1.000 | 1.000 | 0% | 100% | 0% "
        "| 5 of 6 judged |"
    ]
    assert main(["compare", str(result), str(other), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [(one["metric"], one["difference"]) for one in found["metrics"]] == [
        ("accuracy", 0.0), ("f1", 0.0), ("judge-kind", 0.0),
    ]  # fmt: skip


def test_a_judge_of_other_rollouts_is_left_out_and_told_and_no_result_itself(
    result: Path, judges: dict[str, Judge], caplog: pytest.LogCaptureFixture
) -> None:
    run(result, compose(keys("kind"), job="judge"))
    file = result.with_name("results.judge-kind.json")
    with pytest.raises(ConfigError) as caught:
        load_results(file)
    assert str(caught.value) == f"{file}: is what the judge kind said; name the results that it judged instead"
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "rollouts": "0" * 64}))
    body = load_results(result)[1]
    assert with_verdicts(result, body) == body
    assert caplog.messages[-1] == f"{file}: is of other rollouts than results.json, and left out; judge again"


def test_agreement_beyond_chance_by_hand() -> None:
    first, second = Verdicts(), Verdicts()
    first.add("b", "t", {str(i): float(i < 6) for i in range(10)})  # 6 right
    second.add("b", "t", {str(i): float(i < 4 or i == 9) for i in range(10)})  # 4 of them, and one more
    found = agreement(first, second)
    assert (found.both_right, found.first_alone, found.second_alone, found.both_wrong) == (4, 2, 1, 3)
    assert found.share == pytest.approx(0.7)
    assert found.kappa == pytest.approx((0.7 - 0.5) / 0.5)  # chance: 0.6 x 0.5 + 0.4 x 0.5
    assert agreement(first, Verdicts()).share is None


def test_results_without_rollouts_cannot_be_judged(tmp_path: Path, judges: dict[str, Judge]) -> None:
    partial = PartialResults(tmp_path / "results.json", replace(HEADER, k=1))
    partial.add(played("a", [0], [score(1.0)])[0])
    partial.finish()
    with pytest.raises(ConfigError, match=r"results\.json: not all of its rollouts were "):
        run(tmp_path / "results.json", compose(keys("kind"), job="judge"))
    assert json.loads((tmp_path / "results.json").read_text())["rollouts"]["groups"] == 0
