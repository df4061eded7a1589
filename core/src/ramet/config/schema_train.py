"""The sections of `ramet train`: its steps, and the policy that they update (`ramet.config.schema`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ramet.config.choices import (
    BudgetKind,
    KlEstimator,
    LossAggregation,
    MinibatchOf,
    Offload,
    OldLogprobs,
    Schedule,
    SharePrefixes,
)
from ramet.types.option import SAMPLING, Allowed, Resume, option

NUMBERS, SAFE, ORDER, SCHEDULE = Resume.NUMBERS, Resume.SAFE, Resume.ORDER, Resume.SCHEDULE
MEMORY, VALIDATION = Resume.MEMORY, Resume.VALIDATION
OFF_POLICY: dict[str, Allowed | None] = {
    "tis_level": Allowed(choices=("token", "sequence")),
    "token_band": None,
    "sequence_band": None,
    "negative_gap_max": Allowed(above=0),
}
# fmt: off


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    steps: int | None = option(
        None, "number of training steps; null: one pass over the data", minimum=1, resume=SCHEDULE,
        aka="total_epochs total_training_steps num_train_epochs max_steps num_episodes total_steps"
    )
    tasks_per_step: int = option(
        64, "prompts (tasks) per step; each has rollout.group_size rollouts", minimum=1, resume=ORDER,
        aka="train_batch_size per_device_train_batch_size rollout_batch_size gen_batch_size batch_size"
    )
    resample_rounds: int = option(
        0, "rounds in which groups of equal rewards are replaced by other tasks (dynamic sampling)", minimum=0,
        resume=NUMBERS, aka="filter_groups.enable filter_groups.max_num_gen_batches dynamic_filtering"
    )
    budget: BudgetKind = option(
        BudgetKind.AUTO, "how a step's rollouts are spread over tasks; contrast: to where different outcomes are "
        "expected, per sampled token; random: its control; auto: as the branch policy says, otherwise uniform",
        resume=NUMBERS
    )
    budget_tasks: int | None = option(
        None, "tasks drawn per step, of which train.budget chooses; null: train.tasks_per_step", minimum=1,
        resume=ORDER
    )
    minibatches: int = option(
        1, "optimiser steps per pass over a step's rollouts", minimum=1, resume=NUMBERS,
        aka="ppo_mini_batch_size mini_batch_size num_mini_batches steps_per_generation"
    )
    minibatch_of: MinibatchOf = option(
        MinibatchOf.AUTO, "what mini-batches are drawn from; auto: groups where policy.share_prefixes shares, else "
        "rollouts",
        resume=NUMBERS
    )
    epochs: int = option(
        1, "passes over a step's rollouts", minimum=1, resume=NUMBERS, aka="ppo_epochs num_iterations num_ppo_epochs"
    )
    old_logprobs: OldLogprobs = option(
        OldLogprobs.TRAINER, "log-probabilities before the update; trainer: recomputed once per step; engine: from "
        "sampling, one forward pass less", resume=NUMBERS
    )
    loss_aggregation: LossAggregation = option(
        LossAggregation.TOKEN_MEAN, "mean of the token losses; token-mean: over all tokens; seq-mean-…: within "
        "rollouts first; …-norm: sums, divided by rollout.max_response_tokens", resume=NUMBERS,
        aka="loss_agg_mode loss_type"
    )
    tis_cap: float | None = option(
        2.0, "largest weight pi_old / mu (trainer / engine probability) of a token; null: all weigh 1", above=0,
        resume=NUMBERS,
        aka="tis_imp_ratio_cap vllm_importance_sampling_cap"
    )
    off_policy: dict[str, Any] = option(
        factory=dict, resume=NUMBERS, entries=OFF_POLICY,
        help="further weights for the gap of engine and trainer; tis_level: token or sequence (one weight a rollout); "
        "token_band, sequence_band: allowed [low, high] of pi_old / mu of a token (IcePop: [0.5, 5.0]) and of its "
        "geometric mean in a rollout; negative_gap_max: largest mean of log(mu / pi), in nats, of a rollout with a "
        "negative advantage (DeepSeek-V3.2); what is outside weighs 0"
    )
    kl_coef: float = option(
        0.0, "weight of the KL to the reference model; 0: it is not loaded", minimum=0, resume=NUMBERS,
        aka="kl_coef beta kl_loss_coef use_kl_loss init_kl_coef"
    )
    kl_estimator: KlEstimator = option(
        KlEstimator.K3, "estimate of the KL in the loss; k1-reward: k1, subtracted from the returns of tokens",
        resume=NUMBERS,
        aka="kl_loss_type kl_penalty kl_estimator use_kl_in_reward"
    )
    kl_target: float | None = option(
        None, "KL, in nats, that train.kl_coef is adapted to; null: kl_coef is fixed", above=0, resume=NUMBERS
    )
    teacher: str | None = option(
        None, "folder of a frozen model, or OWNER/NAME of the hub, that scores sampled tokens for an advantage "
        "(distillation); null: the policy does", resume=NUMBERS,
        aka="teacher_model teacher_model_path teacher_model_name_or_path"
    )
    entropy_coef: float = option(
        0.0, "weight of the entropy bonus in the loss; 0: none", resume=NUMBERS,
        aka="entropy_coeff entropy_loss_coef ent_coef"
    )
    eval_every: int = option(
        0, "steps between validations; 0: none", minimum=0, resume=SAFE,
        aka="test_freq eval_steps eval_freq"
    )
    eval_first: bool = option(
        False, "validate before the first step too", resume=NUMBERS, aka="val_before_train eval_on_start"
    )
    eval_k: int = option(1, "rollouts per task of a validation", minimum=1, resume=VALIDATION, aka="val_kwargs.n")
    eval_sampling: dict[str, float] = option(
        factory=dict, help="sampling of validations, over evaluate.sampling; without: tasks of files are greedy",
        resume=VALIDATION,
        entries=SAMPLING, aka={name: f"val_kwargs.{name}" for name in ("temperature", "top_p", "top_k")}
    )
    keep_best: str | None = option(
        None, "metric of the validation, as valid/reward; its best checkpoint is kept too; null: none", resume=SAFE
    )
    staleness: int = option(
        0, "steps that rollouts may lag behind the weights; over 0: so many steps are sampled ahead", minimum=0,
        resume=NUMBERS
    )
    save_every: int = option(
        10, "steps between checkpoints; the last step is always saved", minimum=1, resume=SAFE,
        aka="save_freq save_steps"
    )
    async_save: bool = option(False, "continue training while a checkpoint is written", resume=SAFE)
    keep_checkpoints: int = option(
        3, "number of newest checkpoints that are kept", minimum=1, resume=SAFE,
        aka="max_actor_ckpt_to_keep save_total_limit max_ckpt_num"
    )
    grace_s: float = option(
        60.0, "seconds from SIGTERM or SIGINT to the checkpoint; an update that has begun is completed", minimum=0,
        resume=SAFE
    )

    @property
    def tasks_drawn(self) -> int:
        """Number of tasks that a step draws. With a step budget it may train on fewer of them."""
        return self.budget_tasks or self.tasks_per_step

    def total_steps(self, n_tasks: int) -> int:
        """Return the run's number of steps: `steps`, or as many as one pass over its tasks has."""
        return self.steps or max(1, n_tasks // self.tasks_drawn)


@dataclass(kw_only=True, slots=True)
class PolicyConfig:
    lr: float = option(
        1e-6, "learning rate of AdamW", minimum=0, resume=NUMBERS,
        aka="lr learning_rate optim.lr actor_learning_rate"
    )
    beta2: float = option(0.999, "second beta of AdamW", minimum=0, maximum=1, resume=NUMBERS, aka="adam_beta2")
    weight_decay: float = option(0.01, "weight decay of AdamW", minimum=0, resume=NUMBERS)
    grad_clip: float = option(
        1.0, "largest norm of the gradient; a longer one is scaled to it", above=0, resume=NUMBERS,
        aka="clip_grad max_grad_norm max_norm gradient_clipping"
    )
    schedule: Schedule = option(
        Schedule.CONSTANT, "learning rate after the warm-up; linear, cosine: falls to policy.min_lr_ratio",
        resume=NUMBERS,
        aka="lr_scheduler_type lr_scheduler warmup_style"
    )
    warmup_steps: int = option(
        0, "training steps in which the learning rate rises to policy.lr", minimum=0, resume=NUMBERS,
        aka="lr_warmup_steps warmup_ratio lr_warmup_steps_ratio lr_warmup_ratio"
    )
    min_lr_ratio: float = option(
        0.0, "learning rate at the end of the schedule, as a share of policy.lr", minimum=0, maximum=1, resume=NUMBERS
    )
    max_microbatch_tokens: int = option(
        16384, "packed tokens per micro-batch on one GPU; a longer sequence is one by itself; `ramet sft` reads "
        "sft.max_microbatch_tokens instead", minimum=1, resume=MEMORY,
        aka="ppo_micro_batch_size_per_gpu ppo_micro_batch_size ppo_max_token_len_per_gpu micro_train_batch_size "
            "log_prob_micro_batch_size_per_gpu gradient_accumulation_steps max_tokens_per_gpu"
    )
    share_prefixes: SharePrefixes = option(
        SharePrefixes.AUTO,
        "compute the common prefixes of a group once; auto: on a CPU with sdpa and on CUDA with varlen, where unique "
        "tokens are under 85 %", resume=NUMBERS
    )
    activation_checkpointing: bool | int = option(
        False, "less memory, more time; true: activations of every block are computed again in the backward pass; 2: "
        "of every second block, and so on", resume=MEMORY,
        aka="gradient_checkpointing enable_gradient_checkpointing"
    )
    sequence_parallel: int = option(
        1, "ranks that share each sequence (Ulysses)", minimum=1, resume=NUMBERS,
        aka="ulysses_sequence_parallel_size ring_attn_size"
    )
    replicas: int = option(
        1, "copies of the weights, each sharded over equally many neighbouring ranks (HSDP)", minimum=1, resume=SAFE,
        aka="data_parallel_replicate_degree dp_replicate_size"
    )
    offload: Offload = option(
        Offload.NONE, "what is in host memory while it is unused; optimizer: its state; all: parameters too; GPUs only",
        resume=SAFE, aka="param_offload optimizer_offload offload_policy adam_offload"
    )
    compile: bool = option(False, "torch.compile of every block", resume=NUMBERS, aka="use_torch_compile torch_compile")
    lora_rank: int = option(
        0, "rank of LoRA adapters; 0: all weights are trained; over 0: an adapter on every linear layer", minimum=0,
        resume=NUMBERS,
        aka="lora_r use_peft model.lora_rank"
    )

    @property
    def checkpoint_every(self) -> int:
        """Number of blocks of which one is checkpointed: 1, all are; 0: none is."""
        return int(self.activation_checkpointing)
