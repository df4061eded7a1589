from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from ramet.cli import main
from ramet.config.schema import OnBadRow
from ramet.data.filter import leave_out_by_difficulty, leave_out_long, warn_of_chat_markup, warn_of_overlap
from ramet.data.layout import Columns
from ramet.data.tasks import load_tasks
from ramet.errors import ConfigError, ConfigErrors
from ramet.types import BenchmarkInfo, Message, Task, user_prompt

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "rl"
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1?"}]


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., str]:
    def write(*rows: Any, name: str = "data.jsonl") -> str:
        texts = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\n".join(texts) + b"\n")
        return str(tmp_path / name)

    return write


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., str]:
    def write(rows: list[dict[str, Any]], name: str = "data.parquet") -> str:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
        return str(tmp_path / name)

    return write


def problems(*paths: str, columns: Columns | None = None) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        load_tasks(paths, columns)
    return caught.value.problems


def test_a_flat_row_becomes_a_task(lines):
    row = {"prompt": "1+1?", "answer": 2, "data_source": "sums", "tools": ["python"], "level": {"hard": None}}
    found = load_tasks([lines(row)])
    assert found.tasks == [
        Task(id="data/0", prompt=user_prompt("1+1?"), answer=("2",), data_source="sums", tools=("python",),
             metadata={"level": {"hard": None}})
    ]  # fmt: skip


def test_absent_optional_columns_have_plain_defaults(lines):
    task = load_tasks([lines({"prompt": CHAT, "answer": ["2", "two", 2.5]}, name="train.jsonl")]).tasks[0]
    assert task.prompt == (Message(role="system", content="be brief"), Message(role="user", content="1+1?"))
    assert (task.answer, task.data_source, task.tools) == (("2", "two", "2.5"), "train", None)


def test_parquet_and_json_lines_give_the_same_tasks(lines, parquet):
    rows = [{"prompt": CHAT, "answer": ["a", "b"], "data_source": "s", "tools": ["python", "search"]},
            {"prompt": CHAT, "answer": ["c"], "data_source": "s", "tools": None}]  # fmt: skip
    one, other = load_tasks([lines(*rows)]), load_tasks([parquet(rows)])
    assert one.tasks == other.tasks
    assert one.fingerprint == other.fingerprint


def test_columns_can_be_renamed_and_nested(parquet):
    rows = [{"question": "q", "reward_model": {"ground_truth": "g", "style": "rule"}, "extra_info": {"index": 7}}]
    columns = Columns(id="extra_info.index", prompt="question", answer="reward_model.ground_truth")
    task = load_tasks([parquet(rows)], columns).tasks[0]
    assert (task.id, task.question, task.answer) == ("7", "q", ("g",))
    assert task.metadata["reward_model"] == {"ground_truth": "g", "style": "rule"}


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="needs ../shared/data/rl")
def test_the_training_data_of_arpo_loads():
    columns = Columns(answer="reward_model.ground_truth")
    found = load_tasks([str(PUBLISHED / "train_10k.parquet")], columns, on_bad_row=OnBadRow.SKIP, limit=50)
    assert len(found.tasks) == 50


def test_metadata_is_json_also_where_parquet_knows_more(parquet):
    rows = [{"prompt": "q", "answer": "a", "day": date(2026, 1, 2), "score": float("nan")}]
    assert load_tasks([parquet(rows)]).tasks[0].metadata == {"day": "2026-01-02", "score": None}


def test_blank_lines_and_a_byte_order_mark_are_no_rows(lines):
    path = lines(b'\xef\xbb\xbf{"prompt": "q", "answer": "a"}', b"", b'{"prompt": "r", "answer": "b"}', b"")
    assert [task.id for task in load_tasks([path]).tasks] == ["data/0", "data/2"]


def test_a_json_array_is_read_as_lines_are_and_a_broken_one_is_named(lines, tmp_path):
    rows = [{"prompt": "q", "answer": "a"}, {"prompt": CHAT, "answer": ["b"]}]
    array = tmp_path / "array" / "data.json"
    array.parent.mkdir()
    array.write_text(json.dumps(rows, indent=2), encoding="utf-8-sig")
    one, other = load_tasks([lines(*rows)]), load_tasks([str(array)])
    assert one.tasks == other.tasks
    array.write_text(json.dumps([rows[0], {"prompt": "r"}, 7]))
    answer, number = problems(str(array))
    assert answer.startswith(f"{array}, row 2: column answer: ") and number.startswith(f"{array}, row 3: not a JSON ")
    array.write_text(json.dumps(rows)[:-1])
    [problem] = problems(str(array))
    assert problem.startswith(f"{array}: not a readable JSON array: ")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": 3, "answer": "a"}, "column prompt: expected a text that is not empty, got 3"),
        ({"prompt": " ", "answer": "a"}, "column prompt: expected a text that is not empty, got ' '"),
        ({"prompt": [], "answer": "a"}, "column prompt: expected chat messages"),
        ({"prompt": [{"role": "tool", "content": "x"}], "answer": "a"}, "expected a role of system, user, assistant"),
        ({"prompt": [{"role": "user"}], "answer": "a"}, "messages with exactly role and content"),
        ({"prompt": ["hi"], "answer": "a"}, "expected messages {role, content}, got 'hi'"),
        ({"prompt": CHAT[:1], "answer": "a"}, "of which the last is the user's"),
        ({"prompt": CHAT[::-1] + CHAT[1:], "answer": "a"}, "expected the system message first"),
        ({"prompt": "q", "answer": None}, "column answer: expected a text, a number, or a list of them, got None"),
        ({"prompt": "q", "answer": ""}, "column answer: expected a text that is not empty"),
        ({"prompt": "q", "answer": []}, "column answer: expected at least one answer"),
        ({"prompt": "q", "answer": True}, "got True"),
        ({"prompt": "q", "answer": {"a": 1}}, "got {'a': 1}"),
        ({"prompt": "q"}, "column answer: expected a text, a number, or a list of them, got no value"),
        (
            {"prompt": "q", "answer": "a", "tools": "python"},
            "column tools: expected a list of tool names or of schemas, got 'python'",
        ),
        ({"prompt": "q", "answer": "a", "data_source": 3}, "column data_source: expected a text"),
        ({"prompt": "a\0b", "answer": "a"}, "NUL or half a surrogate pair"),
        (b'{"prompt": "\\ud800", "answer": "a"}', "NUL or half a surrogate pair"),
        (b'{"prompt": "q", "answer": NaN}', "not JSON: NaN"),
        (b'{"prompt": "q", "ans', "not JSON: Unterminated string"),
        (b"[1, 2]", ": [1, 2]"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
    ],
)
def test_a_bad_row_is_named_with_file_row_column_and_value(lines, row: Any, expected: str):
    path = lines({"prompt": "q", "answer": "a"}, row)
    found = problems(path)
    assert len(found) == 1
    assert found[0].startswith(f"{path}, row 2")
    assert expected in found[0]


def test_values_in_messages_are_cut(lines):
    message = problems(lines({"prompt": "q", "answer": "a"}, {"prompt": "q", "answer": {"a": "x" * 500}}))[0]
    assert message.endswith("…") and len(message.rpartition("got ")[2]) == 80


def test_a_row_nested_without_end_is_a_bad_row(lines):
    path = lines({"prompt": "p", "answer": "1"})
    with Path(path).open("a") as file:
        file.write('{"prompt": "p", "answer": "1", "extra": ' + "[" * 900 + "]" * 900 + "}\n")
    with pytest.raises(ConfigError, match=r"data\.jsonl, row 2: nested "):
        load_tasks([path])
    assert main(["data", "inspect", str(path), "rollout_step.system_prompt=never"]) == 1


def test_a_wrong_type_in_parquet_is_named_by_row(parquet):
    path = parquet([{"prompt": "q", "answer": "a"}, {"prompt": None, "answer": "b"}])
    [problem] = problems(path)
    assert problem.startswith(f"{path}, row 2: column prompt: ") and problem.endswith(" None")


def test_all_bad_rows_are_reported_together_and_many_are_counted(lines):
    good = {"prompt": "q", "answer": "a"}
    assert len(problems(lines(good, {"prompt": 1, "answer": "a"}, {"prompt": "q", "answer": None}))) == 2
    found = problems(lines(good, *({"prompt": n, "answer": "a"} for n in range(25))))
    assert len(found) == 21
    assert found[-1] == "and 5 more problems with the data"


def test_rows_that_are_bad_alike_are_one_line_with_the_first_of_them(lines):
    first = lines({"prompt": "q", "answer": "a"}, *[{"prompt": "q", "answer": None}] * 2, name="a.jsonl")
    second = lines({"prompt": "q", "answer": "a"}, *[{"prompt": "q", "answer": None}] * 23, name="b.jsonl")
    why = "column answer: expected a text, a number, or a list of them, got None"
    assert problems(first, second) == [f"{first}, rows 2, 3; {second}, row 2; and 22 more: {why}"]


def test_bad_rows_can_be_skipped_and_are_counted(lines):
    path = lines({"prompt": "q", "answer": "a"}, {"prompt": 1, "answer": "a"}, b"{")
    found = load_tasks([path], on_bad_row=OnBadRow.SKIP)
    assert (len(found.tasks), found.skipped) == (1, 2)
    with pytest.raises(ConfigError, match=r"no tasks in .*: 1 rows, 1 bad"):
        load_tasks([lines(b"{")], on_bad_row=OnBadRow.SKIP)


class Numbers:
    """A benchmark whose third task has no number for an answer."""

    info = BenchmarkInfo(description="n", splits=("test",), metrics=("em",), source="here", licence="MIT")

    def load(self, split: str, limit: int | None) -> Iterator[Task]:
        for number, answer in enumerate(["1", "2", "many", "4"]):
            yield Task(id=f"n/{number}", prompt=user_prompt("?"), answer=(answer,))

    async def score(self, rollout: Any) -> dict[str, float | None]:
        return {"em": 1.0}


def is_number(task: Task) -> str | None:
    return None if task.answer[0].isdecimal() else f"rewards.sums: the gold answer {task.answer[0]!r} is no number"


def test_what_a_reward_cannot_judge_is_a_bad_row_of_files_and_benchmarks(lines):
    first = lines({"prompt": "q", "answer": "1"}, {"prompt": "q", "answer": "many"}, name="one.jsonl")
    other = lines({"prompt": "q", "answer": "many"}, {"prompt": "", "answer": "few"}, name="two.jsonl")
    paths = [first, other, "benchmark:numbers/test"]
    with pytest.raises(ConfigErrors) as caught:
        load_tasks(paths, build=lambda name: Numbers(), check=is_number)
    unjudged, empty = caught.value.problems
    assert unjudged.startswith(f"{first}, row 2; {other}, row 1; benchmark:numbers/test, row 3: rewards.sums: ")
    assert empty.startswith(f"{other}, row 2: column prompt: ")
    options = {"build": lambda name: Numbers(), "check": is_number, "on_bad_row": OnBadRow.SKIP}
    found = load_tasks(paths, **options)
    assert ([task.id for task in found.tasks], found.skipped) == (["one/0", "n/0", "n/1", "n/3"], 4)
    judged_by_itself = load_tasks(paths, **options, check_benchmarks=False)
    assert len(judged_by_itself.tasks) == 1 + 4
    assert load_tasks(paths, **options, limit=2).benchmarks == {"n/0": "numbers"}


def test_a_column_that_no_row_has_is_reported_once_with_how_to_name_it(lines, parquet):
    rows = [{"question": "q", "answer": "a"}] * 3
    for path in (lines(*rows), parquet(rows)):
        assert problems(path) == [
            f"{path}: no column 'prompt'; found question, answer; name it with data.columns.prompt"
        ]


def test_a_column_that_the_user_named_must_be_there(lines):
    path = lines({"prompt": "q", "answer": "a"})
    columns = Columns(id="uid", data_source="origin", tools=None)
    assert [p.rpartition("data.columns.")[2] for p in problems(path, columns=columns)] == ["id", "data_source"]


def test_ids_must_be_unique_over_all_files(lines):
    first = lines({"uid": "x", "prompt": "q", "answer": "a"}, name="a.jsonl")
    second = lines({"uid": "x", "prompt": "q", "answer": "a"}, name="b.jsonl")
    assert problems(first, second, columns=Columns(id="uid")) == [
        f"{second}, row 1: id 'x' is taken by {first}, row 1; ids must be unique"
    ]


def test_files_of_one_name_in_two_folders_keep_their_ids_apart(lines):
    paths = [lines({"prompt": "q", "answer": "a"}, name=f"{folder}/test.jsonl") for folder in ("a", "b")]
    ids = [task.id for task in load_tasks(paths).tasks]
    assert len(set(ids)) == 2


def test_ids_and_records_of_files_of_the_hub_are_the_same_on_every_machine(lines: Callable[..., str]) -> None:
    commits = {"x": "0" * 40, "y": "1" * 40}
    for cache in ("a", "b/c"):
        files = [f"{cache}/datasets--me--{name}/snapshots/{commits[name]}/train.jsonl" for name in commits]
        found = load_tasks([lines({"prompt": "?", "answer": "1"}, name=file) for file in files])
        assert found.files == [f"hf://datasets/me/{name}@{commits[name]}/train.jsonl" for name in commits]
        assert [task.id for task in found.tasks] == [f"{file}/0" for file in found.files]


def test_files_that_cannot_be_read_are_named_together(tmp_path: Path):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "table.csv").write_text("a,b")
    names = ("gone.jsonl", "*.parquet", "empty.jsonl", "table.csv", "")
    hub = ("nobody/sums", "nobody/sums:train[:10]")
    found = problems(*(str(tmp_path / name) for name in names), *hub)
    reasons = ["no such file (working directory:", "no such file (working directory:", "the file is empty",
               "unknown kind of file '.csv'; allowed: .parquet", "is a directory",
               *["; of a set of the hub give OWNER/NAME:SPLIT, or hf://datasets/OWNER/NAME/FILE"] * 2]  # fmt: skip
    assert len(found) == 7
    assert all(reason in problem for reason, problem in zip(reasons, found, strict=True))


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path):
    (tmp_path / "fake.parquet").write_text("a,b,c\n1,2,3\n")
    assert "fake.parquet, after row 0: not a readable parquet file: " in problems(str(tmp_path / "fake.parquet"))[0]


def test_a_pattern_stands_for_its_files_in_order(lines, tmp_path: Path):
    for name in ("b", "a"):
        lines({"prompt": "q", "answer": "a"}, name=f"part-{name}.jsonl")
    assert [task.id for task in load_tasks([str(tmp_path / "part-*.jsonl")]).tasks] == ["part-a/0", "part-b/0"]


def test_the_limit_counts_tasks_over_all_files(lines):
    paths = [lines(*[{"prompt": "q", "answer": "a"}] * 3, name=name) for name in ("a.jsonl", "b.jsonl")]
    assert [task.id for task in load_tasks(paths, limit=4).tasks] == ["a/0", "a/1", "a/2", "b/0"]
    assert len(load_tasks(paths, limit=2).tasks) == 2


def test_the_fingerprint_changes_with_any_value_and_the_order(lines):
    rows = [{"prompt": "q", "answer": "a"}, {"prompt": "r", "answer": "a"}]
    prints = [
        load_tasks([lines(*version)]).fingerprint
        for version in (rows, rows, rows[::-1], [rows[0], {**rows[1], "x": 1}])
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_difficulty_is_a_number_in_every_row_and_bounds_are_inclusive(lines, caplog):
    path = lines(*({"prompt": str(i), "answer": "1", "info": {"level": i / 2}} for i in range(6)))
    columns = Columns(difficulty="info.level")
    tasks = load_tasks([path], columns).tasks
    assert [
        task.prompt[0].content for task in leave_out_by_difficulty(tasks, "info.level", {"min": 0.5, "max": 2})
    ] == list("1234")
    said = "left out: 2 of 6 tasks are outside data.difficulty={min: 0.5, max: 2}"
    assert [record.getMessage() for record in caplog.records] == [said]
    with pytest.raises(ConfigError) as found:
        leave_out_by_difficulty(tasks, "info.level", {"min": 3})
    bounds = "data.difficulty={min: 3}"
    assert str(found.value) == f"no task is left: {bounds}; the data has 0 to 2.5"
    hard = lines({"prompt": "x", "answer": "1", "info": {"level": "hard"}})
    assert problems(hard, columns=columns) == [f"{hard}, row 1: column info.level: expected a number, got 'hard'"]


def test_tasks_that_are_trained_on_and_measured_are_counted_and_named(caplog):
    train = [Task(id=f"train/{n}", prompt=user_prompt(n)) for n in "abc"]
    valid = [Task(id=f"valid/{n}", prompt=user_prompt(n)) for n in "bxc"]
    assert warn_of_overlap(train, valid) == 2
    assert (
        "2 of 3 tasks of data.valid have a prompt that data.train has too, the first: valid/b, valid/c" in caplog.text
    )
    assert warn_of_overlap(train, valid[1:2]) == 0


def test_chat_markup_in_prompts_is_warned_of(caplog):
    tasks = [Task(id=str(i), prompt=user_prompt("<|end|>" * (i % 2))) for i in range(10)]
    assert warn_of_chat_markup(tasks, lambda task: task.prompt[0].content.count("<|end|>"), "data.train") == 5
    assert caplog.messages == [
        "5 of 10 tasks of data.train have chat markup in their prompts, which becomes special tokens (the first: 1, 3, "
        "5); data.chat_markup=neutralise has it read as text"
    ]
    assert warn_of_chat_markup(tasks[:1], lambda task: 0, "data.train") == 0


def test_long_prompts_are_left_out_and_counted():
    tasks = [Task(id=str(n), prompt=user_prompt("x" * n)) for n in (3, 9, 4)]
    found = leave_out_long(tasks, lambda task: len(task.question), 4)
    assert ([task.id for task in found.tasks], found.left_out, found.longest) == (["3", "4"], 1, 9)
    with pytest.raises(ConfigError, match=r"3 of 3 tasks .*data\.max_prompt_tokens=2; .* 9"):
        leave_out_long(tasks, lambda task: len(task.question), 2)
