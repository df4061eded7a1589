"""Launches of verl's SFT trainers: what becomes of their keys, and that the recipe plans as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from ramet.api import compose
from ramet.cli import main
from ramet.models.tiny import make_tiny_model

SINGLE_TURN = """
set -euo pipefail
GPUS=${GPUS:-2}
LR=2e-5
torchrun --standalone --nnodes=1 --nproc_per_node=$GPUS -m verl.trainer.fsdp_sft_trainer \\
    data.train_files=data/train.parquet data.val_files=data/test.parquet \\
    data.prompt_key=extra_info data.response_key=extra_info \\
    data.prompt_dict_keys="['question']" +data.response_dict_keys="['answer']" \\
    data.micro_batch_size_per_gpu=$((8 / GPUS)) data.train_batch_size=32 data.max_length=256 \\
    optim.lr=$LR model.partial_pretrain=model model.lora_rank=8 model.lora_alpha=16 \\
    trainer.project_name=sft trainer.experiment_name=gsm8k-sft trainer.default_local_dir=ckpts/gsm8k-sft \\
    trainer.total_epochs=2 trainer.logger=console trainer.default_hdfs_dir=null trainer.test_freq=5 \\
    ulysses_sequence_parallel_size=1 use_remove_padding=true 2>&1 | tee log.txt
"""
ENGINES = """
ARGS=(engine=fsdp optim=fsdp optim.lr=1e-5 optim.betas="[0.9,0.95]" optim.lr_warmup_steps_ratio=0.05
      optim.warmup_style=cosine engine.ulysses_sequence_parallel_size=2)
torchrun --nproc-per-node 4 --nnodes 2 -m verl.trainer.sft_trainer data.train_files=data/talks.parquet \\
    data.messages_key=talk data.max_length=128 data.max_token_len_per_gpu=64 model.path=model \\
    trainer.experiment_name=talks trainer.total_training_steps=40 trainer.save_freq=10 trainer.logger='["console"]' \\
    "${ARGS[@]}"
"""
TEMPLATE = (  # describes tools
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
EXPECTED: dict[str, dict[str, Any]] = {
    SINGLE_TURN: {
        "sft.data": ["data/train.parquet"], "sft.valid": ["data/test.parquet"], "sft.lr": 2e-5, "sft.epochs": 2.0,
        "sft.sequences_per_step": 32, "sft.max_microbatch_tokens": 1024, "sft.max_tokens": 256, "sft.lora_rank": 8,
        "sft.strategy": "fsdp", "cluster.policy_workers": 2, "model.path": "model", "model.dtype": "bfloat16",
        "sft.columns": {"prompt": "extra_info.question", "response": "extra_info.answer", "query": None,
                        "history": None},
        "sft.trainer.adam_beta2": 0.95, "sft.trainer.warmup_ratio": 0.1, "sft.trainer.lr_scheduler_type": "cosine",
        "sft.trainer.eval_steps": 5, "run.name": "gsm8k-sft", "run.root": "ckpts", "run.seed": 1,
    },
    ENGINES: {
        "sft.data": ["data/talks.parquet"], "sft.lr": 1e-5, "sft.sequences_per_step": 256, "sft.max_tokens": 128,
        "sft.max_microbatch_tokens": 128, "sft.columns": {"messages": "talk"}, "cluster.policy_workers": 8,
        "sft.strategy": "fsdp", "sft.trainer.max_steps": 40, "sft.trainer.save_steps": 10, "run.name": "talks",
        "sft.trainer.warmup_ratio": 0.05, "sft.trainer.adam_beta2": 0.95, "sft.trainer.lr_scheduler_type": "cosine",
    },
}  # fmt: skip


def value_at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    make_tiny_model(home / "model")
    (home / "model" / "chat_template.jinja").write_text(TEMPLATE)
    talk = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    rows = [
        {"prompt": talk[:1], "extra_info": {"question": "1 + 1?", "answer": str(n)}, "talk": talk} for n in range(600)
    ]
    (home / "data").mkdir()
    for name in ("train", "test", "talks"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), home / "data" / f"{name}.parquet")
    return home


@pytest.mark.parametrize(("script", "gpus"), [(SINGLE_TURN, 2), (ENGINES, 8)], ids=["single_turn", "engines"])
def test_a_launch_becomes_a_recipe_that_plans(
    script: str, gpus: int, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    name = f"run_{gpus}"
    Path(f"{name}.sh").write_text(script)
    assert main(["migrate", "verl", f"{name}.sh"]) == 0
    assert "To decide" not in capsys.readouterr().out
    config = compose([f"experiment={name}"], job="sft").config
    wrong = {
        key: (found, value)
        for key, value in EXPECTED[script].items()
        if json.dumps(found := value_at(config, key)) != json.dumps(value)
    }
    assert wrong == {}
    assert main(["sft", f"experiment={name}", "--dry-run", "--on", f"{gpus}x80GiB"]) == 0
    assert "600 from data/" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.custom_cls.path=mine.py"], "rows are not read by a class"),
        (["data.truncation=left"], "left: a row is cut at its end"),
        (["optim.lr_warmup_steps=10"], "10 steps: set sft.trainer.warmup_ratio"),
        (["trainer.save_freq=after_each_epoch"], "set sft.trainer.save_steps to the steps of a pass"),
        (["model.fsdp_config.cpu_offload=True"], "set sft.strategy=zero3_offload"),
        (["ulysses_sequence_parallel_size=2"], "a row is on one device"),
        (["optim.lr_scheduler=wsd"], "no schedule like wsd"),
        ([], "how many processes torchrun starts is not known"),
    ],
)
def test_what_has_no_counterpart_is_said(
    overrides: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = ["data.train_files=t.parquet", "model.partial_pretrain=m", *overrides]
    assert main(["migrate", "verl", "--out", str(tmp_path / "made.yaml"), "--", *launch]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("line", ["python sft_trainer.py --model_name x", "pip install sft_trainer"])
def test_the_word_alone_is_no_launch(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text(f"{line}\n")
    assert main(["migrate", "verl", str(tmp_path / "run.sh"), "--out", str(tmp_path / "made.yaml")]) == 1
    assert "no launch of verl in it" in capsys.readouterr().err


def test_sft_beside_rl_and_odd_values_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=x\npython -m verl.trainer.main_ppo a.b=1 c.d=2\n"
    )
    (tmp_path / "run.sh").write_text(script)
    assert main(["migrate", "verl", str(tmp_path / "run.sh"), "--out", str(tmp_path / "made.yaml")]) == 0
    assert "launches verl's SFT trainer too, which was not read" in capsys.readouterr().out
    launch = ["model.path=m", "data.messages_key=messages", "optim.betas=0.9", "engine.dtype=float32"]
    assert main(["migrate", "verl", "--out", str(tmp_path / "sft.yaml"), "--", *launch]) == 0
    said = capsys.readouterr().out
    assert "no data is named: set sft.data=[FILE]" in said and "not two numbers: set sft.trainer.adam_beta2" in said
    assert "dtype: float32" in (tmp_path / "sft.yaml").read_text()
