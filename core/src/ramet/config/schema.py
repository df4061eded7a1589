"""The core's configuration sections: the single source of types, defaults, ranges and help (docs/configuration.md).

Sections of plugins are not here: each plugin's own dataclass is. What the core decides about a component is beside
`params`, which holds the plugin's options: `tools.python.timeout_s`, `tools.python.params.memory_mb`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from ramet.config.choices import (
    Attention,
    ChatMarkup,
    Combine,
    Dtype,
    KlEstimator,
    KlIn,
    LossAggregation,
    Malformed,
    MinibatchOf,
    Offload,
    OldLogprobs,
    OnBadRow,
    Schedule,
    SharePrefixes,
    Strategy,
    SystemPrompt,
    TisLevel,
    WandbMode,
)
from ramet.config.option import option

__all__ = [
    "Attention",
    "BenchmarkConfig",
    "ChatMarkup",
    "ClusterConfig",
    "ColumnsConfig",
    "Combine",
    "ComponentConfig",
    "Config",
    "DataConfig",
    "Dtype",
    "EvaluateConfig",
    "KlEstimator",
    "KlIn",
    "LossAggregation",
    "Malformed",
    "MinibatchOf",
    "ModelConfig",
    "Offload",
    "OldLogprobs",
    "OnBadRow",
    "PolicyConfig",
    "RewardConfig",
    "RolloutConfig",
    "RolloutStepConfig",
    "RunConfig",
    "Schedule",
    "SftConfig",
    "SharePrefixes",
    "Strategy",
    "SystemPrompt",
    "TisLevel",
    "ToolConfig",
    "TrainConfig",
    "WandbConfig",
    "WandbMode",
]


@dataclass(kw_only=True, slots=True)
class RunConfig:
    name: str | None = option(None, "runs/NAME, resumed if it is there; null: a fresh directory")
    root: str = "runs"
    seed: int = option(1, "of all draws: tasks, rollouts, mini-batches, new weights", minimum=0, maximum=2**32 - 1)
    deterministic: bool = option(False, "bit-identical numbers on CPU; needs engine=torch")
    threads: int | None = option(
        None, "torch threads; null: all cores, of a rank its part (deterministic: 1)", minimum=1
    )
    allow_config_change: bool = option(False, "resume although keys changed that change the numbers")
    private: bool = option(False, "what this run writes is for its owner alone (files 0600, folders 0700)")


@dataclass(kw_only=True, slots=True)
class ColumnsConfig:
    """Names of the columns of the data files."""

    id: str | None = option(None, "null: file stem and row number")
    prompt: str = "prompt"
    answer: str | None = option(None, "null: `answer`, or `reward_model.ground_truth` in rows that have that instead")
    data_source: str | None = "data_source"
    tools: str | None = "tools"
    difficulty: str | None = option(None, "a number in every row of the training data, larger is harder")


@dataclass(kw_only=True, slots=True)
class DataConfig:
    train: list[str] = option(factory=list, help="parquet, JSON lines, JSON arrays, or benchmark:NAME/SPLIT")
    valid: list[str] = option(factory=list, help="as data.train")
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    max_prompt_tokens: int = option(2048, "longer tasks are left out and counted", minimum=1)
    limit: int | None = option(None, "first tasks only", minimum=1)
    valid_limit: int | None = option(None, minimum=1)
    shuffle: bool = True
    weights: dict[str, float] = option(factory=dict, help="data source -> share of draws; empty: every task as often")
    curriculum: bool = option(False, "every pass over the data goes from easy to hard, by data.columns.difficulty")
    min_difficulty: float | None = option(None, "easier tasks are left out and counted")
    max_difficulty: float | None = option(None, "harder ones too")
    on_bad_row: OnBadRow = OnBadRow.ERROR
    chat_markup: ChatMarkup = option(ChatMarkup.KEEP, "in prompts")


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    path: str = option(MISSING, "a Hugging Face folder")
    tokenizer: str | None = option(None, "null: the model's folder")
    chat_template: str | None = option(None, "a file; null: the tokenizer's own")
    chat_template_kwargs: dict[str, Any] = option(factory=dict, help="variables of the template: enable_thinking")
    dtype: Dtype = Dtype.FLOAT32
    attention: Attention = Attention.AUTO
    device: str = option("auto", "auto, cpu, cuda")
    trust_remote_code: bool = False


@dataclass(kw_only=True, slots=True)
class RolloutConfig:
    group_size: int = option(8, "M: rollouts per task, forks included", minimum=1)
    max_turns: int = option(16, minimum=1)
    max_tool_calls: int = option(8, minimum=0)
    max_response_tokens: int = option(4096, "of a rollout, tool results included", minimum=1)
    temperature: float = option(1.0, minimum=0)
    top_p: float = option(1.0, above=0, maximum=1)
    top_k: int = option(0, minimum=0)
    first_tokens: int = option(20, "k: sampled tokens of a turn after which a branch policy is asked", minimum=1)
    max_concurrent: int = option(
        256, "rollouts in flight in one rollout worker; run.deterministic: at most the engine's slots", minimum=1
    )
    deadline_s: float = option(1800.0, "of one rollout", above=0)
    step_deadline_s: float = option(7200.0, "of all rollouts of a training step; train.staleness: of a group", above=0)
    watchdog_s: float = option(60.0, "a wait older than this is printed", above=0)
    max_infra_rate: float = option(
        0.2, "masked by infrastructure in a step: above it the run stops", minimum=0, maximum=1
    )


@dataclass(kw_only=True, slots=True)
class RolloutStepConfig:
    name: str = "tags"
    params: Any = None
    system_prompt: SystemPrompt = SystemPrompt.AUTO
    tools_in_template: bool | None = option(
        None,
        "the chat template describes the tools (`tools=`), and the step's prompt names none; null: as the step has it "
        "(hermes: true)",
    )


@dataclass(kw_only=True, slots=True)
class ComponentConfig:
    """A single-choice component: which one, and its own options."""

    name: str = MISSING
    params: Any = None


@dataclass(kw_only=True, slots=True)
class ToolConfig:
    """What the tool runtime is told about one tool."""

    timeout_s: float = option(60.0, "of one attempt", above=0)
    retries: int = option(2, "after infrastructure errors only", minimum=0)
    concurrency: int = option(64, minimum=1)
    max_result_tokens: int = option(1024, "longer results are cut, with a visible mark", minimum=1)
    use: str | None = option(None, "the registered name that NAME is an instance of; null: NAME itself")
    params: Any = None


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    weight: float = 1.0
    clip: list[float] | None = option(None, "[lowest, highest] score before the weight; null: as it is")
    combine: Combine = option(Combine.ADD, "multiply: the sum of those that add is multiplied by weight x score")
    sources: list[str] | None = option(None, "data sources that it scores; null: all")
    timeout_s: float = option(600.0, "of one attempt", above=0)
    retries: int = option(2, "after infrastructure errors only", minimum=0)
    max_unjudged: float = option(
        0.05,
        "share of a step that it may leave unjudged; more (and over 3) stop the run",
        minimum=0,
        maximum=1,
    )
    resample: bool = option(False, "train.resample_rounds compares this score, and others that say so, not the total")
    use: str | None = option(None, "the registered name that NAME is an instance of; null: NAME itself")
    params: Any = None


@dataclass(kw_only=True, slots=True)
class BenchmarkConfig:
    split: str = "test"
    limit: int | None = option(None, "tasks, an even share of each data source", minimum=1)
    tools: list[str] | None = option(None, "that its tasks may use; null: the benchmark's own, else all configured")
    limits: dict[str, int] | None = option(
        None, "calls of a rollout, by tool; max_tool_calls: of all tools; null: the benchmark's own"
    )
    sampling: dict[str, float] = option(
        factory=dict, help="temperature, top_p, top_k, min_p, repetition_penalty, for this benchmark alone"
    )
    prompt: str | None = option(None, "with {question} where the question goes; null: the benchmark's own")
    system_prompt: str | None = option(None, "replaces that of the rollout step; null: the benchmark's own")
    use: str | None = option(None, "the registered name that NAME is an instance of; null: NAME itself")
    params: Any = None


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    steps: int | None = option(None, "null: one pass over the data", minimum=1)
    tasks_per_step: int = option(64, "P", minimum=1)
    resample_rounds: int = option(
        0, "dynamic sampling: how often groups of equal rewards are replaced by those of other tasks", minimum=0
    )
    stored_prefix_tokens: int = option(
        4_000_000, "kept of earlier groups for branch policies that start from them; the oldest go first", minimum=0
    )
    minibatches: int = option(1, "optimiser steps per pass over a step's batch", minimum=1)
    minibatch_of: MinibatchOf = option(
        MinibatchOf.AUTO, "what they are drawn from; auto: groups where policy.share_prefixes shares, else rollouts"
    )
    epochs: int = option(1, "passes over a step's batch", minimum=1)
    old_logprobs: OldLogprobs = OldLogprobs.TRAINER
    loss_aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    tis_cap: float | None = option(2.0, "truncated importance sampling of pi_old / mu; null: off", above=0)
    tis_level: TisLevel = option(TisLevel.TOKEN, "sequence: one weight for all tokens of a rollout")
    token_band: list[float] | None = option(
        None, "[low, high] of a token's pi_old / mu; others weigh 0 (IcePop: [0.5, 5.0])"
    )
    sequence_band: list[float] | None = option(
        None, "[low, high] of the geometric mean of pi_old / mu in a rollout; others weigh 0"
    )
    negative_gap_max: float | None = option(
        None, "rollouts with a negative advantage and a larger mean of log(mu / pi) weigh 0 (DeepSeek-V3.2)", above=0
    )
    kl_coef: float = option(0.0, "0 loads no reference", minimum=0)
    kl_estimator: KlEstimator | None = option(None, "null: k3; with train.kl_in=reward k1, which is for that alone")
    kl_in: KlIn = option(KlIn.LOSS, "reward: taken off the returns of sampled tokens")
    kl_target: float | None = option(None, "kl_coef follows this KL; null: it is fixed", above=0)
    kl_horizon: int = option(10_000, "rollouts in which kl_coef may change by 20 %", minimum=1)
    entropy_coef: float = 0.0
    eval_every: int = option(0, "steps between validations on data.valid; 0: never", minimum=0)
    eval_first: bool = option(False, "also before the first step")
    eval_k: int = option(1, "rollouts per task of a validation", minimum=1)
    eval_temperature: float | None = option(None, "null: of benchmarks as in `ramet eval`, else 0 (greedy)", minimum=0)
    eval_top_p: float | None = option(None, "null: of benchmarks as in `ramet eval`, else 1", above=0, maximum=1)
    eval_top_k: int | None = option(None, "null: of benchmarks as in `ramet eval`, else 0 (off)", minimum=0)
    keep_best: str | None = option(
        None, "a metric of the validation, as valid/reward: its best checkpoint is kept as well"
    )
    staleness: int = option(0, "S: updates that rollouts may lag; over 0, groups of S more steps play ahead", minimum=0)
    save_every: int = option(10, "steps between checkpoints; the last step is always saved", minimum=1)
    async_save: bool = option(False, "go on while a checkpoint is written")
    keep_checkpoints: int = option(3, minimum=1)
    max_bad_steps: int = option(3, "non-finite updates in a row before the run stops", minimum=1)
    grace_s: float = option(
        60.0, "from SIGTERM or SIGINT to the checkpoint; an update that has begun is carried through", minimum=0
    )
    print_samples: int = option(0, "rollouts to print after each step: best, worst, then others by the seed", minimum=0)


@dataclass(kw_only=True, slots=True)
class PolicyConfig:
    lr: float = option(1e-6, minimum=0)
    beta1: float = option(0.9, minimum=0, maximum=1)
    beta2: float = option(0.999, minimum=0, maximum=1)
    weight_decay: float = option(0.01, minimum=0)
    grad_clip: float = option(1.0, above=0)
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = option(0, "training steps", minimum=0)
    min_lr_ratio: float = option(0.0, "of lr, at the end of the schedule", minimum=0, maximum=1)
    max_microbatch_tokens: int = option(16384, "packed tokens per micro-batch", minimum=1)
    share_prefixes: SharePrefixes = option(
        SharePrefixes.AUTO,
        "compute once what rollouts of a group have in common; auto: on a CPU with sdpa, where unique tokens are under "
        "85 %",
    )
    activation_checkpointing: bool = False
    sequence_parallel: int = option(1, "ranks that share each sequence (Ulysses)", minimum=1)
    replicas: int = option(1, "copies of the weights, each sharded over as many neighbouring ranks (HSDP)", minimum=1)
    offload: Offload = Offload.NONE
    compile: bool = option(False, "torch.compile of every block")
    lora_rank: int = option(
        0, "0: all weights are trained; over 0: adapters of this rank on every linear layer", minimum=0
    )


@dataclass(kw_only=True, slots=True)
class SftConfig:
    data: list[str] = option(factory=list, help="JSON or parquet, sharegpt rows")
    malformed: Malformed = option(Malformed.ERROR, "traces that break the format; skip: left out; keep: trained on")
    mask_tags: list[str] = option(factory=list, help="tags of further tools whose results are masked")
    strategy: Strategy = option(Strategy.NONE, "over cluster.policy_workers processes")
    epochs: float = option(3.0, above=0)
    max_steps: int | None = option(None, minimum=1)
    sequences_per_step: int = option(16, "of an optimiser step, over all workers", minimum=1)
    max_microbatch_tokens: int = option(16384, "tokens per forward pass on one device", minimum=1)
    lr: float = option(7e-6, minimum=0)
    beta2: float = option(0.999, minimum=0, maximum=1)
    schedule: Schedule = Schedule.COSINE
    warmup_ratio: float = option(0.1, minimum=0, maximum=1)
    weight_decay: float = option(0.0, minimum=0)
    max_tokens: int = option(4096, "longer rows are left out and counted", minimum=1)
    save_every: int = option(500, minimum=1)
    log_every: int = option(10, minimum=1)
    out: str | None = option(None, "folder of the trained model; null: the run's `model`")


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    k: int = option(1, "rollouts per task", minimum=1)
    pass_at: list[int] = option(factory=list, help="the j of pass@j; empty: powers of two below k, and k")
    temperature: float | None = option(None, "null: the benchmark's own, else 0.6", minimum=0)
    top_p: float | None = option(None, "null: the benchmark's own, else 0.95", above=0, maximum=1)
    top_k: int | None = option(None, "null: the benchmark's own, else 0, which is off", minimum=0)
    min_p: float | None = option(None, "null: the benchmark's own, else 0, which is off", minimum=0, maximum=1)
    repetition_penalty: float | None = option(None, "null: the benchmark's own, else 1, which is off", above=0)
    max_masked_share: float = option(
        0.05, "of a benchmark's rollouts, masked or not judged: above it there are no results", minimum=0, maximum=1
    )
    out: str | None = option(None, "results file; null: the run's `results.json`")


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    name: str = option("local", "local: everything in this process; ray", choices=("local", "ray"))
    address: str | None = option(None, "of a running Ray cluster, `auto` finds it; null: starts one on this machine")
    policy_workers: int = option(1, "ranks of the policy", minimum=1)
    rollout_workers: int = option(1, "engines, each with its own scheduler", minimum=1)
    colocate: bool = option(False, "policy and rollout workers take turns on the same devices")
    timeout_s: float = option(
        1800.0,
        "of every wait for a worker: start, weight sync, save; of an update, from its last micro-batch on",
        above=0,
    )


@dataclass(kw_only=True, slots=True)
class WandbConfig:
    """Options of the tracker `wandb`."""

    project: str | None = option(None, "null: WANDB_PROJECT, or `ramet`")
    entity: str | None = option(None, "user or team; null: WANDB_ENTITY, or the key's own")
    name: str | None = option(None, "of the run there; null: the name of its directory")
    group: str | None = option(None, "of runs there")
    tags: list[str] = field(default_factory=list)
    mode: WandbMode = option(WandbMode.AUTO, "auto: online with a key, offline without")


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
    wandb: WandbConfig = field(default_factory=WandbConfig)
