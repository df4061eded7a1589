"""What a job is refused for before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.config.resolved import Resolved
from ramet.config.schema import ClusterConfig, Config, DataConfig, ModelConfig, RewardConfig, RunConfig, SftConfig
from ramet.planning.early import early_problems
from ramet.runs.manifest import make_manifest, write_manifest


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Resolved]:
    """A configuration of a job; `model` is a folder, `t.jsonl` is a file, and `runs/a` is a run of `ramet train`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "t.jsonl").write_text("{}\n")

    def make(job: str = "train", **sections: object) -> Resolved:
        usual = {
            "model": ModelConfig(path="model"),
            "data": DataConfig(train=["t.jsonl"]),
            "rewards": {"math": RewardConfig()},
            "sft": SftConfig(data=["t.jsonl"]),
        }
        config = Config(**{**usual, **sections})  # type: ignore[arg-type]
        return Resolved(job=job, config=config, text="", overrides=[], set_by_user=frozenset())

    (tmp_path / "runs/a").mkdir(parents=True)
    write_manifest(tmp_path / "runs/a/manifest.json", make_manifest(make()))
    return make


def test_a_job_without_mistakes_is_not_refused(given: Callable[..., Resolved]) -> None:
    assert early_problems(given(run=RunConfig(name="a"))) == early_problems(given("sft")) == []


@pytest.mark.parametrize(
    ("job", "sections", "told"),
    [
        ("train", {"model": ModelConfig(path="no/such/model")}, "model.path: 'no/such/model' "),
        ("train", {"data": DataConfig(train=["t.jsonl", "u.jsonl", "benchmark:x/test"])}, "u.jsonl: no such file "),
        (
            "sft",
            {"sft": SftConfig(data=["u.jsonl"])},
            "sft.data: u.jsonl: no such file (working directory: {here})",
        ),
        ("sft", {"sft": SftConfig(data=["t.jsonl"], valid=["u.jsonl"])}, "sft.valid: u.jsonl: no such file "),
        ("sft", {"run": RunConfig(name="a")}, "the run directory has a `ramet train` run, "),
        ("train", {"rewards": {}}, "rewards: none chosen; training needs at least one, as in rewards=[NAME]"),
    ],
)
def test_a_mistake_in_settings_paths_and_names_is_told(
    given: Callable[..., Resolved], tmp_path: Path, job: str, sections: dict[str, object], told: str
) -> None:
    [problem] = early_problems(given(job, **sections))
    assert problem.startswith(told.format(here=tmp_path))


def test_what_is_known_as_quickly_is_told_with_it_and_alone_is_left_to_the_job(given: Callable[..., Resolved]) -> None:
    wrong = {"run": RunConfig(threads=0), "cluster": ClusterConfig(policy_workers=2)}
    assert early_problems(given(**wrong)) == []
    found = early_problems(given(**wrong, model=ModelConfig(path="model/none")))
    assert [problem.partition(": ")[0] for problem in found] == [
        "model.path", "run.threads=0", "cluster.policy_workers=2"
    ]  # fmt: skip


def test_nothing_heavy_is_imported_for_it() -> None:
    code = "import sys, json, ramet.planning.early; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "transformers", "ray", "vllm", "pyarrow"} & set(json.loads(done.stdout))
