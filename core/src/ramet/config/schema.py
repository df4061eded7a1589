"""The core's configuration sections: the single source of types, defaults, ranges and help (docs/configuration.md).

Sections of plugins are not here: each plugin's own dataclass is. What the core decides about a component is beside
`params`, which holds the plugin's options: `tools.python.timeout_s`, `tools.python.params.memory_mb`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from ramet.config.choices import (
    Attention,
    ChatMarkup,
    Combine,
    Dtype,
    KlEstimator,
    LossAggregation,
    Malformed,
    MinibatchOf,
    Offload,
    OldLogprobs,
    OnBadRow,
    Order,
    Schedule,
    SharePrefixes,
    Strategy,
    SystemPrompt,
)
from ramet.types.option import SAMPLING, Allowed, Resume, option

# What another value does to a resumed run. A section says so where it is the same for all its keys, else each key does.
NUMBERS, SAFE, ORDER, SCHEDULE = Resume.NUMBERS, Resume.SAFE, Resume.ORDER, Resume.SCHEDULE
MEMORY, FAILURES, PATIENCE = Resume.MEMORY, Resume.FAILURES, Resume.PATIENCE
VALIDATION, MEASURED = Resume.VALIDATION, Resume.MEASURED
NOT_IN_PLAY = {"play": None}
OFF_POLICY: dict[str, Allowed | None] = {
    "tis_level": Allowed(choices=("token", "sequence")),
    "token_band": None,
    "sequence_band": None,
    "negative_gap_max": Allowed(above=0),
}
AT_LEAST_1 = Allowed(minimum=1, whole=True)

__all__ = [
    "Attention",
    "BenchmarkConfig",
    "ChatMarkup",
    "ClusterConfig",
    "Combine",
    "ComponentConfig",
    "Config",
    "DataConfig",
    "Dtype",
    "EvaluateConfig",
    "KlEstimator",
    "LossAggregation",
    "Malformed",
    "MinibatchOf",
    "ModelConfig",
    "Offload",
    "OldLogprobs",
    "OnBadRow",
    "Order",
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
    "ToolConfig",
    "TrainConfig",
]
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
class RunConfig:
    name: str | None = option(
        None, "runs/NAME, resumed if it is there; null: a fresh directory", resume=SAFE, instead=NOT_IN_PLAY,
        aka="trainer.experiment_name experiment_name output_dir run_name trainer.resume_mode"
    )
    root: str = option("runs", resume=SAFE, instead=NOT_IN_PLAY, aka="trainer.default_local_dir logging_dir save_path")
    seed: int = option(
        1, "of all draws: tasks, rollouts, mini-batches, new weights", minimum=0, maximum=2**32 - 1, resume=ORDER
    )
    deterministic: bool = option(False, "bit-identical numbers on CPU; needs engine=torch", resume=NUMBERS)
    threads: int | None = option(
        None, "torch threads; null: all cores, of a rank its part (deterministic: 1)", minimum=1, resume=SAFE
    )
    allow_config_change: bool = option(
        False, "resume although keys changed that change the numbers", resume=SAFE, instead=NOT_IN_PLAY
    )
    out: str | None = option(
        None, "where the result goes: the folder of a model (sft; null: `model` in the run's directory), a file of "
        "results (eval; null: `results.json` there)", resume=SAFE, instead={"train": None, "play": None, "judge": None},
        aka="output_path"
    )
    private: bool = option(
        False, "what this run writes is for its owner alone (files 0600, folders 0700)", resume=SAFE,
        instead=NOT_IN_PLAY
    )


@dataclass(kw_only=True, slots=True)
class DataConfig:
    train: list[str] = option(
        factory=list, help="parquet, JSON lines, JSON arrays, or benchmark:NAME/SPLIT", resume=NUMBERS,
        instead=NOT_IN_PLAY, aka="data.train_files train_files prompt_data dataset dataset_name data.path"
    )
    valid: list[str] = option(
        factory=list, help="as data.train", resume=VALIDATION, instead=NOT_IN_PLAY,
        aka="data.val_files val_files eval_dataset data.valid_files data.val data.eval"
    )
    columns: dict[str, str | None] = option(
        factory=dict, resume=NUMBERS, instead=NOT_IN_PLAY, aka={
            "prompt": "data.prompt_key input_key", "answer": "data.answer_key label_key",
            "data_source": "data.reward_fn_key",
        },
        help="names of columns: prompt, answer, data_source, tools, id, difficulty; a dot reaches into nested ones",
        entries=dict.fromkeys(("id", "prompt", "answer", "data_source", "tools", "difficulty"))
    )
    max_prompt_tokens: int = option(
        2048, "longer tasks are left out and counted", minimum=1, resume=NUMBERS,
        aka="max_prompt_length prompt_max_len"
    )
    limits: dict[str, int] = option(
        factory=dict, help="train, valid: first tasks only", resume={"train": NUMBERS, "valid": VALIDATION},
        instead=NOT_IN_PLAY, entries={"train": AT_LEAST_1, "valid": AT_LEAST_1},
        aka={"train": "data.train_max_samples max_samples", "valid": "data.val_max_samples"}
    )
    order: Order = option(
        Order.SHUFFLED, "curriculum: every pass goes from easy to hard, by data.columns.difficulty; file: as it is "
        "written", resume=ORDER, instead=NOT_IN_PLAY, aka="data.shuffle shuffle_dataset shuffle"
    )
    weights: dict[str, float] = option(
        factory=dict, help="data source -> share of draws; empty: every task as often", resume=NUMBERS,
        instead=NOT_IN_PLAY
    )
    difficulty: dict[str, float] = option(
        factory=dict, resume=NUMBERS, instead=NOT_IN_PLAY,
        help="min, max: tasks outside are left out and counted, by data.columns.difficulty",
        entries=dict.fromkeys(("min", "max"))
    )
    on_bad_row: OnBadRow = option(OnBadRow.ERROR, resume=NUMBERS, instead=NOT_IN_PLAY)
    chat_markup: ChatMarkup = option(ChatMarkup.KEEP, "in prompts", resume=NUMBERS)


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    path: str = option(MISSING, "a Hugging Face folder", aka="model_name_or_path model_name pretrain")
    tokenizer: str | None = option(None, "null: the model's folder")
    chat_template: str | None = option(None, "a file; null: the tokenizer's own")
    chat_template_kwargs: dict[str, Any] = option(factory=dict, help="variables of the template: enable_thinking")
    dtype: Dtype = option(Dtype.FLOAT32, aka="bf16 fp16 torch_dtype model_dtype")
    attention: Attention = option(Attention.AUTO, aka="attn_implementation flash_attn")
    device: str = option("auto", "auto, cpu, cuda")
    trust_remote_code: bool = False


@dataclass(kw_only=True, slots=True)
class RolloutConfig:
    group_size: int = option(
        8, "M: rollouts per task, forks included", minimum=1, resume=NUMBERS,
        instead={"eval": "evaluate.k", "play": "--n"},
        aka="rollout.n rollout_n num_generations n_samples_per_prompt num_rollouts group_size"
    )
    max_turns: int = option(16, minimum=1, resume=NUMBERS, aka="max_assistant_turns max_user_turns max_iterations")
    max_tool_calls: int = option(8, minimum=0, resume=NUMBERS, aka="call_limit")
    max_response_tokens: int = option(
        4096, "of a rollout, tool results included", minimum=1, resume=NUMBERS,
        aka="max_response_length max_completion_length generate_max_len max_new_tokens max_tokens response_length"
    )
    temperature: float = option(
        1.0, minimum=0, resume=NUMBERS, instead={"eval": "evaluate.sampling.temperature"}, aka="temperature"
    )
    first_tokens: int = option(
        20, "k: sampled tokens of a turn after which a branch policy is asked", minimum=1, resume=NUMBERS
    )
    max_concurrent: int = option(
        256, "rollouts in flight in one rollout worker; run.deterministic: at most the engine's slots", minimum=1,
        resume=MEMORY
    )
    deadline_s: float = option(1800.0, "of one rollout", above=0, resume=PATIENCE)
    step_deadline_s: float = option(
        7200.0, "of all rollouts of a training step; train.staleness: of a group", above=0, resume=FAILURES,
        instead={"eval": "rollout.deadline_s", "play": "rollout.deadline_s"}
    )
    max_masked_share: float | None = option(
        None, "masked by infrastructure: above it a training stops after the step, and a benchmark has no results; "
        "null: 0.2 of a step, 0.05 of a benchmark", minimum=0, maximum=1, resume=FAILURES, instead={"play": None}
    )


@dataclass(kw_only=True, slots=True)
class RolloutStepConfig:
    name: str = "tags"
    params: Any = None
    system_prompt: SystemPrompt = SystemPrompt.AUTO
    tools_in_template: bool | None = option(
        None,
        "the chat template describes the tools (`tools=`), and the step's prompt names none; null: as the step has it "
        "(hermes: true)"
    )


@dataclass(kw_only=True, slots=True)
class ComponentConfig:
    """A single-choice component: which one, and its own options."""

    name: str = MISSING
    params: Any = None


@dataclass(kw_only=True, slots=True)
class ToolConfig:
    """The tool runtime's settings of one tool."""

    timeout_s: float = option(60.0, "of one attempt", above=0, resume=PATIENCE)
    retries: int = option(2, "after infrastructure errors only", minimum=0, resume=PATIENCE)
    concurrency: int = option(64, minimum=1, resume=FAILURES)
    max_result_tokens: int = option(1024, "longer results are cut, with a visible mark", minimum=1, resume=NUMBERS)
    use: str | None = option(None, "the registered name that NAME is an instance of; null: NAME itself", resume=NUMBERS)
    params: Any = option(None, resume=NUMBERS)


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    weight: float = 1.0
    clip: list[float] | None = option(None, "[lowest, highest] score before the weight; null: as it is")
    combine: Combine = option(Combine.ADD, "multiply: the sum of those that add is multiplied by weight x score")
    sources: list[str] | None = option(None, "data sources that it scores; null: all")
    timeout_s: float = option(600.0, "of one attempt", above=0)
    retries: int = option(2, "after infrastructure errors only", minimum=0)
    max_unjudged: float = option(
        0.05, "share of a step that it may leave unjudged; more (and over 3) stop the run", minimum=0, maximum=1
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
        factory=dict, help="temperature, top_p, top_k, min_p, repetition_penalty, for this benchmark alone",
        entries=SAMPLING
    )
    prompt: str | None = option(None, "with {question} where the question goes; null: the benchmark's own")
    system_prompt: str | None = option(None, "replaces that of the rollout step; null: the benchmark's own")
    use: str | None = option(None, "the registered name that NAME is an instance of; null: NAME itself")
    params: Any = None


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    steps: int | None = option(
        None, "null: one pass over the data", minimum=1, resume=SCHEDULE,
        aka="total_epochs total_training_steps num_train_epochs max_steps num_episodes total_steps"
    )
    tasks_per_step: int = option(
        64, "P", minimum=1, resume=ORDER,
        aka="train_batch_size per_device_train_batch_size rollout_batch_size gen_batch_size batch_size"
    )
    resample_rounds: int = option(
        0, "dynamic sampling: how often groups of equal rewards are replaced by those of other tasks", minimum=0,
        resume=NUMBERS, aka="filter_groups.enable filter_groups.max_num_gen_batches dynamic_filtering"
    )
    minibatches: int = option(
        1, "optimiser steps per pass over a step's batch", minimum=1, resume=NUMBERS,
        aka="ppo_mini_batch_size mini_batch_size num_mini_batches steps_per_generation"
    )
    minibatch_of: MinibatchOf = option(
        MinibatchOf.AUTO, "what they are drawn from; auto: groups where policy.share_prefixes shares, else rollouts",
        resume=NUMBERS
    )
    epochs: int = option(
        1, "passes over a step's batch", minimum=1, resume=NUMBERS, aka="ppo_epochs num_iterations num_ppo_epochs"
    )
    old_logprobs: OldLogprobs = option(OldLogprobs.TRAINER, resume=NUMBERS)
    loss_aggregation: LossAggregation = option(
        LossAggregation.TOKEN_MEAN, resume=NUMBERS, aka="loss_agg_mode loss_type"
    )
    tis_cap: float | None = option(
        2.0, "truncated importance sampling of pi_old / mu; null: off", above=0, resume=NUMBERS,
        aka="tis_imp_ratio_cap vllm_importance_sampling_cap"
    )
    off_policy: dict[str, Any] = option(
        factory=dict, resume=NUMBERS, entries=OFF_POLICY,
        help="tis_level: sequence gives all tokens of a rollout one weight; token_band, sequence_band: [low, high] of "
        "pi_old / mu of a token (IcePop: [0.5, 5.0]), of its geometric mean in a rollout; negative_gap_max: of the "
        "mean of log(mu / pi) of a rollout with a negative advantage (DeepSeek-V3.2); what is outside weighs 0"
    )
    kl_coef: float = option(
        0.0, "0 loads no reference", minimum=0, resume=NUMBERS,
        aka="kl_coef beta kl_loss_coef use_kl_loss init_kl_coef"
    )
    kl_estimator: KlEstimator = option(
        KlEstimator.K3, "in the loss; k1-reward: k1 is taken off the returns of sampled tokens", resume=NUMBERS,
        aka="kl_loss_type kl_penalty kl_estimator use_kl_in_reward"
    )
    kl_target: float | None = option(None, "kl_coef follows this KL; null: it is fixed", above=0, resume=NUMBERS)
    entropy_coef: float = option(0.0, resume=NUMBERS, aka="entropy_coeff entropy_loss_coef ent_coef")
    eval_every: int = option(
        0, "steps between validations on data.valid; 0: never", minimum=0, resume=SAFE,
        aka="test_freq eval_steps eval_freq"
    )
    eval_first: bool = option(False, "also before the first step", resume=NUMBERS, aka="val_before_train eval_on_start")
    eval_k: int = option(1, "rollouts per task of a validation", minimum=1, resume=VALIDATION, aka="val_kwargs.n")
    eval_sampling: dict[str, float] = option(
        factory=dict, help="as evaluate.sampling, over it; without it tasks of files are greedy", resume=VALIDATION,
        entries=SAMPLING, aka={name: f"val_kwargs.{name}" for name in ("temperature", "top_p", "top_k")}
    )
    keep_best: str | None = option(
        None, "a metric of the validation, as valid/reward: its best checkpoint is kept as well", resume=SAFE
    )
    staleness: int = option(
        0, "S: updates that rollouts may lag; over 0, groups of S more steps play ahead", minimum=0, resume=NUMBERS
    )
    save_every: int = option(
        10, "steps between checkpoints; the last step is always saved", minimum=1, resume=SAFE,
        aka="save_freq save_steps"
    )
    async_save: bool = option(False, "continue while a checkpoint is written", resume=SAFE)
    keep_checkpoints: int = option(
        3, minimum=1, resume=SAFE, aka="max_actor_ckpt_to_keep save_total_limit max_ckpt_num"
    )
    grace_s: float = option(
        60.0, "from SIGTERM or SIGINT to the checkpoint; an update that has begun is carried through", minimum=0,
        resume=SAFE
    )


@dataclass(kw_only=True, slots=True)
class PolicyConfig:
    lr: float = option(1e-6, minimum=0, resume=NUMBERS, aka="lr learning_rate optim.lr actor_learning_rate")
    beta2: float = option(0.999, minimum=0, maximum=1, resume=NUMBERS, aka="adam_beta2")
    weight_decay: float = option(0.01, minimum=0, resume=NUMBERS)
    grad_clip: float = option(1.0, above=0, resume=NUMBERS, aka="clip_grad max_grad_norm max_norm gradient_clipping")
    schedule: Schedule = option(Schedule.CONSTANT, resume=NUMBERS, aka="lr_scheduler_type lr_scheduler warmup_style")
    warmup_steps: int = option(
        0, "training steps", minimum=0, resume=NUMBERS,
        aka="lr_warmup_steps warmup_ratio lr_warmup_steps_ratio lr_warmup_ratio"
    )
    min_lr_ratio: float = option(0.0, "of lr, at the end of the schedule", minimum=0, maximum=1, resume=NUMBERS)
    max_microbatch_tokens: int = option(
        16384, "packed tokens per micro-batch", minimum=1, resume=MEMORY,
        aka="ppo_micro_batch_size_per_gpu ppo_micro_batch_size ppo_max_token_len_per_gpu micro_train_batch_size "
            "log_prob_micro_batch_size_per_gpu gradient_accumulation_steps max_tokens_per_gpu"
    )
    share_prefixes: SharePrefixes = option(
        SharePrefixes.AUTO,
        "compute once what rollouts of a group have in common; auto: on a CPU with sdpa, where unique tokens are "
        "under 85 %", resume=NUMBERS
    )
    activation_checkpointing: bool = option(
        False, resume=MEMORY, aka="gradient_checkpointing enable_gradient_checkpointing"
    )
    sequence_parallel: int = option(
        1, "ranks that share each sequence (Ulysses)", minimum=1, resume=NUMBERS,
        aka="ulysses_sequence_parallel_size ring_attn_size"
    )
    replicas: int = option(
        1, "copies of the weights, each sharded over as many neighbouring ranks (HSDP)", minimum=1, resume=SAFE,
        aka="data_parallel_replicate_degree dp_replicate_size"
    )
    offload: Offload = option(
        Offload.NONE, resume=SAFE, aka="param_offload optimizer_offload offload_policy adam_offload"
    )
    compile: bool = option(False, "torch.compile of every block", resume=NUMBERS, aka="use_torch_compile torch_compile")
    lora_rank: int = option(
        0, "0: all weights are trained; over 0: adapters of this rank on every linear layer", minimum=0, resume=NUMBERS,
        aka="lora_r use_peft model.lora_rank"
    )


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
        16384, "tokens per forward pass on one device", minimum=1, resume=NUMBERS,
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


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    k: int = option(
        1, "rollouts per task", minimum=1, resume=SAFE, instead={"train": "train.eval_k"},
        aka="rollout.n num_generations n_samples_per_prompt val_kwargs.n n_samples pass_k"
    )
    sampling: dict[str, float] = option(
        factory=dict, help="temperature, top_p, top_k, min_p, repetition_penalty of all benchmarks; without one "
        "of them: the benchmark's own, else 0.6, 0.95, 0, 0, 1", resume=VALIDATION, entries=SAMPLING,
        aka={name: f"{name} val_kwargs.{name}" for name in SAMPLING}
    )


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    name: str = option("local", "local: everything in this process; ray", choices=("local", "ray"))
    address: str | None = option(
        None, "of a running Ray cluster, `auto` finds it; null: starts one on this machine", instead={"sft": None}
    )
    policy_workers: int = option(
        1, "ranks of the policy", minimum=1,
        aka="n_gpus_per_node nnodes num_gpus n_gpus gpus num_processes actor_num_gpus_per_node"
    )
    rollout_workers: int = option(
        1, "engines, each with its own scheduler", minimum=1, instead={"sft": None}, aka="vllm_num_engines num_engines"
    )
    colocate: bool = option(
        False, "policy and rollout workers take turns on the same devices", instead={"sft": None},
        aka="hybrid_engine colocate_all_models vllm_mode"
    )
    timeout_s: float = option(
        1800.0, "of every wait for a worker: start, weight sync, save; of an update, from its last micro-batch on",
        above=0
    )


@dataclass(kw_only=True, slots=True)
class Config:
    """The whole configuration of a run. `tools`, `rewards` and `benchmarks` map registered names to their settings."""

    run: RunConfig = option(factory=RunConfig, jobs="train sft eval play judge")
    data: DataConfig = option(factory=DataConfig, jobs="train eval data play")
    model: ModelConfig = option(factory=ModelConfig, resume=NUMBERS, jobs="train sft eval data play judge")
    engine: ComponentConfig = option(
        factory=ComponentConfig, resume=NUMBERS, jobs="train eval play", aka="rollout.name use_vllm backend"
    )
    rollout: RolloutConfig = option(factory=RolloutConfig, jobs="train eval play")
    rollout_step: RolloutStepConfig = option(factory=RolloutStepConfig, resume=NUMBERS, jobs="train sft eval data play")
    branch_policy: ComponentConfig = option(
        factory=ComponentConfig, resume=NUMBERS, jobs="train", aka="beam_size branch_probability entropy_weight"
    )
    tools: dict[str, ToolConfig] = option(factory=dict, jobs="train sft eval data play")
    rewards: dict[str, RewardConfig] = option(
        factory=dict, resume=NUMBERS, jobs="train judge",
        aka="reward_funcs reward_function custom_reward_function.path custom_reward_function.name "
            "reward_model.reward_manager"
    )
    advantage: ComponentConfig = option(
        factory=ComponentConfig, resume=NUMBERS, jobs="train",
        aka="algorithm.adv_estimator adv_estimator advantage_estimator"
    )
    policy_loss: ComponentConfig = option(factory=ComponentConfig, resume=NUMBERS, jobs="train")
    train: TrainConfig = option(factory=TrainConfig, jobs="train")
    policy: PolicyConfig = option(factory=PolicyConfig, jobs="train")
    sft: SftConfig = option(factory=SftConfig, jobs="sft data")
    evaluate: EvaluateConfig = option(factory=EvaluateConfig, jobs="train eval")
    benchmarks: dict[str, BenchmarkConfig] = option(
        factory=dict, resume=MEASURED, jobs="train eval", aka="tasks eval_tasks"
    )
    cluster: ClusterConfig = option(factory=ClusterConfig, resume=SAFE, jobs="train sft eval")
    trackers: list[str] = option(
        factory=lambda: ["console", "jsonl"], resume=SAFE, jobs="train sft eval",
        aka="trainer.logger report_to logger use_wandb"
    )
    wandb: dict[str, Any] = option(
        factory=dict, help="options of the tracker wandb: project, entity, name, group, tags, mode", resume=SAFE,
        jobs="train sft eval", aka={"project": "trainer.project_name project_name wandb_project"},
        entries=dict.fromkeys(("project", "entity", "name", "group", "tags", "mode"))
    )
