"""The section of `ramet sft` (`ramet.config.schema`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ramet.config.choices import Malformed, Strategy
from ramet.types.option import AT_LEAST_1, Allowed, Resume, option

NUMBERS, SAFE = Resume.NUMBERS, Resume.SAFE
TRAINER: dict[str, Allowed | None] = {
    "lr_scheduler_type": Allowed(choices=("cosine", "linear", "constant_with_warmup")),
    "warmup_ratio": Allowed(minimum=0, maximum=1),
    "weight_decay": Allowed(minimum=0),
    "adam_beta2": Allowed(minimum=0, maximum=1),
    "max_grad_norm": Allowed(above=0),
    "max_steps": AT_LEAST_1,
    "logging_steps": AT_LEAST_1,
    "save_steps": AT_LEAST_1,
    "eval_steps": AT_LEAST_1,
    "early_stopping_patience": AT_LEAST_1,
}
TRAINER_DEFAULTS = {
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
    "weight_decay": 0.0,
    "adam_beta2": 0.999,
    "max_grad_norm": 1.0,
    "max_steps": None,
    "logging_steps": 10,
    "save_steps": 500,
    "eval_steps": None,
    "early_stopping_patience": None,
}
# Names of LLaMA-Factory's `dataset_info.json`.
FORMATTINGS = ("alpaca", "sharegpt", "openai")
COLUMNS = ("prompt", "query", "response", "history", "messages", "system", "tools")
TAGS = ("role_tag", "content_tag", "user_tag", "assistant_tag", "observation_tag", "function_tag", "system_tag")
MIXING = ("concat", "interleave_under", "interleave_over", "interleave_once")
# fmt: off


@dataclass(kw_only=True, slots=True)
class SftConfig:
    data: list[str] = option(
        factory=list, resume=NUMBERS,
        help="files of traces (conversations); DIR/dataset_info.json:NAME, or hf://datasets/OWNER/NAME/FILE",
        aka="data.train_files train_files dataset dataset_name data.train data.path train_file"
    )
    columns: dict[str, str | None] = option(
        factory=dict, resume=NUMBERS, entries=dict.fromkeys(COLUMNS),
        help="names of the columns prompt, query, response, history, messages, system, tools; null: not read"
    )
    tags: dict[str, str] = option(
        factory=dict, resume=NUMBERS, entries=dict.fromkeys(TAGS),
        help="keys and roles of messages; role_tag, content_tag, user_tag, assistant_tag, observation_tag, "
        "function_tag, system_tag"
    )
    mixing: dict[str, Any] = option(
        factory=dict, resume=NUMBERS,
        help="how the entries of sft.data are mixed; strategy: concat, interleave_under, interleave_over, "
        "interleave_once; probs: a share for each entry",
        entries={"strategy": Allowed(choices=MIXING), "probs": None},
        aka={"strategy": "mix_strategy", "probs": "interleave_probs"}
    )
    max_samples: int | None = option(
        None, "number of first rows that are read of each file; null: all", minimum=1,
        resume=NUMBERS,
        aka="max_samples"
    )
    valid: list[str] = option(
        factory=list, resume=NUMBERS, help="held-out files, as sft.data; their loss is measured, and chooses the model",
        aka="data.val_files val_files eval_dataset"
    )
    valid_share: float = option(
        0.0, "share of the rows of sft.data that is held out instead; drawn by run.seed, of different rows", minimum=0,
        below=1,
        resume=NUMBERS, aka="val_size"
    )
    malformed: Malformed = option(
        Malformed.ERROR, "traces that break the format; error: the run does not start; skip: left out; keep: trained "
        "on",
        resume=NUMBERS
    )
    mask_tags: list[str] = option(
        factory=list, help="tags of further tools, whose results are not trained on", resume=NUMBERS
    )
    mask_history: bool = option(
        False, "train only the last message of a row", resume=NUMBERS, aka="mask_history"
    )
    strategy: Strategy = option(
        Strategy.NONE, "sharding over cluster.policy_workers processes; none: one process; zero…: DeepSpeed",
        resume=NUMBERS, aka="deepspeed fsdp zero_stage"
    )
    lora_rank: int = option(
        0, "rank of LoRA adapters; 0: all weights are trained; over 0: an adapter on every linear layer", minimum=0,
        resume=NUMBERS, aka="lora_r lora_rank use_peft model.lora_rank finetuning_type"
    )
    epochs: float = option(
        3.0, "passes over the data", above=0, resume=NUMBERS, aka="total_epochs num_train_epochs max_epochs num_epochs"
    )
    sequences_per_step: int = option(
        16, "sequences per optimiser step, over all workers", minimum=1, resume=NUMBERS,
        aka="train_batch_size batch_size per_device_train_batch_size"
    )
    max_microbatch_tokens: int = option(
        16384, "tokens per forward pass on one GPU; at least sft.max_tokens; `ramet train` reads "
        "policy.max_microbatch_tokens instead", minimum=1, resume=NUMBERS,
        aka="per_device_train_batch_size micro_batch_size_per_gpu micro_train_batch_size max_tokens_per_gpu "
            "gradient_accumulation_steps accumulate packing"
    )
    lr: float = option(7e-6, "learning rate of AdamW", minimum=0, resume=NUMBERS, aka="lr learning_rate optim.lr")
    trainer: dict[str, Any] = option(
        factory=dict, entries=TRAINER, resume={"logging_steps": SAFE, "save_steps": SAFE},
        help="further arguments of transformers.TrainingArguments; lr_scheduler_type (cosine), warmup_ratio (0.1), "
        "weight_decay (0.0), adam_beta2 (0.999), max_grad_norm (1.0), max_steps (instead of epochs), logging_steps "
        "(10), save_steps (500), eval_steps (null: after each pass); early_stopping_patience: evaluations without a "
        "lower held-out loss after which training ends (null: none)",
        aka={
            "adam_beta2": "adam_beta2",
            "lr_scheduler_type": "lr_scheduler_type lr_scheduler",
            "warmup_ratio": "warmup_steps lr_warmup_steps lr_warmup_ratio lr_warmup_steps_ratio",
            "max_grad_norm": "clip_grad max_norm gradient_clipping",
            "max_steps": "total_training_steps total_steps steps",
            "save_steps": "save_freq save_steps",
            "logging_steps": "logging_steps",
            "eval_steps": "eval_steps eval_strategy evaluation_strategy",
            "early_stopping_patience": "early_stopping_steps early_stopping_patience",
        }
    )
    max_tokens: int = option(
        4096, "longest row, in tokens; longer ones are left out and counted, or cut (sft.truncate)", minimum=1,
        resume=NUMBERS,
        aka="max_length max_seq_length max_seq_len max_len cutoff_len"
    )

    truncate: bool = option(
        False, "cut longer rows at sft.max_tokens; false: they are left out", resume=NUMBERS,
        aka="truncation truncation_mode"
    )

    @property
    def holds_out(self) -> bool:
        """Whether there is a held-out loss."""
        return bool(self.valid or self.valid_share)

    def trainer_options(self) -> dict[str, Any]:
        """Return `trainer` with the defaults of what it does not name."""
        return {**TRAINER_DEFAULTS, **self.trainer}
