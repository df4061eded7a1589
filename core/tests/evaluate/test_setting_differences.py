from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ramet.cli.app import main
from ramet.evaluate.setting_differences import setting_differences
from ramet.evaluate.tables import setting_cells

SAMPLING = {"temperature": 0.6, "top_p": 0.95}


def body(config: dict[str, Any], *, k: int = 4, benchmark: str = "own", **rules: Any) -> dict[str, Any]:
    rules = {"tools": None, "limits": {}, "sampling": SAMPLING, **rules}
    task = {"task": "a", "gold": ["1"], "rollouts": [{"scores": {"em": 1.0}}]}
    return {
        "schema": 1,
        "k": k,
        "rules": {benchmark: rules},
        "settings": {"config": yaml.safe_dump(config)},
        "results": [{"name": benchmark, "metrics": [{"metric": "em"}], "tasks": [task]}],
    }


def config(**changed: Any) -> dict[str, Any]:
    return {
        "run": {"name": "a", "seed": 1},
        "model": {"path": "one"},
        "engine": {"name": "torch", "params": {"slots": 64}},
        "rollout": {"max_response_tokens": 32, "temperature": 1.0, "deadline_s": 60.0, "max_concurrent": 8},
        "rollout_step": {"name": "tags", "params": {"think": "think"}},
        "tools": {},
        "evaluate": {"k": 4, "temperature": None},
        "benchmarks": {"own": {"sampling": {}, "params": {"metrics": {"em": "qa_em"}}}},
        **changed,
    }


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one.setting, one.before, one.after) for one in setting_differences(before, after)]


def test_another_model_is_no_difference_nor_is_what_cannot_alter_a_score() -> None:
    other = config(
        run={"name": "b", "seed": 1},
        model={"path": "two", "chat_template": "t.jinja"},
        engine={"name": "vllm", "params": {"slots": 8}},
        rollout={"max_response_tokens": 32, "temperature": 0.1, "deadline_s": 30.0, "max_concurrent": 99},
        evaluate={"k": 4, "temperature": 0.6},
    )
    assert differing(body(config()), body(other)) == differing(body(other), body(config())) == []


def test_k_sampling_limits_step_and_tools_are_told() -> None:
    other = config(
        run={"name": "a", "seed": 2},
        rollout={"max_response_tokens": 64, "temperature": 1.0, "deadline_s": 60.0, "max_concurrent": 8},
        rollout_step={"name": "hermes", "params": {"start": "x"}},
        tools={"search": {"use": "search", "params": {"max_results": 5}}},
        benchmarks={"own": {"sampling": {"temperature": 1.0}, "params": {"metrics": {"em": "f1"}}}},
    )
    after = body(other, k=2, tools=["search"], limits={"search": 3}, sampling={"temperature": 1.0, "top_p": 0.95})
    assert differing(body(config()), after) == [
        ("evaluate.k", "4", "2"),
        ("own: tools", "null", '["search"]'),
        ("own: limits", "{}", '{"search": 3}'),
        ("own: temperature", "0.6", "1.0"),
        ("tools.search", "(absent)", "given"),
        ("benchmarks.own.params.metrics.em", "qa_em", "f1"),
        ("rollout.max_response_tokens", "32", "64"),
        ("rollout_step.name", "tags", "hermes"),
        ("run.seed", "1", "2"),
    ]


def test_benchmarks_of_one_alone_and_files_without_settings_are_left_out() -> None:
    assert differing(body(config(), temperature=1), body(config(), benchmark="other")) == []
    assert differing({"results": []}, {"results": []}) == []


def test_the_command_tells_them_in_both_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, one in (("a", body(config())), ("b", body(config(), k=2))):
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    given = ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert main([*given, "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["settings"] == [{"setting": "evaluate.k", "before": "4", "after": "2"}]
    assert main([*given, "--format", "markdown"]) == 0
    table = setting_cells(setting_differences(body(config()), body(config(), k=2))).markdown()
    assert table in capsys.readouterr().out and "| evaluate.k | 4 | 2 |" in table
    assert main([given[0], given[1], given[1], "--format", "markdown"]) == 0
    assert "measured differently" not in capsys.readouterr().out
