"""docs/evaluation.md is true: its commands run, every field of the results file is on the page, and so are the keys."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.cli import main
from ramet.config.schema import EvaluateConfig
from ramet.evaluate.evaluation import MASKED_LIMIT
from ramet.evaluate.files import read_results
from ramet.evaluate.rules import DEFAULTS
from ramet.evaluate.tables import results_cells
from ramet.plugins import load_plugins
from ramet.tracking.jsonl import read_metrics

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "evaluation.md").read_text()
BLOCKS = re.findall(r"^<!-- run: tests/test_docs_evaluation.py -->\n```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CODE = " ".join(re.findall(r"`([^`\n]+)`", PAGE))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the page's commands ran, in its order."""
    if "arithmetic" not in load_plugins().registries.benchmarks:
        pytest.skip("the plugin ramet-benchmarks is not installed")
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_published(folder)
        for line in "".join(BLOCKS).replace("\\\n", " ").splitlines():
            if line.startswith("ramet "):
                assert main(shlex.split(line)[1:]) == 0, line
            else:
                subprocess.run(["bash", "-c", line], check=True)
        yield folder


def write_published(folder: Path) -> None:
    """Write outputs of ARPO's evaluation code, and the tasks that they answer."""
    sample = {"input": "6 x 7?", "output": "<answer>42</answer>", "prediction": "42", "answer": "42"}
    task = {"id": 60, "question": "6 x 7?", "answer": "42"}
    outputs, tasks = folder / "outputs/aime24", folder / "evaluation/data/aime24"
    outputs.mkdir(parents=True)
    (outputs / "aime24_output_1.json").write_text(json.dumps([sample]))
    tasks.mkdir(parents=True)
    (tasks / "test.jsonl").write_text(json.dumps(task) + "\n")


USERS = (  # hold names of the user's
    "settings", "benchmarks", "versions", "plugins", "calls", "errors", "infra", "success", "mean_s", "scores", "rules",
)  # fmt: skip


def fields(value: Any) -> Iterator[str]:
    """Names of all fields, but of what is named by the user: benchmarks, tools, packages."""
    if isinstance(value, list):
        for item in value:
            yield from fields(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            if name not in USERS:
                yield from fields(item)


def test_every_field_of_the_results_is_on_the_page(played: Path) -> None:
    body = read_results(played / "runs/measured/results.json")
    assert {name for name in fields(body) if not re.search(rf"\b{name}\b", CODE)} == set()
    assert set(body["settings"]) == {"config", "model_sha256", "tasks_sha256"}
    (result,) = body["results"]
    assert [one["k"] for one in result["metrics"][0]["passes"]] == [1, 2, 4]
    assert result["judged"] == "16 of 16 judged"
    assert all(line in PAGE for line in results_cells(body).caption.splitlines()) and "│ 16 of 16 │" in PAGE


def test_trackers_get_what_the_page_says(played: Path) -> None:
    (entry,) = read_metrics(played / "runs/measured/metrics.jsonl")
    names = [name.replace("arithmetic", "NAME").replace("accuracy", "METRIC") for name in entry.metrics]
    assert entry.step == 0
    assert names == ["eval/NAME/METRIC", "eval/NAME/METRIC/pass@4", "eval/NAME/tool_use", "eval/NAME/judged_share"]
    assert {name.replace("@4", "@K") for name in names} <= set(re.findall(r"`([^`\n]+)`", PAGE))


def test_validation_is_at_the_steps_that_the_page_says_and_is_recorded(played: Path) -> None:
    run = played / "runs/watched"
    found = {
        entry.step: entry.metrics for entry in read_metrics(run / "metrics.jsonl") if "valid/reward" in entry.metrics
    }
    assert list(found) == [0, 2]
    assert {name for name in found[0] if name.startswith("valid/")} == {
        "valid/reward", "valid/reward/own", "valid/reward/arithmetic", "valid/arithmetic/accuracy", "valid/tool_use",
        "valid/masked_share",
    }  # fmt: skip
    assert "time/valid_s" in found[2]
    assert sorted(path.name for path in (run / "rollouts").iterdir()) == [
        "step_000001.jsonl.gz",
        "step_000002.jsonl.gz",
        "valid_000000.jsonl.gz",
        "valid_000002.jsonl.gz",
    ]


def test_every_key_of_the_evaluation_is_on_the_page_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(?:evaluate|rollout)\.([\w.]+)`[^|]*\| ([^|]*) \|", PAGE, re.MULTILINE))
    assert rows["k"] == str(EvaluateConfig().k) and rows["max_masked_share"] == f"null: {MASKED_LIMIT}"
    assert not EvaluateConfig().sampling
    expected = f"the benchmark's own, otherwise {', '.join(f'{one:g}' for one in DEFAULTS.values())}"
    assert rows["sampling.temperature"] == expected
    assert all(re.search(rf"\b{field.name}\b", CODE) for field in dataclasses.fields(EvaluateConfig))
