"""LLaMA-Factory's YAML and TRL's scripts become recipes: expectations are written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.api import compose
from ramet.cli import main
from ramet.config.foreign import table
from ramet.errors import ConfigError
from ramet.migrate import llamafactory, trl
from ramet.migrate.job import migrate
from ramet.migrate.script_trl import TrlScript
from ramet.migrate.training_arguments import deepspeed_strategy
from ramet.migrate.translation import Fate, Translation

SFT_YAML = """
model_name_or_path: /models/base
stage: sft
do_train: true
finetuning_type: full
deepspeed: ds/ds_z2_config.json
dataset_dir: data
dataset: mine, more
template: qwen
cutoff_len: 15000
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 7.0e-6
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
logging_steps: 10
save_steps: 2000
output_dir: /out/first model
plot_loss: true
val_size: 0.1
unknown_key: 4
"""
SFT_BY_HAND = {
    "model.path": "/models/base", "model.dtype": "bfloat16", "sft.max_tokens": 15000, "sft.sequences_per_step": 16,
    "sft.lr": 7e-6, "sft.epochs": 3.0, "sft.strategy": "zero3", "cluster.policy_workers": 8,
    "sft.trainer.lr_scheduler_type": "cosine", "sft.trainer.warmup_ratio": 0.1, "sft.trainer.logging_steps": 10,
    "sft.trainer.save_steps": 2000, "run.name": "first-model", "run.root": "/out", "run.seed": 42,
    "cluster.timeout_s": 180_000_000, "sft.max_microbatch_tokens": 15000, "trackers": ["console", "jsonl"],
}  # fmt: skip
GRPO_SCRIPT = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

NAME = "base"
BATCH = 4 * 2
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
dataset = dataset.map(lambda row: row)

def brevity(completions, **kwargs):
    return [-len(one) for one in completions]

args = GRPOConfig(
    output_dir=f"out/{NAME}", per_device_train_batch_size=BATCH, gradient_accumulation_steps=4, num_generations=8,
    steps_per_generation=8, max_steps=100, learning_rate=2e-6, beta=0.04, epsilon_high=0.28, loss_type="dr_grpo",
    scale_rewards=False, max_completion_length=512, use_vllm=True, temperature=0.9, seed=int("3"), save_steps=20,
)
trainer = GRPOTrainer(model=NAME, args=args, train_dataset=dataset, reward_funcs=[accuracy_reward])
trainer.train()
"""
GRPO_BY_HAND = {
    "model.path": "base", "data.train": ["rows.jsonl"], "train.tasks_per_step": 16, "rollout.group_size": 8,
    "train.minibatches": 2, "train.steps": 50, "train.save_every": 10, "policy.lr": 2e-6, "train.kl_coef": 0.04,
    "policy_loss.params.clip_low": 0.2, "policy_loss.params.clip_high": 0.28, "policy_loss.params.dual_clip": None,
    "train.loss_aggregation": "seq-mean-token-sum-norm", "advantage.params.normalize_std": False,
    "rollout.max_response_tokens": 512, "engine.name": "vllm", "train.tis_cap": 2.0, "rollout.temperature": 0.9,
    "policy.weight_decay": 0.0, "policy.schedule": "linear", "cluster.policy_workers": 2, "cluster.name": "ray",
    "run.name": "base", "run.root": "out",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def value_at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


def why(made: Translation, key: str) -> str:
    return " ".join(note.why for note in made.notes if note.key == key)


def write_sft(folder: Path) -> Path:
    """LLaMA-Factory's file with a DeepSpeed file whose name and stage differ, and a dataset_info.json."""
    (folder / "ds").mkdir()
    (folder / "ds" / "ds_z2_config.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    (folder / "data").mkdir()
    info = {"mine": {"file_name": "a.json", "formatting": "sharegpt"}, "more": {"file_name": "b.json"}}
    (folder / "data" / "dataset_info.json").write_text(json.dumps(info))
    path = folder / "sft.yaml"
    path.write_text(SFT_YAML)
    return path


def test_a_yaml_of_llamafactory_becomes_a_recipe_that_composes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_sft(folder)
    assert main(["migrate", "llamafactory", str(path), "--gpus", "8"]) == 0
    assert capsys.readouterr().out.endswith("try it: ramet sft experiment=sft --dry-run\n")
    config = compose(["experiment=sft"], job="sft").config
    options = {key: value_at(config, key) for key in SFT_BY_HAND}
    assert options == SFT_BY_HAND
    assert "# Needs: ramet[train,deepspeed]\n" in Path("hydra_configs/experiment/sft.yaml").read_text()
    assert config.sft.data == [f"{folder / 'data' / 'dataset_info.json'}:{name}" for name in ("mine", "more")]


def test_what_llamafactory_has_and_ramet_has_not_is_listed(folder: Path) -> None:
    made = migrate("llamafactory", write_sft(folder))
    assert why(made, "val_size") == "sft.valid_share=0.1"
    assert why(made, "unknown_key") == "not among the keys of LLaMA-Factory that are translated"
    assert made.values["sft.truncate"] is True
    assert "b.json: no such file" in why(made, "dataset")
    assert "give --gpus" in why(made, "per_device_train_batch_size")  # 1 is written
    assert made.values["sft.sequences_per_step"] == 2


def test_a_set_of_the_hub_is_named_by_its_entry_and_not_fetched(folder: Path) -> None:
    path = write_sft(folder)
    info = folder / "data" / "dataset_info.json"
    info.write_text(json.dumps({"mine": {"hf_hub_url": "owner/rows"}, "more": {"hf_hub_url": "o/n", "ranking": True}}))
    made = migrate("llamafactory", path, gpus=1)
    assert made.values["sft.data"] == [f"{info}:mine", f"{info}:more"]
    assert [note.why for note in made.notes if note.fate is Fate.OPEN] == [
        "more: ranking: true; `ramet sft` trains on conversations, not on ranking rows"
    ]


def test_a_stage_other_than_sft_is_refused(folder: Path) -> None:
    path = folder / "dpo.yaml"
    path.write_text("stage: dpo\n")
    with pytest.raises(ConfigError, match="stage=dpo: only stage=sft is translated"):
        migrate("llamafactory", path)


def test_warm_up_in_steps_is_a_share_here() -> None:
    made = llamafactory.translate({"warmup_steps": 30, "max_steps": 300, "warmup_ratio": 0.5}, folder=Path())
    assert made.values["sft.trainer.warmup_ratio"] == 0.1 and made.values["sft.trainer.max_steps"] == 300
    unknown = llamafactory.translate({"warmup_steps": 30}, folder=Path())
    assert {note.fate for note in unknown.notes if note.key == "warmup_steps"} == {Fate.OPEN}


def test_a_constant_rate_has_no_warm_up_and_a_pack_is_no_row() -> None:
    """In transformers `constant` reads no warm-up; with packing a row of a batch is a pack of `cutoff_len` tokens."""
    given = {"lr_scheduler_type": "constant", "warmup_ratio": 0.1, "packing": True}
    made = llamafactory.translate(given, folder=Path(), gpus=1)
    assert made.values["sft.trainer.warmup_ratio"] == 0.0 and "no warm-up" in why(made, "warmup_ratio")
    assert {note.fate for note in made.notes if note.key == "packing"} >= {Fate.OPEN}
    script = TrlScript(job="train", values={"lr_scheduler_type": "constant", "warmup_steps": 10, "max_steps": 50})
    assert "policy.warmup_steps" not in trl.translate(script, folder=Path(), gpus=1).values


ALTERED = """
from trl import GRPOConfig, GRPOTrainer
settings = {"beta": 0.1}
settings["beta"] = 0.2
class MyConfig(GRPOConfig):
    beta: float = 0.3
rate = 1e-6
def train(rate):
    config = GRPOConfig(learning_rate=rate, temperature=0.7, **settings)
    if rate > 1e-6:
        config.temperature = 0.9
    config.epsilon = 0.1
    config.epsilon = 0.3
    config.num_generations = 4
    GRPOTrainer("base", [len], config, load_dataset("a/b"))
train(2e-6)
"""


def test_what_is_changed_afterwards_is_not_known(folder: Path) -> None:
    path = folder / "altered.py"
    path.write_text(ALTERED)
    made = migrate("trl", path, gpus=1)
    assert sorted(made.unread) == ["epsilon", "learning_rate", "temperature"]
    assert "`MyConfig` is a GRPOConfig of the script's own, whose fields are not read" in made.remarks
    assert "`**settings` is not read" in made.remarks and made.values["rollout.group_size"] == 4


@pytest.mark.parametrize(
    ("given", "strategy"),
    [
        ({"zero_optimization": {"stage": 2}}, "zero2"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "zero3_offload"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}}}, "zero3"),
        ("examples/deepspeed/ds_z3_offload_config.json", "zero3_offload"),
        ("examples/deepspeed/ds_z0_config.json", "zero0"),
        ("settings.json", None),
        ({"zero_optimization": {"stage": "auto"}}, None),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, "zero2"),
    ],
)
def test_the_stage_of_deepspeed_is_in_the_file_or_else_in_its_name(given: Any, strategy: str | None) -> None:
    assert deepspeed_strategy(given, Path())[0] == strategy


def test_a_script_of_trl_becomes_a_recipe_that_composes(folder: Path) -> None:
    path = folder / "grpo.py"
    path.write_text(GRPO_SCRIPT)
    assert main(["migrate", "trl", str(path), "--gpus", "2"]) == 0
    config = compose(["experiment=grpo"]).config
    assert {key: value_at(config, key) for key in GRPO_BY_HAND} == GRPO_BY_HAND
    assert list(config.rewards) == ["math"] and config.cluster.colocate
    made = migrate("trl", path, gpus=2)
    assert made.unread == {"seed": "`int('3')` is known only when the script runs"}


def test_a_function_of_the_script_is_to_be_written_for_one_answer(folder: Path) -> None:
    path = folder / "grpo.py"
    path.write_text(GRPO_SCRIPT.replace("reward_funcs=[accuracy_reward]", "reward_funcs=brevity"))
    assert "brevity: a function of lists in TRL" in why(migrate("trl", path), "reward_funcs")


def test_sft_of_trl(folder: Path) -> None:
    path = folder / "sft.py"
    path.write_text(
        'from trl import SFTConfig, SFTTrainer\nfrom datasets import load_dataset\nrows = load_dataset("owner/rows")\n'
        'SFTTrainer("base", train_dataset=rows["train"], args=SFTConfig("out", max_length=2048, packing=True))\n'
    )
    made = migrate("trl", path, gpus=1)
    values = made.values
    assert (values["sft.max_tokens"], values["sft.lr"], values["model.path"]) == (2048, 2e-5, "base")
    assert values["sft.data"] == ["owner/rows:train"] and "name its columns in sft.columns" in why(
        made, "train_dataset"
    )
    assert values["sft.sequences_per_step"] == 8 and values["sft.trainer.lr_scheduler_type"] == "linear"


CHANGED = """
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
batch = 4
batch *= 2
for rate in (1e-6, 2e-6):
    pass
peft = None
if batch:
    peft = LoraConfig(r=8)
args = GRPOConfig(learning_rate=rate, per_device_train_batch_size=batch, delta=2.5, eval_strategy="steps", eval_steps=4)
args = GRPOConfig(learning_rate=1.0)
GRPOTrainer("base", [len], args, load_dataset(path="a/b"), load_dataset("c/d"), peft_config=peft)
"""


def test_a_name_that_is_given_several_values_is_not_known(folder: Path) -> None:
    path = folder / "changed.py"
    path.write_text(CHANGED)
    made = migrate("trl", path, gpus=1)
    assert [*made.unread] == ["learning_rate", "per_device_train_batch_size", "peft_config"]
    assert "GRPOConfig is called 2 times, and the first call was read" in made.remarks
    keys = ("policy_loss.params.dual_clip", "data.train", "data.valid", "train.eval_every")
    assert [made.values[key] for key in keys] == [2.5, ["a/b:train"], ["c/d:train"], 4]


def test_options_of_an_adapter_that_are_fixed_here_are_named(folder: Path) -> None:
    adapter = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.1, "target_modules": ["q_proj"]}
    made = trl.translate(TrlScript(job="train", values={"peft_config": adapter}), folder=folder)
    assert made.values["policy.lora_rank"] == 8 and "lora_dropout, target_modules: " in why(made, "peft_config")


TRL_BY_OPTIONS = """
import argparse, os
from dataclasses import dataclass, field
from datasets import Dataset, load_dataset
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model-name", default="base")
parser.add_argument("-n", "--num-generations", type=int, default=4)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--seed", type=int)
args = parser.parse_args()

@dataclass
class Rates:
    lr: float = field(default=3e-6, metadata={"help": "rate"})
    beta: float = 0.02

rates = Rates()
common = dict(max_steps=10, temperature=0.7)

def main():
    rows = load_dataset("openai/gsm8k", "main")
    config = GRPOConfig(
        "out/options", learning_rate=rates.lr, beta=rates.beta, num_generations=args.num_generations, bf16=args.bf16,
        seed=args.seed, per_device_train_batch_size=int(os.environ.get("BATCH", 8)), gradient_accumulation_steps=1,
        report_to=os.getenv("TRACKER", "none"), **common, **vars(args),
    )
    config.max_completion_length = 128
    config.loss_type = "grpo" if args.bf16 else "bnpo"
    GRPOTrainer(args.model_name, reward_funcs="accuracy_reward", args=config, train_dataset=rows["train"]).train()
"""


def test_options_of_a_script_have_their_defaults(folder: Path) -> None:
    path = folder / "options.py"
    path.write_text(TRL_BY_OPTIONS)
    made = migrate("trl", path, gpus=1)
    values = made.values
    assert {key: values[key] for key in ("model.path", "data.train", "policy.lr", "train.kl_coef", "train.steps")} == {
        "model.path": "base", "data.train": ["openai/gsm8k:main/train"], "policy.lr": 3e-6, "train.kl_coef": 0.02,
        "train.steps": 10,
    }  # fmt: skip
    assert (values["rollout.group_size"], values["rollout.temperature"], values["model.dtype"]) == (4, 0.7, "float32")
    assert values["rollout.max_response_tokens"] == 128 and values["trackers"] == ["console", "jsonl"]
    assert [*made.unread] == ["seed", "per_device_train_batch_size", "loss_type"]
    assert "`**vars(args)` is not read" in made.remarks
    assert "`args.num_generations` is an option of the script: its default was taken" in made.remarks


def test_a_config_that_is_filled_by_the_command_line_is_reported(folder: Path) -> None:
    path = folder / "cli.py"
    path.write_text("from trl import GRPOConfig, GRPOTrainer, TrlParser\n_, args = TrlParser((GRPOConfig,)).parse()\n"
                    "GRPOTrainer(model='base', args=args, reward_funcs=[len])\n")  # fmt: skip
    assert "GRPOConfig is filled when the script runs, as by its command line: TRL's own values were taken" in (
        migrate("trl", path, gpus=1).remarks
    )


@pytest.mark.parametrize(
    ("call", "data"),
    [
        ('load_dataset("json", data_files={"train": "a.jsonl", "test": "b.jsonl"}, split="test")', ["b.jsonl"]),
        ('load_dataset("parquet", data_files=["a.parquet", "b.parquet"])["train"]', ["a.parquet", "b.parquet"]),
        ('Dataset.from_json("a.jsonl").map(len)', ["a.jsonl"]),
        ('load_dataset("owner/rows", split="train[:10%]").shuffle(seed=1)', ["owner/rows:train"]),
        ('load_dataset("json", data_files={"train": "a.jsonl", "test": "b.jsonl"}, split="train[:9]")', ["a.jsonl"]),
        ('load_dataset("owner/rows", "sub", split=SPLIT)', ["owner/rows:sub/test"]),
        ('load_dataset("owner/rows")["validation"]', ["owner/rows:validation"]),
    ],
)
def test_rows_of_a_script_are_its_files_and_splits(call: str, data: list[str], folder: Path) -> None:
    path = folder / "rows.py"
    path.write_text(
        f"from trl import SFTTrainer\nSPLIT = 'test'\nrows = {call}\nSFTTrainer('base', train_dataset=rows)\n"
    )
    assert migrate("trl", path, gpus=1).values["sft.data"] == data


def test_a_script_without_settings_is_refused(folder: Path) -> None:
    path = folder / "none.py"
    path.write_text("args = parser.parse_args()\n")
    with pytest.raises(ConfigError, match=r"none\.py: none of these is called: GRPOConfig, GRPOTrainer"):
        migrate("trl", path)


@pytest.mark.parametrize("key", [key for key in table("llamafactory") if key not in ("stage", "deepspeed", "dataset")])
def test_no_key_of_llamafactory_is_lost(key: str) -> None:
    made = llamafactory.translate({key: 1}, folder=Path())
    assert [note.why for note in made.notes if note.key == key]


def test_a_name_for_trackers_is_written_where_one_takes_it(folder: Path) -> None:
    """`wandb.name` without the tracker is refused by the job."""
    without = llamafactory.translate({"run_name": "x"}, folder=folder)
    assert "wandb.name" not in without.values and {n.fate for n in without.notes if n.key == "run_name"} == {
        Fate.IGNORED
    }
    assert llamafactory.translate({"run_name": "x", "report_to": "wandb"}, folder=folder).values["wandb.name"] == "x"


@pytest.mark.parametrize("job", ["train", "sft"])
@pytest.mark.parametrize("key", [key for key in table("trl") if not key.endswith("_dataset")])
def test_no_key_of_trl_is_lost(key: str, job: str) -> None:
    values = {"peft_config": {"r": 8}, "reward_weights": [1.0], "deepspeed": "z2.json"}
    made = trl.translate(TrlScript(job=job, values={key: values.get(key, 1)}), folder=Path())
    assert [note.why for note in made.notes if note.key == key]
