from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.sft.dry_run import plan

SOUND, BROKEN, LONG = "<answer>1</answer>", "<answer>1", f"<answer>{'1' * 90}</answer>"


@pytest.mark.parametrize(
    ("rule", "rows"), [("skip", "2 from {}; left out: 1 too long, 1 malformed"),
                       ("keep", "3 from {}; left out: 1 too long; 1 of them malformed")]
)  # fmt: skip
def test_the_plan_counts_rows_that_are_left_out(tiny_model: Path, tmp_path: Path, rule: str, rows: str) -> None:
    file = tmp_path / "t.jsonl"
    turns = [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": reply}]
        for reply in (SOUND, BROKEN, LONG, SOUND)
    ]
    file.write_text("".join(json.dumps({"messages": one}) + "\n" for one in turns))
    resolved = compose(
        [f"model.path={tiny_model}", f"sft.data=[{file}]", f"run.root={tmp_path}", f"sft.malformed={rule}",
         "sft.max_tokens=50", "rollout_step.system_prompt=never"], job="sft",
    )  # fmt: skip
    facts = plan(resolved).facts
    assert facts["rows"] == rows.format(file)
    assert "tokens at once, as the rows are packed; their longest sequence has 8\n" in facts["memory"]  # not 50


def test_no_more_checkpoints_are_planned_than_are_saved(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": SOUND}]
    file.write_text(json.dumps({"messages": turns}) + "\n")
    keys = [f"model.path={tiny_model}", f"sft.data=[{file}]", f"sft.valid=[{file}]", f"run.root={tmp_path}"]
    keys += ["run.name=mine", "sft.trainer={max_steps: 2, eval_steps: 1}", "rollout_step.system_prompt=never"]
    assert plan(compose(keys, job="sft")).facts["disk"].startswith("2 checkpoints of ")
