"""The core's configuration sections: the single source of types and defaults (DESIGN.md §8).

Sections of plugins are not here: each plugin's own dataclass is. What the core says about a component stands beside
`params`, which holds the plugin's options: `tools.python.timeout_s`, `tools.python.params.memory_mb`.
Ranges are checked by `config.checks`, all at once, so that one run of the command shows every problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omegaconf import MISSING


class SystemPrompt(StrEnum):
    AUTO = "auto"  # the step's, unless the task brings its own
    ALWAYS = "always"  # the step's, instead of the task's
    APPEND = "append"  # the task's own, then the step's
    NEVER = "never"


class OnBadRow(StrEnum):
    ERROR = "error"
    SKIP = "skip"  # and count


class ChatMarkup(StrEnum):
    """What becomes of special tokens of the chat template (`<|im_end|>`) that stand in a prompt's own text."""

    KEEP = "keep"  # they are such tokens, and counted
    NEUTRALISE = "neutralise"  # they are spelled out, so that no prompt speaks for another role


class Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Attention(StrEnum):
    AUTO = "auto"  # flash-attention where installed, else sdpa
    SDPA = "sdpa"
    EAGER = "eager"
    FLASH = "flash_attention_2"
    VARLEN = "varlen"  # torch's own kernel for packed sequences; CUDA and bfloat16 only


class OldLogprobs(StrEnum):
    TRAINER = "trainer"  # recomputed once per step
    ENGINE = "engine"  # pi_old := mu, one forward pass less


class LossAggregation(StrEnum):
    TOKEN_MEAN = "token-mean"
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    SEQ_MEAN_TOKEN_SUM_NORM = "seq-mean-token-sum-norm"  # over rollout.max_response_tokens (Dr. GRPO)
    TOKEN_SUM_NORM = "token-sum-norm"  # sum over rollout.max_response_tokens alone: grows with the batch


class KlEstimator(StrEnum):
    K1 = "k1"
    ABS = "abs"
    K2 = "k2"
    K3 = "k3"


class Schedule(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Offload(StrEnum):
    """What waits in host memory while it is not computed with. GPUs only."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    ALL = "all"  # parameters too


class Strategy(StrEnum):
    """How `ramet sft` spreads over its workers."""

    NONE = "none"  # one worker
    ZERO0 = "zero0"  # DeepSpeed, nothing sharded
    ZERO2 = "zero2"  # DeepSpeed, optimiser and gradients sharded
    ZERO3 = "zero3"  # DeepSpeed, parameters too
    ZERO3_OFFLOAD = "zero3_offload"  # parameters and optimiser wait in host memory; GPUs only
    FSDP = "fsdp"


@dataclass(kw_only=True, slots=True)
class RunConfig:
    name: str | None = None  # runs/NAME, resumed if it is there; null: a fresh directory
    root: str = "runs"
    seed: int = 1
    deterministic: bool = False  # bit-identical numbers on CPU; needs engine=torch
    threads: int | None = None  # torch threads; null: all cores (deterministic: 1)
    allow_config_change: bool = False  # resume although keys changed that change the numbers
    private: bool = False  # what this run writes is for its owner alone (files 0600, folders 0700)


@dataclass(kw_only=True, slots=True)
class ColumnsConfig:
    """Names of the columns of the data files."""

    id: str | None = None  # null: file stem and row number
    prompt: str = "prompt"
    answer: str | None = None  # null: `answer`, or `reward_model.ground_truth` in rows that have that instead
    data_source: str | None = "data_source"
    tools: str | None = "tools"
    difficulty: str | None = None  # a number in every row of the training data, larger is harder


@dataclass(kw_only=True, slots=True)
class DataConfig:
    train: list[str] = field(default_factory=list)  # parquet or JSON lines, or benchmark:NAME/SPLIT
    valid: list[str] = field(default_factory=list)  # as data.train
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    max_prompt_tokens: int = 2048  # longer tasks are left out and counted
    limit: int | None = None  # first tasks only
    valid_limit: int | None = None
    shuffle: bool = True
    weights: dict[str, float] = field(default_factory=dict)  # data source -> share of draws; empty: every task as often
    curriculum: bool = False  # every pass over the data goes from easy to hard, by data.columns.difficulty
    min_difficulty: float | None = None  # easier tasks are left out and counted
    max_difficulty: float | None = None  # harder ones too
    on_bad_row: OnBadRow = OnBadRow.ERROR
    chat_markup: ChatMarkup = ChatMarkup.KEEP  # in prompts


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    path: str = MISSING  # a Hugging Face folder
    tokenizer: str | None = None  # null: the model's folder
    chat_template: str | None = None  # a file; null: the tokenizer's own
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)  # variables of the template: enable_thinking
    dtype: Dtype = Dtype.FLOAT32
    attention: Attention = Attention.AUTO
    device: str = "auto"  # auto, cpu, cuda
    trust_remote_code: bool = False


@dataclass(kw_only=True, slots=True)
class RolloutConfig:
    group_size: int = 8  # M: rollouts per task, forks included
    max_turns: int = 16
    max_tool_calls: int = 8
    max_response_tokens: int = 4096  # of a rollout, tool results included
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    first_tokens: int = 20  # k: sampled tokens of a turn after which a branch policy is asked
    max_concurrent: int = 256  # rollouts in flight in one rollout worker; run.deterministic: at most the engine's slots
    deadline_s: float = 1800.0  # of one rollout
    step_deadline_s: float = 7200.0  # of all rollouts of a training step
    watchdog_s: float = 60.0  # a wait older than this is printed
    max_infra_rate: float = 0.2  # masked by infrastructure in a step: above it the run stops


@dataclass(kw_only=True, slots=True)
class RolloutStepConfig:
    name: str = "tags"
    params: Any = None
    system_prompt: SystemPrompt = SystemPrompt.AUTO
    tools_in_template: bool = (
        False  # the chat template describes the tools (`tools=`), and the step's prompt names none
    )


@dataclass(kw_only=True, slots=True)
class ComponentConfig:
    """A single-choice component: which one, and its own options."""

    name: str = MISSING
    params: Any = None


@dataclass(kw_only=True, slots=True)
class ToolConfig:
    """What the tool runtime says about one tool."""

    timeout_s: float = 60.0  # of one attempt
    retries: int = 2  # after infrastructure errors only
    concurrency: int = 64
    max_result_tokens: int = 1024  # longer results are cut, with a visible mark
    use: str | None = None  # the registered name that NAME is an instance of; null: NAME itself
    params: Any = None


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    weight: float = 1.0
    sources: list[str] | None = None  # data sources that it scores; null: all
    timeout_s: float = 600.0
    use: str | None = None  # the registered name that NAME is an instance of; null: NAME itself
    params: Any = None


@dataclass(kw_only=True, slots=True)
class BenchmarkConfig:
    split: str = "test"
    limit: int | None = None
    use: str | None = None  # the registered name that NAME is an instance of; null: NAME itself
    params: Any = None


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    steps: int | None = None  # null: one pass over the data
    tasks_per_step: int = 64  # P
    resample_rounds: int = 0  # dynamic sampling: how often groups of equal rewards are replaced by those of other tasks
    minibatches: int = 1  # optimiser steps per pass over a step's batch
    epochs: int = 1  # passes over a step's batch
    old_logprobs: OldLogprobs = OldLogprobs.TRAINER
    loss_aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    tis_cap: float | None = 2.0  # truncated importance sampling of pi_old / mu; null: off
    kl_coef: float = 0.0  # 0 loads no reference
    kl_estimator: KlEstimator = KlEstimator.K3
    entropy_coef: float = 0.0
    eval_every: int = 0  # steps between validations on data.valid; 0: never
    eval_first: bool = False  # also before the first step
    eval_k: int = 1  # rollouts per task of a validation
    eval_temperature: float = 0.0
    eval_top_p: float = 1.0
    eval_top_k: int = 0
    keep_best: str | None = None  # a metric of the validation, as valid/reward: its best checkpoint is kept as well
    staleness: int = 0  # updates that rollouts may lag behind; over 0 the next step's are played during the update
    save_every: int = 10  # steps between checkpoints; the last step is always saved
    async_save: bool = False  # go on while a checkpoint is written; holds a copy of it in memory
    keep_checkpoints: int = 3
    max_bad_steps: int = 3  # non-finite updates in a row before the run stops
    grace_s: float = 60.0  # from SIGTERM or SIGINT to the checkpoint; an update that has begun is carried through


@dataclass(kw_only=True, slots=True)
class PolicyConfig:
    lr: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0  # training steps
    min_lr_ratio: float = 0.0  # of lr, at the end of the schedule
    max_microbatch_tokens: int = 16384  # packed tokens per micro-batch
    activation_checkpointing: bool = False
    sequence_parallel: int = 1  # ranks that share each sequence (Ulysses)
    offload: Offload = Offload.NONE
    compile: bool = False  # torch.compile of every block
    lora_rank: int = 0  # 0: all weights are trained; over 0: adapters of this rank on every linear layer


@dataclass(kw_only=True, slots=True)
class SftConfig:
    data: list[str] = field(default_factory=list)  # JSON lines, sharegpt rows
    strategy: Strategy = Strategy.NONE  # over cluster.policy_workers processes
    epochs: float = 3.0
    max_steps: int | None = None
    batch_size: int = 16  # sequences per optimiser step on one device
    accumulate: int = 1
    lr: float = 7e-6
    beta2: float = 0.999
    schedule: Schedule = Schedule.COSINE
    warmup_ratio: float = 0.1
    weight_decay: float = 0.0
    max_tokens: int = 4096  # longer rows are left out and counted
    save_every: int = 500
    log_every: int = 10
    out: str | None = None  # folder of the trained model; null: the run's `model`


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    k: int = 1  # rollouts per task
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    max_masked_share: float = 0.05  # of a benchmark's rollouts, masked or not judged: above it there are no results
    out: str | None = None  # results file; null: the run's `results.json`


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    name: str = "local"  # local: everything in this process; ray
    address: str | None = None  # of a running Ray cluster, `auto` finds it; null: starts one on this machine
    policy_workers: int = 1  # ranks of the policy
    rollout_workers: int = 1  # engines, each with its own scheduler
    colocate: bool = False  # policy and rollout workers take turns on the same devices
    timeout_s: float = 1800.0  # of every wait for a worker: start, update, weight sync, save


@dataclass(kw_only=True, slots=True)
class Config:
    """Everything a run is told. `tools`, `rewards` and `benchmarks` map registered names to their settings."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: ComponentConfig = field(default_factory=ComponentConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    rollout_step: RolloutStepConfig = field(default_factory=RolloutStepConfig)
    branch_policy: ComponentConfig = field(default_factory=ComponentConfig)
    tools: dict[str, ToolConfig] = field(default_factory=dict)
    rewards: dict[str, RewardConfig] = field(default_factory=dict)
    advantage: ComponentConfig = field(default_factory=ComponentConfig)
    policy_loss: ComponentConfig = field(default_factory=ComponentConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    benchmarks: dict[str, BenchmarkConfig] = field(default_factory=dict)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    trackers: list[str] = field(default_factory=lambda: ["console", "jsonl"])
