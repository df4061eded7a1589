"""The step `hermes` from `ramet sft` to `ramet train`: a model is taught the calls, and trains with real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import per_rollout
from ramet.api import sft, train
from ramet.models.tiny import make_tiny_model
from ramet.policy.batching.rows import rows_of
from ramet.rollout.record import read_records
from ramet.testing.doubles import echo_tool

TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{{ '<|user|>' + m.role[0] if m.role == 'tool' else '<|' + m.role + '|>' }}"
    "{{ m.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CALL = '<tool_call>{"name": "say", "arguments": {"text": "hi"}}</tool_call>'


@pytest.fixture(autouse=True)
def tool(register: Callable[..., None]) -> None:
    register("tools", "say", lambda: echo_tool("say"))
    register("rewards", "number", lambda: per_rollout(lambda rollout: float(rollout.id)))


def test_a_model_that_was_taught_the_calls_trains_two_steps_with_them(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", hidden=64, layers=2, intermediate=128)
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    turns = [("user", "q"), ("assistant", CALL), ("tool", "hi"), ("assistant", "hi")]
    row = {"messages": [{"role": role, "content": text} for role, text in turns]}
    (tmp_path / "traces.jsonl").write_text(f"{json.dumps(row)}\n" * 4)
    tasks = [{"prompt": "q", "answer": "hi", "id": name} for name in "ab"]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    common = [
        "rollout_step=hermes", f"model.chat_template={tmp_path}/template.jinja", "tools=[say]", "trackers=[jsonl]",
        f"run.root={tmp_path}/runs", "run.seed=1", "run.threads=1", "model.device=cpu",
    ]  # fmt: skip
    sft([
        *common, f"model.path={model}", f"sft.data=[{tmp_path}/traces.jsonl]", "run.name=sft", "sft.lr=5e-3",
        "sft.sequences_per_step=4", "sft.trainer.max_steps=60", "sft.trainer.warmup_ratio=0",
        "sft.trainer.lr_scheduler_type=constant_with_warmup",
    ])  # fmt: skip
    train([
        *common, f"model.path={tmp_path}/runs/sft/model", f"data.train=[{tmp_path}/tasks.jsonl]", "run.name=rl",
        "algorithm=grpo", "engine=torch", "engine.params.slots=4", "rewards=[number]", "train.steps=2",
        "train.tasks_per_step=1", "train.minibatches=1", "rollout.group_size=4", "rollout.max_concurrent=4",
        "rollout.max_response_tokens=200",
        "data.max_prompt_tokens=64", "data.columns.id=id",
    ])  # fmt: skip
    files = sorted((tmp_path / "runs/rl/rollouts").glob("step_*"))
    records = [record for file in files for record in read_records(file)]
    assert len(files) == len(records) == 2
    rollouts = [scored.rollout for record in records for scored in record.group.rollouts]
    assert [one.text for rollout in rollouts for one in rollout.tool_calls].count("hi") >= 4
    for record in records:
        for row in rows_of([record.group]):
            rollout = next(one.rollout for one in record.group.rollouts if one.rollout.id == row.rollout_id)
            spans = [(int(segment.is_sampled), len(segment)) for segment in rollout.segments[1:]]
            assert row.mask.tolist() == [one for sampled, n in spans for one in [sampled] * n]
            advantages = record.advantages[rollout.id]
            assert [bool(a) for a in advantages] <= [bool(m) for m in row.mask]
    asked = next(rollout for rollout in rollouts if rollout.tool_calls)
    inserted = [segment.text for segment in asked.segments[1:] if not segment.is_sampled]
    assert inserted[0] == "<|user|>thi<|end|><|assistant|>"
    assert asked.segments[1].text == CALL and asked.segments[1].token_ids[-1] == asked.segments[-1].token_ids[-1]
