from __future__ import annotations

import json
import shutil
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import ConfigError
from ramet.evaluate.files import read_results, read_rollouts, rollouts_path
from ramet.evaluate.header import Header, plain
from ramet.evaluate.partial import PartialResults, is_finished
from ramet.evaluate.stored import stored_evaluation
from ramet.evaluate.tasks import Judgement, TaskResult, group_record, task_result, tool_statistics
from ramet.rollout.record import GroupRecord
from ramet.types import (
    BenchmarkInfo,
    CallStatus,
    Fault,
    Group,
    Origin,
    Rollout,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ToolRecord,
    user_prompt,
)

INFO = BenchmarkInfo(
    description="sums", splits=("test",), metrics=("accuracy", "f1"), source="generated", licence="MIT"
)
EARLIER_CONFIG = "run:\n  seed: 7\nbenchmarks:\n  arithmetic:\n    use: opened\n"
HEADER = Header(
    model="models/tiny",
    k=2,
    rules={},
    settings={"temperature": 0.6, "tools": ["python"]},
    benchmarks={"arithmetic": INFO},
    versions={"ramet": "0.1.0"},
    plugins=[{"name": "core", "version": "0.1.0"}],
)


def earlier(folder: Path) -> Path:
    """A copy of what version 0.1.0 wrote: results of schema 1, in which b/1 was not judged, what two judges said of
    them (one was killed), and an evaluation that was killed.
    """
    return Path(shutil.copytree(Path(__file__).with_name("earlier"), folder / "earlier"))


def rollout(task: Task, id: str, *, calls: tuple[ToolRecord, ...] = (), fault: Fault | None = None) -> Rollout:
    prompt = Segment(origin=Origin.INSERTED, kind=SegmentKind.PROMPT, turn=0, text="p", token_ids=array("i", [1]))
    turn = Segment(origin=Origin.SAMPLED, kind=SegmentKind.TURN, turn=0, text="391\ud800", token_ids=array("i", [2, 3]))
    return Rollout(
        id=id, task=task, segments=(prompt, turn), stop=StopReason.ANSWER, answer="391", tool_calls=calls, fault=fault
    )


def call(status: CallStatus, arguments: object = 1.0) -> ToolRecord:
    return ToolRecord(
        turn=0, name="python", arguments={"x": arguments}, status=status, text="", wait_s=0.0, run_s=0.5, attempts=1
    )


def result(task_id: str, scores: list[dict[str, float | None]], *, masked: tuple[int, ...] = ()) -> TaskResult:
    task = Task(id=task_id, prompt=user_prompt("17 * 23?"), answer=("391",), data_source="sums")
    fault = Fault(where="tool:python", message="down, sk-0123456789abcdefghijkl was refused")
    group = Group(
        task=task,
        rollouts=tuple(rollout(task, str(i), fault=fault if i in masked else None) for i in range(len(scores))),
    )
    return task_result("arithmetic", group, judged(scores))


def judged(scores: list[dict[str, float | None]]) -> list[Judgement]:
    return [Judgement(scores=one) for one in scores]


def score(accuracy: float | None, f1: float | None = 0.5) -> dict[str, float | None]:
    return {"accuracy": accuracy, "f1": f1}


def test_the_file_holds_prompts_rollouts_versions_plugins_and_the_summary(tmp_path: Path) -> None:
    partial = PartialResults(tmp_path / "results.json", HEADER)
    partial.add(result("a", [score(1.0), score(0.0)]))
    partial.add(result("b", [score(1.0), score(None)]))
    partial.finish()
    body = read_results(tmp_path / "results.json")
    summary = {**body, "results": [{k: v for k, v in one.items() if k != "tasks"} for one in body["results"]]}
    assert (tmp_path / "results.json").read_text() == json.dumps(summary, indent=1) + "\n"
    assert (body["model"], body["k"], body["plugins"][0]["name"]) == ("models/tiny", 2, "core")
    assert body["benchmarks"]["arithmetic"]["licence"] == "MIT"
    (found,) = body["results"]
    assert found["judged"] == "3 of 4 judged"
    assert found["metrics"][0]["avg"]["mean"] == 0.75
    first = found["tasks"][0]
    assert (first["prompt"], first["gold"]) == ("p", ["391"])
    kept = first["rollouts"][0]
    assert (kept["answer"], kept["stop"], kept["sampled_tokens"], kept["response"]) == ("391", "answer", 2, "391\ud800")
    assert [task["task"] for task in found["tasks"]] == ["a", "b"]
    assert found["tasks"][0] == plain(result("a", [score(1.0), score(0.0)]))
    names = ["results.json", "results.rollouts.jsonl.gz", "results.tasks.jsonl"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names


@pytest.mark.parametrize("text", ['{"question": "a"}\n{"question": "b"}\n', "no json", "ä"])
def test_a_file_of_something_else_is_named_without_the_words_of_a_parser(tmp_path: Path, text: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_results(file)
    assert str(caught.value) == (
        f"{file}: not a results file: it is not one JSON object; `ramet eval` writes results.json into its run's "
        "directory"
    )


def test_a_masked_rollout_says_why_and_has_no_score(tmp_path: Path) -> None:
    partial = PartialResults(tmp_path / "results.json", HEADER)
    partial.add(result("a", [score(0.0), score(1.0)], masked=(0,)))
    (benchmark,) = partial.finish().benchmarks
    assert benchmark.judged == "1 of 2 judged"
    assert benchmark.metrics[0].avg.mean == 1.0
    assert benchmark.metrics[0].passes[-1].short_tasks == ("a",)
    assert benchmark.tasks[0].rollouts[0].masked == "tool:python: down, *** was refused"
    assert benchmark.tasks[0].rollouts[0].scores == {}


def test_a_killed_evaluation_goes_on_behind_the_last_whole_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "results.json"
    first = PartialResults(out, HEADER)
    for name in ("a", "b"):
        first.add(result(name, [score(1.0), score(1.0)]))
    torn = first.path.read_bytes()[:-20]
    first.path.write_bytes(torn)
    second = PartialResults(out, HEADER)
    assert "torn" in caplog.text
    assert [len(second.missing("arithmetic", task)) for task in "ab"] == [0, HEADER.k]
    second.add(result("b", [score(0.0), score(0.0)]))
    (benchmark,) = second.finish().benchmarks
    assert [task.task for task in benchmark.tasks] == ["a", "b"]
    assert benchmark.metrics[0].avg.mean == 0.5


def test_the_file_depends_neither_on_a_resume_nor_on_the_order_in_which_tasks_finish(tmp_path: Path) -> None:
    whole = PartialResults(tmp_path / "whole.json", HEADER)
    cut = PartialResults(tmp_path / "cut.json", HEADER)
    for name in ("a", "b", "c"):
        cut = PartialResults(tmp_path / "cut.json", HEADER)
        for partial in (whole, cut):
            partial.add(result(name, [score(1.0), score(None)]))
    whole.finish()
    cut.finish()
    other = PartialResults(tmp_path / "other.json", HEADER)
    for name in ("c", "a", "b"):
        other.add(result(name, [score(1.0), score(None)]))
    other.finish()
    files = [(tmp_path / name).read_bytes() for name in ("whole.json", "cut.json", "other.json")]
    assert files[0] == files[1] == files[2]


def test_an_unfinished_evaluation_of_another_model_is_refused(tmp_path: Path) -> None:
    PartialResults(tmp_path / "results.json", HEADER).add(result("a", [score(1.0), score(1.0)]))
    with pytest.raises(ConfigError, match=r"results.json.partial.jsonl .* differs in: model, settings"):
        PartialResults(tmp_path / "results.json", replace(HEADER, model="other", settings={}))


def test_results_are_written_through_no_link(tmp_path: Path) -> None:
    precious, out = tmp_path / "precious", tmp_path / "results.json"
    precious.write_text("notes")
    for name in (".results.json.tmp", "results.json"):
        (tmp_path / name).symlink_to(precious if name.startswith(".") else tmp_path / "nothing")
    partial = PartialResults(out, HEADER)
    partial.add(result("a", [score(1.0), score(0.0)]))
    partial.finish()
    assert precious.read_text() == "notes" and not (tmp_path / "nothing").exists()
    assert not out.is_symlink() and read_results(out)["k"] == 2
    partial.path.symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError) as caught:
        PartialResults(out, HEADER)
    assert str(caught.value) == f"{partial.path} is a link or not such a file; move it, or choose another name"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("text", ["my notes\nwithout an end", "{}\n", "[1, 2"])
def test_a_file_of_the_partial_name_that_is_no_evaluation_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json.partial.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^{path} is a link or "):
        PartialResults(tmp_path / "results.json", HEADER)
    assert path.read_text() == text


def test_tool_statistics_by_hand() -> None:
    task = Task(id="a", prompt=user_prompt("q"))
    used = rollout(task, "0", calls=(call(CallStatus.OK), call(CallStatus.ERROR)))
    unused = rollout(task, "1")
    failed = rollout(task, "2", calls=(call(CallStatus.INFRA),), fault=Fault(where="tool:python", message="time-out"))
    group = Group(task=task, rollouts=(used, unused, failed))
    found = tool_statistics([task_result("b", group, judged([score(1.0), score(0.0), {}]))], "accuracy")
    assert (found.share_using, found.calls_per_rollout) == (0.5, 1.0)
    assert (found.calls, found.errors, found.infra) == ({"python": 3}, {"python": 1}, {"python": 1})
    assert (found.calls_if_right, found.calls_if_wrong) == (2.0, 0.0)
    assert (found.success, found.mean_s) == ({"python": pytest.approx(1 / 3)}, {"python": 0.5})
    assert (found.sampled_tokens, found.inserted_tokens) == (2.0, 0.0)


def test_arguments_that_json_lacks_survive_as_text(tmp_path: Path) -> None:
    task = Task(id="a", prompt=user_prompt("q"))
    group = Group(task=task, rollouts=(rollout(task, "0", calls=(call(CallStatus.OK, float("nan")),)),))
    kept = task_result("arithmetic", group, judged([score(1.0)]))
    partial = PartialResults(tmp_path / "results.json", HEADER)
    partial.add(kept)
    partial.finish()
    body = read_results(tmp_path / "results.json")
    assert TaskResult.from_body(body["results"][0]["tasks"][0]) == kept
    assert body["results"][0]["tasks"][0]["rollouts"][0]["tool_calls"][0]["arguments"] == '{"x": NaN}'
    assert body["results"][0]["tools"]["calls"] == {"python": 1}


def test_a_broken_results_file_is_the_users_problem(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for text in ("{", "[]", json.dumps({"schema": 99})):
        path.write_text(text)
        with pytest.raises(ConfigError, match="results file"):
            read_results(path)
    with pytest.raises(ConfigError, match="results file"):
        read_results(tmp_path / "missing.json")


@pytest.mark.parametrize("broken", [{"unknown": 1}, {"rollouts": None}, {"rollouts": [{"id": "0"}]}])
def test_a_task_that_this_version_cannot_read_is_the_users_problem(tmp_path: Path, broken: dict[str, Any]) -> None:
    from ramet.evaluate.replay import replay  # needs torch, which nothing else here does

    path = tmp_path / "results.json"
    partial = PartialResults(path, HEADER)
    partial.add(*played("a", [0, 1], [score(1.0), score(0.0)]))
    partial.finish()
    body = read_results(path)
    body["results"][0]["tasks"][0] |= broken
    path.write_text(json.dumps({**body, "schema": 1}))  # with the tasks in it
    for use in (stored_evaluation, replay):
        with pytest.raises(ConfigError, match=r"results\.json: not results that this version of Ramet can read"):
            use(path)


def test_a_finished_evaluation_is_topped_up_to_a_larger_k(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    one = replace(HEADER, k=1)
    first = PartialResults(out, one)
    first.add(*played("a", [0], [score(1.0)]))
    first.finish()
    assert is_finished(out, one)
    assert not is_finished(out, replace(HEADER, k=3))
    more = PartialResults(out, replace(HEADER, k=3))
    assert more.missing("arithmetic", "a") == (1, 2)
    more.add(*played("a", [1, 2], [score(0.0), score(0.0)]))
    (benchmark,) = more.finish().benchmarks
    assert [r.id for r in benchmark.tasks[0].rollouts] == ["0", "1", "2"]
    assert benchmark.metrics[0].avg.mean == pytest.approx(1 / 3)
    [(name, record)] = read_rollouts(out, read_results(out))
    assert (name, [scored.reward for scored in record.group.rollouts]) == ("arithmetic", [1.0, 0.0, 0.0])
    assert is_finished(out, replace(HEADER, k=3))
    with pytest.raises(ConfigError, match="differs in: k"):
        is_finished(out, one)


def test_earlier_results_continue_where_rollouts_have_no_score(tmp_path: Path) -> None:
    header, out = replace(HEADER, settings={"config": EARLIER_CONFIG}), earlier(tmp_path) / "results.json"
    assert not is_finished(out, header)
    partial = PartialResults(out, header)
    assert [partial.missing("arithmetic", name) for name in "ab"] == [(), (1,)]
    partial.add(*played("b", [1], [score(0.0)]))
    partial.finish()
    assert is_finished(out, header) and read_results(out)["schema"] == 2
    assert [len(one.group.rollouts) for _, one in read_rollouts(out, read_results(out))] == [2, 2]


def test_an_earlier_unfinished_evaluation_is_shown_and_continues(tmp_path: Path) -> None:
    """A second line of task a has another verdict on one of its rollouts."""
    header, out = replace(HEADER, settings={"config": EARLIER_CONFIG}), earlier(tmp_path) / "unfinished.json"
    stored = stored_evaluation(out)
    assert stored is not None and not stored.is_finished
    assert [len(one.group.rollouts) for _, one in stored.records()] == [2, 1]
    partial = PartialResults(out, header)
    assert [partial.missing("arithmetic", name) for name in "ab"] == [(), (1,)]
    partial.add(*played("b", [1], [score(1.0)]))
    (found,) = partial.finish().benchmarks
    assert found.metrics[0].avg.mean == 0.75 and found.judged == "4 of 4 judged"
    rewards = [[one.reward for one in record.group.rollouts] for _, record in read_rollouts(out, read_results(out))]
    assert rewards == [[1.0, 0.0], [1.0, 1.0]]


def test_tasks_that_are_not_those_of_the_results_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    partial = PartialResults(out, HEADER)
    partial.add(*played("a", [0, 1], [score(1.0), score(0.0)]))
    partial.finish()
    (tmp_path / "results.tasks.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"results\.tasks\.jsonl: is missing, and results\.json "):
        read_results(out)
    assert is_finished(out, HEADER)


def test_trackers_are_told_the_largest_k(tmp_path: Path) -> None:
    partial = PartialResults(tmp_path / "results.json", replace(HEADER, k=3))
    partial.add(*played("a", [0, 1, 2], [score(1.0), score(0.0), score(0.0)]))
    told = partial.results().metrics()
    assert told["eval/arithmetic/accuracy/pass@3"] == 1.0
    assert "eval/arithmetic/accuracy/pass@2" not in told


def test_rollouts_that_are_not_those_of_the_results_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    partial = PartialResults(out, HEADER)
    partial.add(*played("a", [0, 1], [score(1.0), score(0.0)]))
    partial.finish()
    file, body = rollouts_path(out), read_results(out)
    sha = body["rollouts"]["sha256"][:12]
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(ConfigError) as caught:
        list(read_rollouts(out, body))
    assert str(caught.value) == (
        f"{file}: is not the file, and results.json names it with sha256 {sha}; the two belong together"
    )
    file.unlink()
    with pytest.raises(ConfigError, match=rf"{file.name}: is missing, .* {sha}; "):
        list(read_rollouts(out, body))
    with pytest.raises(ConfigError) as caught:
        list(read_rollouts(out, {**body, "rollouts": None}))
    assert str(caught.value) == f"{out}: not all of its rollouts were recorded, so it cannot be scored again"


def played(task_id: str, numbers: list[int], scores: list[dict[str, float | None]]) -> tuple[TaskResult, GroupRecord]:
    task = Task(id=task_id, prompt=user_prompt("17 * 23?"), answer=("391",), data_source="sums")
    group = Group(task=task, rollouts=tuple(rollout(task, str(number)) for number in numbers))
    return task_result("arithmetic", group, judged(scores)), group_record(group, scores, "accuracy")
