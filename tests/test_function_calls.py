"""Rows in BFCL's form, written here, teach a tiny model its calls and train it; rewards are those found by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ramet.api import RecordedRollout, rollouts, sft, train
from ramet.models.tiny import make_tiny_model

TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{{ '<|user|>' + m.role[0] if m.role == 'tool' else '<|' + m.role + '|>' }}"
    "{{ m.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
AREA = {
    "name": "area",
    "description": "Area of a square.",
    "parameters": {"type": "dict", "properties": {"base": {"type": "integer"}}, "required": ["base"]},
}
TASK = {
    "id": "simple_0",
    "question": [[{"role": "user", "content": "q"}]],
    "function": [AREA],
    "ground_truth": [{"area": {"base": [3], "unit": ["cm", ""]}}],
}


def call(base: int) -> str:
    return f'<tool_call>{{"name": "area", "arguments": {{"base": {base}}}}}</tool_call>'


def trace(base: int) -> dict[str, Any]:
    turns = [("user", "q"), ("assistant", call(base)), ("tool", "ok"), ("assistant", ".")]
    return {"messages": [{"role": role, "content": text} for role, text in turns], "tools": [AREA]}


def by_hand(recorded: RecordedRollout) -> float:
    """One call, of base 3 and of nothing else, is right."""
    calls = [(one.name, dict(one.arguments)) for one in recorded.rollout.tool_calls]
    return float(calls == [("area", {"base": 3})])


def test_a_model_is_taught_a_rows_calls_and_trains_on_the_reward_of_them(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", hidden=64, layers=2, intermediate=128)
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    (tmp_path / "traces.json").write_text(json.dumps([trace(3), trace(4)] * 2))
    (tmp_path / "calls.json").write_text(json.dumps([TASK]))
    common = [
        "rollout_step=hermes", f"model.chat_template={tmp_path}/template.jinja", "trackers=[jsonl]", "run.seed=1",
        f"run.root={tmp_path}/runs", "run.threads=1", "model.device=cpu",
    ]  # fmt: skip
    sft([
        *common, "tools=[]", f"model.path={model}", f"sft.data=[{tmp_path}/traces.json]", "run.name=sft",
        "sft.lr=5e-3", "sft.sequences_per_step=4", "sft.trainer.max_steps=60", "sft.trainer.warmup_ratio=0",
        "sft.trainer.lr_scheduler_type=constant_with_warmup",
    ])  # fmt: skip
    keys = [
        *common, "tools=[from_row]", "rewards=[tool_calls]", f"model.path={tmp_path}/runs/sft/model", "run.name=rl",
        f"data.train=[{tmp_path}/calls.json]", "data.columns.prompt=question", "data.columns.tools=function",
        "data.columns.answer=ground_truth", "data.columns.id=id", "data.max_prompt_tokens=512", "algorithm=grpo",
        "engine=torch", "engine.params.slots=8", "train.tasks_per_step=1", "train.minibatches=1",
        "rollout.group_size=8", "rollout.max_concurrent=8", "rollout.max_response_tokens=200",
    ]  # fmt: skip
    train([*keys, "train.steps=1"])
    result = train([*keys, "train.steps=2"])  # continues: a row's tools are part of the data's fingerprint
    played = list(rollouts(result.run))
    assert [one.step for one in played] == [1] * 8 + [2] * 8
    assert [one.reward for one in played] == [by_hand(one) for one in played]
    assert {one.reward for one in played if one.step == 1} == {0.0, 1.0}
    prompt = played[0].rollout.segments[0].text
    assert json.dumps({"type": "function", "function": AREA}) in prompt and "from_row" not in prompt
    right = next(one.rollout for one in played if one.reward == 1)
    assert [one.text for one in right.tool_calls] == ["ok"] and right.task.schemas is not None
    taught = "".join(segment.text for segment in right.segments)
    assert taught.startswith(prompt + call(3)) and taught.endswith("<|user|>tok<|end|><|assistant|>.")
