"""`ramet eval import`: outputs of ARPO's evaluation code as results, scored by the benchmarks' own rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.cli import main
from ramet.evaluate.files import read_results, read_rollouts
from ramet.evaluate.setting_differences import UNKNOWN, setting_differences

THOUGHT = (
    "<think>Compute.</think><python>print(6*7)</python><result>42</result><answer>The answer is \\boxed{42}</answer>"
)
QUESTIONS = {"6 x 7?": "42", "1 + 1?": "2", "9 - 5?": "4"}


def record(question: str, prediction: str, output: str = "<answer>x</answer>") -> dict[str, Any]:
    """One sample as `infer.py` writes it."""
    return {
        "instruction": "You are a helpful assistant.", "input": question, "output": output, "prediction": prediction,
        "answer": QUESTIONS.get(question, ["a", "b"]), "logs": [], "search_query_history": [],
        "timing": {"llm_time": 1.0, "python_time": 0.1, "search_time": 0, "total_time": 1.1},
    }  # fmt: skip


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    turns = [
        [record("6 x 7?", "42", THOUGHT), record("1 + 1?", "3"), record("9 - 5?", "Timeout", "<think>\n[Timeout")],
        [record("6 x 7?", "42"), record("1 + 1?", "2"), record("9 - 5?", "4")],
    ]
    folder = tmp_path / "outputs" / "aime24"
    folder.mkdir(parents=True)
    for turn, records in enumerate(turns, 1):
        (folder / f"aime24_output_{turn}.json").write_text(json.dumps(records, indent=4))
        (folder / f"aime24_output_{turn}_metrics.json").write_text("{}")
    (tmp_path / "outputs" / "2wiki").mkdir()
    questions = [record("Who?", "the b"), record("Where?", "")]
    (tmp_path / "outputs" / "2wiki" / "2wiki_output_1.json").write_text(json.dumps(questions))
    return tmp_path / "outputs"


def test_outputs_become_results(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "import", "outputs", "--out", "old.json", "--model", "theirs"]) == 0
    assert "results in old.json: 5 tasks of 2 benchmarks" in capsys.readouterr().out
    body = read_results(Path("old.json"))
    assert (body["model"], body["k"]) == ("theirs", 2)
    results = {result["name"]: result for result in body["results"]}
    aime = results["aime24"]
    assert aime["metrics"][0]["avg"]["mean"] == pytest.approx((1 + 0.5 + 1) / 3)  # a time-out is not wrong
    assert aime["judged"] == "5 of 6 judged"
    passed = {one["k"]: one for one in aime["metrics"][0]["passes"]}
    assert passed[2]["short_tasks"] == ["aime24/test/2"] and passed[2]["estimate"]["mean"] == 1.0
    assert aime["tools"]["calls"] == {"python": 1}
    assert aime["tasks"][2]["rollouts"][0]["masked"] == "imported: Timeout"
    wiki = results["two_wiki"]
    assert [task["gold"] for task in wiki["tasks"]] == [["a", "b"]] * 2  # each of which is right
    assert wiki["metrics"][0]["avg"]["mean"] == 0.5 and wiki["metrics"][0]["k"] == 1
    assert len(list(read_rollouts(Path("old.json"), body))) == 5


def test_imported_results_are_compared_and_judged(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "import", "outputs/aime24", "--out", "old.json"]) == 0
    file = outputs / "aime24" / "aime24_output_2.json"
    assert main(["eval", "import", str(file), "--out", "new.json"]) == 0
    capsys.readouterr()
    assert main(["compare", "old.json", "new.json", "--format", "json"]) == 0
    [compared] = json.loads(capsys.readouterr().out)
    accuracy = compared["metrics"][0]
    assert (accuracy["benchmark"], accuracy["n_tasks"], accuracy["before"]) == ("aime24", 3, pytest.approx(2.5 / 3))
    assert [pair["task"] for pair in accuracy["won"]] == ["aime24/test/1"] and accuracy["lost"] == []
    assert main(["judge", "old.json", "rewards=[qa_em]"]) == 0
    assert "qa_em: 5 of 6 judged" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["None", "NoneNone", "<search>q</search><result>r</result>None"])
def test_a_sample_that_no_server_answered_is_masked(
    output: str, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = outputs / "aime24" / "aime24_output_1.json"
    answered = record("9 - 5?", "", "<result>r</result>None of these is right.")
    file.write_text(json.dumps([record("6 x 7?", "42"), record("1 + 1?", "", output), answered]))
    assert main(["eval", "import", str(file), "--out", "old.json"]) == 0
    [result] = read_results(Path("old.json"))["results"]
    assert [task["rollouts"][0]["masked"] for task in result["tasks"]] == [None, "imported: no server answered", None]
    assert result["metrics"][0]["avg"]["mean"] == 0.5


def test_settings_that_the_outputs_do_not_hold_are_called_unknown(outputs: Path) -> None:
    assert main(["eval", "import", "outputs/aime24", "--out", "old.json"]) == 0
    theirs = read_results(Path("old.json"))
    config = theirs["settings"]["config"].replace("max_response_tokens: 4096", "max_response_tokens: 48")
    ours = {**theirs, "settings": {"config": config}}
    assert config != theirs["settings"]["config"]
    for before, after in ((theirs, ours), (ours, theirs)):
        [difference] = setting_differences(before, after)
        assert difference.setting == "sampling, tools and limits"
        said = [UNKNOWN if body is theirs else "recorded" for body in (before, after)]
        assert [difference.before, difference.after] == said


def test_with_the_published_tasks_ids_are_theirs(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published = outputs.parent / "eval, k=1" / "aime24"
    published.mkdir(parents=True)
    rows = [{"id": 60 + n, "question": q, "answer": a} for n, (q, a) in enumerate(QUESTIONS.items())]
    (published / "test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["eval", "import", "outputs/aime24", "--out", "old.json", "--data", "eval, k=1"]) == 0
    tasks = read_results(Path("old.json"))["results"][0]["tasks"]
    assert [task["gold"] for task in tasks] == [["42"], ["2"], ["4"]]
    (published / "test.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert main(["eval", "import", "outputs/aime24", "--out", "other.json", "--data", "eval, k=1"]) == 1
    assert "aime24: the benchmark has no question '1 + 1?'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["outputs"], "eval import: name outputs and a file"),
        (["nothing", "--out", "r.json"], "nothing: no outputs there; allowed: NAME_output_TURN.json"),
        (["broken_output_1.json", "--out", "r.json"], "broken_output_1.json: cannot be read: "),
        (["aime24_output_1.json", "--out", "r.json"], "aime24_output_1.json, entry 1: lacks output, prediction"),
        (["gaokao_output_1.json", "--out", "r.json"], "no benchmark gaokao; installed: "),
        (["answers", "--out", "r.json"], "aime25_output_1.json, entry 2: `answer` must be a text, a number, or a list"),
        (["outputs", "two_wiki_output_1.json", "--out", "r.json"], "2wiki_output_1.json is; name one of them"),
        (["outputs", "--out", "there.json"], "there.json: is there already; name another file with --out"),
    ],
)
def test_what_cannot_be_imported_is_refused(
    arguments: list[str], message: str, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken_output_1.json").write_text("[")
    Path("aime24_output_1.json").write_text('[{"input": "1?", "answer": 1}]')
    Path("gaokao_output_1.json").write_text(json.dumps([record("Who?", "b")]))
    Path("two_wiki_output_1.json").write_text(json.dumps([record("Who?", "b")]))
    Path("answers").mkdir()
    answers = [record("Who?", "b"), {**record("Who?", "b"), "answer": []}]
    Path("answers/aime25_output_1.json").write_text(json.dumps(answers))
    Path("there.json").write_text("mine")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(["eval", "import", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_turns_with_other_questions_are_refused(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = outputs / "aime24" / "aime24_output_2.json"
    file.write_text(json.dumps(json.loads(file.read_text())[::-1]))
    assert main(["eval", "import", "outputs", "--out", "r.json"]) == 1
    assert (
        f"{file.relative_to(outputs.parent)}: has other questions, or another order, than " in capsys.readouterr().err
    )
