"""`ramet benchmarks`: lists, validates, finds overlaps, all without a model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.plugins import load_plugins

pytestmark = pytest.mark.skipif(
    not {"gsm8k", "aime24"} <= set(load_plugins().registries.benchmarks.names)
    or "math" not in load_plugins().registries.rewards,
    reason="ramet-benchmarks[scorers] is not installed",
)
DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
GSM8K = [{"question": "How many?", "answer": "#### 18"}, {"question": "How much is it in all?", "answer": "#### 7"}]


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> list[str]:
    """The lines of the command, without the place in the benchmark's code that ends a problem."""
    assert main(["benchmarks", *map(str, arguments)]) == code
    place = re.compile(r" \(ramet_benchmarks/\w+\.py:\d+\)$")
    return [place.sub("", line) for line in capsys.readouterr().out.splitlines()]


def test_everything_installed_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {line.split()[0]: " ".join(line.split()) for line in printed(capsys)}
    assert set(rows) == {"NAME", *load_plugins().registries.benchmarks.names}
    assert rows["gsm8k"].startswith("gsm8k 1,319 train, test, sample accuracy grade-school")
    assert rows["files"] == "files - - - needs options (docs/evaluation.md)"


def test_named_ones_are_described_and_json_has_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "list", "gsm8k")
    assert said[0] == "gsm8k: grade-school mathematics word problems; the answer is one number"
    assert "  licence         MIT" in said and "  limits          python 5, search 10" in said
    body = json.loads("\n".join(printed(capsys, "list", "gsm8k", "aime24", "--json")))
    assert list(body) == ["gsm8k", "aime24"] and body["aime24"]["n_tasks"] == 30


def test_data_in_the_folder_is_validated_and_samples_of_the_rest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written(tmp_path / "gsm8k" / "test.jsonl", GSM8K)
    said = printed(capsys, "validate", "gsm8k", "aime24", "--data", tmp_path)
    assert [" ".join(line.split()) for line in said[1:]] == [
        "gsm8k test 2 (published: 1319) ok",  # sound, and cut short
        "aime24 sample 3 ok",
    ]
    said = printed(capsys, "validate", "gsm8k")
    assert said[1].split() == ["gsm8k", "sample", "3", "ok"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"question": "?"}], "PROBLEM {path}, row 1: no key 'answer' "),
        ([*GSM8K, {"question": "?"}], "PROBLEM cannot load: split 'test': {path}, row 3: no key 'answer' "),
    ],
)
def test_data_that_is_wrong_is_a_problem_and_not_taken_for_absent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: list[dict[str, object]], said: str
) -> None:
    path = written(tmp_path / "gsm8k" / "test.jsonl", rows)
    lines = printed(capsys, "validate", "gsm8k", "aime24", "--data", tmp_path, code=1)
    assert said.format(path=path) in " ".join(lines[1].split())
    assert lines[2].split() == ["aime24", "sample", "3", "ok"]


def test_duplicate_ids_are_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    row = {"id": 1, "question": "?", "answer": 3}
    path = written(tmp_path / "aime24" / "test.jsonl", [row, row])
    lines = printed(capsys, "validate", "aime24", "--data", tmp_path, code=1)
    assert "row 2: the id 'aime24/test/1' " in lines[1] and f" {path}, row 1; " in lines[1]


def test_a_wrong_split_and_a_benchmark_that_needs_options_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "validate", "gsm8k", "benchmarks.gsm8k.split=valid", code=1)
    assert lines[1].endswith("PROBLEM cannot load: split 'valid': benchmarks.gsm8k has no split 'valid'; allowed: "
                             "train, test, sample")  # fmt: skip
    lines = printed(capsys, "validate", "files", code=1)
    said = " ".join(lines[1].split())
    assert said.startswith("files - - PROBLEM benchmarks.files.params.paths is empty")
    assert "; benchmarks.files.params.metrics is empty" in said


def test_an_instance_that_was_chosen_and_cannot_be_checked_is_a_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = ("benchmarks=[]", "benchmarks.mine.use=files", "benchmarks.mine.params.paths=[q.jsonl]")
    said = {}
    for more in ((), ("benchmarks.mine.params.metrics={em: qa_em}",)):
        _, row = printed(capsys, "validate", *mine, *more, code=1)
        said[more] = " ".join(row.split())
    empty, absent = said.values()
    assert empty.startswith("mine - - PROBLEM benchmarks.mine.params.metrics is empty")
    loading = "mine test - PROBLEM cannot load: split 'test': benchmarks.mine.params.paths: "
    assert absent.startswith(loading) and "'q.jsonl'" in absent
    rows = printed(capsys, "validate", *mine[1:], code=1)
    assert [row.split()[3] for row in rows if row.startswith(("mine ", "files "))] == ["not", "PROBLEM"]


def test_overlaps_with_training_data_are_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train = written(tmp_path / "train.jsonl", [{"prompt": "how much is it, in all", "answer": "7"}])
    written(tmp_path / "gsm8k" / "test.jsonl", GSM8K)
    arguments = ("overlap", train, "--data", tmp_path, "benchmarks=[gsm8k,aime24]")
    assert printed(capsys, *arguments, code=1) == [
        "1 training tasks",
        "gsm8k, split test: of 2 tasks 1 are in it, 0 more are similar",
        "    gsm8k/test/1 = train/0 (100%): How much is it in all?",
        "aime24, split sample: of 3 tasks 0 are in it, 0 more are similar",
    ]
    body = json.loads("\n".join(printed(capsys, *arguments, "--json", code=1)))
    assert [one["training"] for one in body["gsm8k"]["overlaps"]] == ["train/0"]
    assert printed(capsys, "overlap", train, "benchmarks=[aime24]")[1].startswith("aime24, split sample")


def test_a_folder_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["benchmarks", "validate", "--data", str(tmp_path / "absent")]) == 1
    assert f"--data={tmp_path / 'absent'}: no such folder (working directory: " in capsys.readouterr().err


def test_no_training_data_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmarks", "overlap"]) == 1
    said = "which training data? name files, as in `ramet benchmarks overlap train.parquet`"
    assert said in capsys.readouterr().err


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/eval")
def test_the_published_validation_data_overlaps_as_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    names = "aime24,aime25,math500,bamboogle,hotpotqa"
    found = printed(
        capsys, "overlap", DATA / "rl/valid.parquet", "--data", DATA / "eval", f"benchmarks=[{names}]", "--json", code=1
    )
    body = json.loads("\n".join(found))
    same = {name: sum(overlap["shared"] == 1.0 for overlap in one["overlaps"]) for name, one in body.items()}
    assert same == {"aime24": 30, "aime25": 0, "math500": 30, "bamboogle": 20, "hotpotqa": 0}
