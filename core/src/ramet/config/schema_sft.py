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
}
# fmt: off


@dataclass(kw_only=True, slots=True)
class SftConfig:
    data: list[str] = option(
        factory=list, help="JSON or parquet, sharegpt rows", resume=NUMBERS,
        aka="data.train_files train_files dataset dataset_name data.train data.path train_file"
    )
    malformed: Malformed = option(
        Malformed.ERROR, "traces that break the format; skip: left out; keep: trained on", resume=NUMBERS
    )
    mask_tags: list[str] = option(factory=list, help="tags of further tools whose results are masked", resume=NUMBERS)
    strategy: Strategy = option(
        Strategy.NONE, "over cluster.policy_workers processes", resume=NUMBERS, aka="deepspeed fsdp zero_stage"
    )
    epochs: float = option(3.0, above=0, resume=NUMBERS, aka="total_epochs num_train_epochs max_epochs num_epochs")
    sequences_per_step: int = option(
        16, "of an optimiser step, over all workers", minimum=1, resume=NUMBERS,
        aka="train_batch_size batch_size per_device_train_batch_size"
    )
    max_microbatch_tokens: int = option(
        16384, "tokens per forward pass on one device, at least sft.max_tokens; `ramet train` reads "
        "policy.max_microbatch_tokens instead", minimum=1, resume=NUMBERS,
        aka="per_device_train_batch_size micro_batch_size_per_gpu micro_train_batch_size max_tokens_per_gpu "
            "gradient_accumulation_steps accumulate packing"
    )
    lr: float = option(7e-6, minimum=0, resume=NUMBERS, aka="lr learning_rate optim.lr")
    trainer: dict[str, Any] = option(
        factory=dict, entries=TRAINER, resume={"logging_steps": SAFE, "save_steps": SAFE},
        help="arguments of transformers.TrainingArguments: lr_scheduler_type (cosine), warmup_ratio (0.1), "
        "weight_decay (0.0), adam_beta2 (0.999), max_grad_norm (1.0), max_steps (instead of epochs), "
        "logging_steps (10), save_steps (500)",
        aka={
            "adam_beta2": "adam_beta2",
            "lr_scheduler_type": "lr_scheduler_type lr_scheduler",
            "warmup_ratio": "warmup_steps lr_warmup_steps lr_warmup_ratio lr_warmup_steps_ratio",
            "max_grad_norm": "clip_grad max_norm gradient_clipping",
            "max_steps": "total_training_steps total_steps steps",
            "save_steps": "save_freq save_steps",
            "logging_steps": "logging_steps",
        }
    )
    max_tokens: int = option(
        4096, "longer rows are left out and counted", minimum=1, resume=NUMBERS,
        aka="max_length max_seq_length max_seq_len max_len cutoff_len"
    )

    def trainer_options(self) -> dict[str, Any]:
        """Return `trainer` with the defaults of what it does not name."""
        return {**TRAINER_DEFAULTS, **self.trainer}
