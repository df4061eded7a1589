"""docs/plan.md is true: its figures are the code's, and its example is what the plan says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.planning.drawn import Expected
from ramet.planning.gpus import BANDWIDTH, COMPUTE, EXCHANGE, GPUS, MIB
from ramet.planning.memory import Inputs, estimate
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import machine_of
from ramet.planning.step_time import step_time
from ramet.planning.time_report import time_table

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
QWEN_7B = {  # facts of the published config.json
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip


def test_the_tables_have_the_figures_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\S+) \| (\S+) \| (\S+) \|$", PAGE, re.MULTILINE)
    assert {name: tuple(map(float, row)) for name, *row in rows} == {
        name: (gpu.memory / MIB, gpu.bandwidth, gpu.flops, gpu.link) for name, gpu in GPUS.items()
    }
    shares = re.findall(r"^\| of .+ \| (0\.\d+) \|", PAGE, re.MULTILINE)
    assert [float(share) for share in shares] == [COMPUTE, BANDWIDTH, EXCHANGE]


def test_the_example_is_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    ((experiment, shown),) = re.findall(r"^```plan (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    config = compose([f"experiment={experiment}", f"model.path={tmp_path}"], job="train").config
    plan = estimate(Inputs(config=config, shape=read_shape(config.model), machine=machine_of(config, "8xH100")))
    assert shown.splitlines() == time_table(step_time(plan, Expected()), Expected())
