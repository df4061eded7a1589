"""Rows in the published forms become tasks, and what they lack is said with file and row."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError
from ramet_benchmarks.math import with_answer
from ramet_benchmarks.musique import with_aliases
from ramet_benchmarks.rows import HubData, RowForm, file_rows, hub_rows, tasks_of
from ramet_benchmarks.xbench import decrypted

PAIR = RowForm(question=("question", "problem"), id=("id",))


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("answer", "golds"),
    [(70, ("70",)), (0, ("0",)), (1.5, ("1.5",)), ("x", ("x",)), (["a", 2, "a"], ("a", "2"))],
)
def test_numbers_texts_and_lists_are_gold_answers(tmp_path: Path, answer: Any, golds: tuple[str, ...]) -> None:
    path = written(tmp_path, {"problem": "?", "answer": answer, "id": 7}, {"question": "!", "answer": "y"})
    one, two = tasks_of(file_rows(path), PAIR, "own", "own/test")
    assert (one.id, one.question, one.answer, one.data_source) == ("own/test/7", "?", golds, "own")
    assert two.id == "own/test/1"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "?"}, "no key 'answer' (or null); found question"),
        ({"answer": "x"}, "no key 'question' or 'problem' (or null); found answer"),
        ({"question": " ", "answer": "x"}, "the question must be a text that is not empty, got ' '"),
        ({"question": "?", "answer": []}, "the answer must be a text, a number, or a list of them, none empty; got []"),
        (
            {"question": "?", "answer": ["x", ""]},
            "the answer must be a text, a number, or a list of them, none empty; got ['x', '']",
        ),
        (
            {"question": "?", "answer": True},
            "the answer must be a text, a number, or a list of them, none empty; got True",
        ),
        (
            {"question": "?", "answer": "x", "id": "1"},
            "the id 'own/1' is also in {path}, row 1; ids must be unique",
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_its_place(tmp_path: Path, row: Any, said: str) -> None:
    path = written(tmp_path, {"question": "?", "answer": "x", "id": 1}, row)
    with pytest.raises(ConfigError) as caught:
        list(tasks_of(file_rows(path), PAIR, "own", "own"))
    assert str(caught.value) == f"{path}, row 2: {said.format(path=path)}"


def test_a_file_that_is_not_there_can_be_told_from_one_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^no file '.*absent\.jsonl'$") as caught:
        list(file_rows(tmp_path / "absent.jsonl"))
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_rows_that_are_not_wanted_are_left_out_and_keep_their_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, {"question": "a", "answer": 1, "image": "x"}, {"question": "b", "answer": 2})
    form = RowForm(wanted=lambda row: not row.get("image"))
    assert [task.id for task in tasks_of(file_rows(path), form, "own", "own")] == ["own/1"]


def test_forms_of_the_authors_are_read() -> None:
    assert with_answer({"problem": "?", "solution": r"so $\boxed{\frac{3}{2}}$."})["answer"] == r"\frac{3}{2}"
    assert with_answer({"solution": r"so $\boxed 2$ it is, for $3$"})["answer"] == "2"
    assert with_answer({"solution": r"so $\fbox{2}$"})["answer"] == "2"
    with pytest.raises(ValueError, match=r"has no .*boxed"):
        with_answer({"solution": "so 3"})
    assert with_aliases({"answer": "a", "answer_aliases": ["b"]})["answer"] == ["a", "b"]
    assert with_aliases({"answer": ["a"], "answer_aliases": ["b"]})["answer"] == ["a", "b"]
    assert with_aliases({"question": "?", "answer_aliases": ["b"]}) == {"question": "?", "answer_aliases": ["b"]}
    key = b"canary"
    hidden = {name: base64.b64encode(bytes(b ^ key[i % 6] for i, b in enumerate(text.encode()))).decode()
              for name, text in (("prompt", "北京？"), ("answer", "是"))}  # fmt: skip
    assert decrypted({**hidden, "canary": "canary"}) == {"prompt": "北京？", "answer": "是", "canary": "canary"}
    assert decrypted({"question": "?", "answer": "x"}) == {"question": "?", "answer": "x"}
    with pytest.raises(ValueError, match="cannot be deciphered"):
        decrypted({"prompt": "no base64!", "canary": "k"})


def test_the_hub_is_read_split_by_split_and_subset_by_subset(tmp_path: Path) -> None:
    """The reader of the hub reads a folder in its form too."""
    pytest.importorskip("datasets", reason="ramet-benchmarks[hub] is not installed")
    for subset in ("one", "two"):
        (tmp_path / "set" / subset).mkdir(parents=True)
        (tmp_path / "set" / subset / "validation.jsonl").write_text(json.dumps({"question": subset, "answer": 1}))
    card = "".join(
        f"- config_name: {s}\n  data_files:\n  - split: validation\n    path: {s}/validation.jsonl\n"
        for s in ("one", "two")
    )
    (tmp_path / "set" / "README.md").write_text(f"---\nconfigs:\n{card}---\n")
    hub = HubData(name=str(tmp_path / "set"), splits={"test": "validation"}, subsets=("one", "two"))
    tasks = list(tasks_of(hub_rows(hub, "test", "benchmarks.own.params.path"), RowForm(), "own", "own"))
    assert [(task.id, task.question, task.answer) for task in tasks] == [
        ("own/0", "one", ("1",)),
        ("own/1", "two", ("1",)),
    ]


def test_no_access_to_a_gated_set_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="ramet-benchmarks[hub] is not installed")

    def refuse(*given: object, **named: object) -> None:  # the hub is not reached in tests
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'cais/hle' is a gated dataset on the Hub.")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(ConfigError) as caught:
        list(hub_rows(HubData(name="cais/hle", gated=True), "test", "benchmarks.hle.params.path"))
    assert str(caught.value) == (
        "benchmarks.hle.params.path: cannot load 'cais/hle' from the hub: Dataset 'cais/hle' is a gated dataset on the "
        "Hub. It is gated: accept its terms at https://huggingface.co/datasets/cais/hle and log in with `hf auth "
        "login` (or set HF_TOKEN), or set benchmarks.hle.params.path to a .jsonl file in the published form; "
        "split=sample needs neither"
    )
    with pytest.raises(ConfigError, match=r"on the Hub; or set benchmarks\.own\.params\.path to"):
        list(hub_rows(HubData(name="a/b"), "test", "benchmarks.own.params.path"))
