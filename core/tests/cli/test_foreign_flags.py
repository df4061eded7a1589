from __future__ import annotations

import pytest

from ramet.cli import main

FILE = "a file of settings is"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (
            ["train", "--learning-rate", "1e-5"],
            "--learning-rate: keys are written without dashes. Did you mean policy.lr=",
        ),
        (["sft", "--learning_rate=1e-5"], "Did you mean sft.lr="),
        (["train", "--model_name_or_path", "m"], "Did you mean model.path="),
        (["train", "--per_device_train_batch_size", "4"], "Did you mean train.tasks_per_step="),
        (["sft", "--template", "qwen"], "LLaMA-Factory's key, without counterpart"),
        (["train", "--dry_run"], "Did you mean '--dry-run'?"),
        (["train", "--bogus"], "unrecognized arguments: --bogus; see `ramet train --help`"),
        (["train", "--config", "my.yaml"], f"--config: {FILE} chosen as experiment=NAME"),
        (["train", "config.yaml"], f"cannot read 'config.yaml': {FILE} an experiment"),
        (["train", "dapo"], "cannot read 'dapo': write algorithm=dapo"),
        (["train", "engine=sglang"], "engine: no 'sglang'. engine=openai measures a model behind such a server"),
        (["train", "cluster=slurm"], "cluster: no 'slurm'. cluster=ray connects processes"),
        (["train", "trackers=[mlflow]"], "no tracker 'mlflow'. wandb, tensorboard and jsonl"),
        (["train", "algorithm=GRPO"], "algorithm: no 'GRPO'. Did you mean 'grpo'?"),
        (["train", "lora_rank=8"], "lora_rank: no such key. Did you mean 'policy.lora_rank'?\n"),
        (["train", "wandb.api_key=x"], "put it into the environment variable WANDB_API_KEY"),
    ],
)
def test_what_other_systems_call_so_is_answered_with_what_serves_here(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
):
    assert main(arguments) == 1
    assert hint in capsys.readouterr().err
