"""The core's configuration: the single source of types, defaults, ranges and help (docs/configuration.md).

`schema_rollout`, `schema_train` and `schema_sft` declare the sections of their jobs; all are imported from here.
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
from ramet.config.schema_rollout import (
    BenchmarkConfig,
    ComponentConfig,
    EvaluateConfig,
    RewardConfig,
    RolloutConfig,
    RolloutStepConfig,
    ToolConfig,
)
from ramet.config.schema_sft import SftConfig
from ramet.config.schema_train import PolicyConfig, TrainConfig
from ramet.types.option import AT_LEAST_1, Resume, option

# What another value does to a resumed run. A section says so where it is the same for all its keys, else each key does.
NUMBERS, SAFE, ORDER, VALIDATION = Resume.NUMBERS, Resume.SAFE, Resume.ORDER, Resume.VALIDATION
MEASURED = Resume.MEASURED
NOT_IN_PLAY = {"play": None}
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
        factory=list, help="parquet, JSON lines, JSON arrays, hf://datasets/OWNER/NAME/FILE, or benchmark:NAME/SPLIT",
        resume=NUMBERS, instead=NOT_IN_PLAY,
        aka="data.train_files train_files prompt_data dataset dataset_name data.path"
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
    path: str = option(
        MISSING, "a Hugging Face folder, or OWNER/NAME of the hub", aka="model_name_or_path model_name pretrain"
    )
    tokenizer: str | None = option(None, "null: the model's folder")
    chat_template: str | None = option(None, "a file; null: the tokenizer's own")
    chat_template_kwargs: dict[str, Any] = option(factory=dict, help="variables of the template: enable_thinking")
    dtype: Dtype = option(Dtype.FLOAT32, aka="bf16 fp16 torch_dtype model_dtype")
    attention: Attention = option(Attention.AUTO, aka="attn_implementation flash_attn")
    device: str = option("auto", "auto, cpu, cuda")
    trust_remote_code: bool = False


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
