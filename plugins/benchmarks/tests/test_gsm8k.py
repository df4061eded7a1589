from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import ConfigError
from ramet.testing.benchmark import check_benchmark
from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.gsm8k import make

REAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "eval" / "gsm8k"
ROWS = [
    {"question": "How many?", "answer": "9 * 2 = <<9*2=18>>18\n#### 18"},
    {"question": "How much?", "answer": "A lot.\n#### 1,000"},
]


def _write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        _write(tmp_path / f"{split}.jsonl", list(ROWS))
    return tmp_path


def test_the_benchmark_keeps_the_contract_on_local_files(folder: Path) -> None:
    check_benchmark(make(PublishedConfig(path=str(folder))))


def test_the_gold_answer_is_the_number_after_the_separator(folder: Path) -> None:
    tasks = list(make(PublishedConfig(path=str(folder / "test.jsonl"))).load("test", None))
    assert [(task.id, task.answer) for task in tasks] == [("gsm8k/test/0", ("18",)), ("gsm8k/test/1", ("1000",))]


@pytest.mark.parametrize("answer", ["18", r"\boxed{18}", "$18", "18.0", "18 dollars a day"])
def test_equal_numbers_score_however_written(folder: Path, accuracy: Callable[..., float], answer: str) -> None:
    benchmark = make(PublishedConfig(path=str(folder)))
    first, second = benchmark.load("test", None)
    assert accuracy(benchmark, first, answer) == 1.0
    assert accuracy(benchmark, second, answer) == 0.0
    assert accuracy(benchmark, second, "1,000") == 1.0
    assert accuracy(benchmark, first, None) == accuracy(benchmark, first, "eighteen") == 0.0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "?"}, "no key 'answer' "),
        ({"question": "?", "answer": "18"}, "`answer` must end in #### and a number, found '18'"),
        ({"question": "?", "answer": 18}, "`answer` must end in #### and a number, found '18'"),
        (7, "not a JSON object: 7"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: object, said: str) -> None:
    path = _write(tmp_path / "test.jsonl", [ROWS[0], row])
    with pytest.raises(ConfigError) as caught:
        list(make(PublishedConfig(path=str(path))).load("test", None))
    assert str(caught.value).startswith(f"{path}, row 2: {said}")


def test_missing_files_and_broken_json_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file '.*absent\.jsonl'"):
        list(make(PublishedConfig(path=str(tmp_path / "absent.jsonl"))).load("test", None))
    (tmp_path / "test.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"test\.jsonl, row 1: not JSON"):
        list(make(PublishedConfig(path=str(tmp_path))).load("test", None))


def test_a_json_array_with_a_byte_order_mark_gives_the_same_tasks(folder: Path) -> None:
    array = folder / "array.json"
    array.write_text(json.dumps(ROWS), encoding="utf-8-sig")
    tasks = [list(make(PublishedConfig(path=str(path))).load("test", None)) for path in (folder, array)]
    assert len(tasks[0]) == 2 and tasks[0] == tasks[1]


def test_the_hub_needs_a_package_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"openai/gsm8k.*ramet-benchmarks\[hub\]"):
        list(make(PublishedConfig()).load("test", None))


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/eval/gsm8k")
def test_every_task_of_the_real_test_split_scores_with_its_gold_answer(accuracy: Callable[..., float]) -> None:
    benchmark = make(PublishedConfig(path=str(REAL)))
    tasks = list(benchmark.load("test", None))
    assert len(tasks) == 1319 and len({task.id for task in tasks}) == 1319
    assert all(accuracy(benchmark, task, task.answer[0]) == 1.0 for task in tasks[::10])
