"""The core's configuration: the single source of types, defaults, ranges and help (docs/configuration.md).

`schema_rollout`, `schema_train` and `schema_sft` declare the sections of their jobs; all are imported from here.
Sections of plugins are not here: each plugin's own dataclass is. What the core decides about a component is next
to `params`, which has the plugin's options: `tools.python.timeout_s`, `tools.python.params.memory_mb`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from ramet.config.choices import (
    Attention,
    BudgetKind,
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
    "BudgetKind",
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
        None, "runs/NAME, resumed if it exists; null: a new directory", resume=SAFE,
        instead=NOT_IN_PLAY,
        aka="trainer.experiment_name experiment_name output_dir run_name trainer.resume_mode"
    )
    root: str = option(
        "runs", "folder of the run directories", resume=SAFE, instead=NOT_IN_PLAY,
        aka="trainer.default_local_dir logging_dir save_path"
    )
    seed: int = option(
        1, "seed of all draws: tasks, rollouts, mini-batches, new weights", minimum=0, maximum=2**32 - 1, resume=ORDER
    )
    deterministic: bool = option(False, "bit-identical numbers on a CPU; needs engine=torch", resume=NUMBERS)
    threads: int | None = option(
        None, "threads of torch; null: all cores, divided among the ranks of a machine (run.deterministic: 1)",
        minimum=1, resume=SAFE
    )
    allow_config_change: bool = option(
        False, "resume although keys that affect the numbers changed", resume=SAFE, instead=NOT_IN_PLAY
    )
    out: str | None = option(
        None, "folder of the model (sft), or file of the results (eval); null: `model` or `results.json` "
        "in the run's directory", resume=SAFE, instead={"train": None, "play": None, "judge": None},
        aka="output_path"
    )
    private: bool = option(
        False, "only the owner may read what this run writes (files 0600, folders 0700)", resume=SAFE,
        instead=NOT_IN_PLAY
    )


@dataclass(kw_only=True, slots=True)
class DataConfig:
    train: list[str] = option(
        factory=list, help="files of training tasks; parquet, JSON lines, JSON array, hf://datasets/OWNER/NAME/FILE, "
        "or benchmark:NAME/SPLIT",
        resume=NUMBERS, instead=NOT_IN_PLAY,
        aka="data.train_files train_files prompt_data dataset dataset_name data.path"
    )
    valid: list[str] = option(
        factory=list, help="files of validation tasks; as data.train", resume=VALIDATION, instead=NOT_IN_PLAY,
        aka="data.val_files val_files eval_dataset data.valid_files data.val data.eval"
    )
    columns: dict[str, str | None] = option(
        factory=dict, resume=NUMBERS, instead=NOT_IN_PLAY, aka={
            "prompt": "data.prompt_key input_key", "answer": "data.answer_key label_key",
            "data_source": "data.reward_fn_key",
        },
        help="names of the columns prompt, answer, data_source, tools, id, difficulty; a dot reaches into nested "
        "values",
        entries=dict.fromkeys(("id", "prompt", "answer", "data_source", "tools", "difficulty"))
    )
    max_prompt_tokens: int = option(
        2048, "longest prompt, in tokens; longer tasks are left out and counted", minimum=1, resume=NUMBERS,
        aka="max_prompt_length prompt_max_len"
    )
    limits: dict[str, int] = option(
        factory=dict, help="number of first tasks that are read, by `train` and `valid`; without: all",
        resume={"train": NUMBERS, "valid": VALIDATION},
        instead=NOT_IN_PLAY, entries={"train": AT_LEAST_1, "valid": AT_LEAST_1},
        aka={"train": "data.train_max_samples max_samples", "valid": "data.val_max_samples"}
    )
    order: Order = option(
        Order.SHUFFLED, "order of the tasks in every pass; shuffled: by run.seed; curriculum: from easy to hard, by "
        "data.columns.difficulty; file: as written", resume=ORDER, instead=NOT_IN_PLAY,
        aka="data.shuffle shuffle_dataset shuffle"
    )
    weights: dict[str, float] = option(
        factory=dict, help="share of draws, by data source; empty: every task equally often", resume=NUMBERS,
        instead=NOT_IN_PLAY
    )
    difficulty: dict[str, float] = option(
        factory=dict, resume=NUMBERS, instead=NOT_IN_PLAY,
        help="`min` and `max` of data.columns.difficulty; tasks outside are left out and counted",
        entries=dict.fromkeys(("min", "max"))
    )
    on_bad_row: OnBadRow = option(
        OnBadRow.ERROR, "a row that cannot be read; error: the run does not start; skip: it is left out and counted",
        resume=NUMBERS, instead=NOT_IN_PLAY
    )
    chat_markup: ChatMarkup = option(
        ChatMarkup.KEEP, "special tokens of the chat template in the text of a prompt; keep: they remain special, and "
        "are counted; neutralise: they become plain text", resume=NUMBERS
    )


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    path: str = option(
        MISSING, "a Hugging Face folder, or OWNER/NAME of the hub", aka="model_name_or_path model_name pretrain"
    )
    tokenizer: str | None = option(None, "folder of the tokenizer, or OWNER/NAME of the hub; null: the model's")
    chat_template: str | None = option(None, "file of a chat template; null: the tokenizer's own")
    chat_template_kwargs: dict[str, Any] = option(
        factory=dict, help="variables of the chat template, such as enable_thinking"
    )
    dtype: Dtype = option(
        Dtype.FLOAT32, "number type of computation; trained weights and the optimiser's state are float32 in any case",
        aka="bf16 fp16 torch_dtype model_dtype"
    )
    attention: Attention = option(
        Attention.AUTO, "implementation of attention; auto: on CUDA flash-attention where it is installed, else "
        "varlen; otherwise sdpa", aka="attn_implementation flash_attn"
    )
    device: str = option("auto", "auto, cpu or cuda; auto: CUDA where there is a GPU")
    trust_remote_code: bool = option(False, "run Python code of the model's folder; only on the command line")


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    name: str = option("local", "local: all in this process; ray: workers are Ray actors", choices=("local", "ray"))
    address: str | None = option(
        None, "address of a running Ray cluster, `auto` finds it; null: start one on this machine",
        instead={"sft": None}
    )
    policy_workers: int = option(
        1, "processes that train the policy (ranks), one GPU each", minimum=1,
        aka="n_gpus_per_node nnodes num_gpus n_gpus gpus num_processes actor_num_gpus_per_node"
    )
    rollout_workers: int = option(
        1, "engines that generate rollouts, each with its own scheduler", minimum=1, instead={"sft": None},
        aka="vllm_num_engines num_engines"
    )
    colocate: bool = option(
        False, "policy and rollout workers take turns on the same GPUs", instead={"sft": None},
        aka="hybrid_engine colocate_all_models vllm_mode"
    )
    timeout_s: float = option(
        1800.0, "longest wait for a worker, in seconds (start, weight sync, save; an update: from its last micro-batch "
        "on)",
        above=0
    )


@dataclass(kw_only=True, slots=True)
class Config:
    """The configuration of a run. `tools`, `rewards` and `benchmarks` map registered names to their settings."""

    run: RunConfig = option(
        factory=RunConfig, help="directory, seed and files of a run", jobs="train sft eval play judge"
    )
    data: DataConfig = option(factory=DataConfig, help="tasks of training and validation", jobs="train eval data play")
    model: ModelConfig = option(
        factory=ModelConfig, help="the model, its tokenizer and number type", resume=NUMBERS,
        jobs="train sft eval data play judge"
    )
    engine: ComponentConfig = option(
        factory=ComponentConfig, help="what generates tokens", resume=NUMBERS, jobs="train eval play",
        aka="rollout.name use_vllm backend"
    )
    rollout: RolloutConfig = option(
        factory=RolloutConfig, help="size, limits and deadlines of rollouts", jobs="train eval play"
    )
    rollout_step: RolloutStepConfig = option(
        factory=RolloutStepConfig, help="the turn protocol: how the model calls tools and answers, or an environment",
        resume=NUMBERS, jobs="train sft eval data play"
    )
    branch_policy: ComponentConfig = option(
        factory=ComponentConfig, help="when a rollout forks, and where", resume=NUMBERS, jobs="train",
        aka="beam_size branch_probability entropy_weight"
    )
    tools: dict[str, ToolConfig] = option(
        factory=dict, help="the tools that the model may call; NAME is any of them", jobs="train sft eval data play"
    )
    rewards: dict[str, RewardConfig] = option(
        factory=dict, help="what scores rollouts; NAME is any of them", resume=NUMBERS, jobs="train judge",
        aka="reward_funcs reward_function custom_reward_function.path custom_reward_function.name "
            "reward_model.reward_manager"
    )
    advantage: ComponentConfig = option(
        factory=ComponentConfig, help="how rewards become advantages", resume=NUMBERS, jobs="train",
        aka="algorithm.adv_estimator adv_estimator advantage_estimator"
    )
    policy_loss: ComponentConfig = option(
        factory=ComponentConfig, help="the loss of the policy", resume=NUMBERS, jobs="train"
    )
    train: TrainConfig = option(
        factory=TrainConfig, help="steps, loss, validation and checkpoints of `ramet train`", jobs="train"
    )
    policy: PolicyConfig = option(
        factory=PolicyConfig, help="optimiser, memory and parallelism of the policy", jobs="train"
    )
    sft: SftConfig = option(factory=SftConfig, help="data and training of `ramet sft`", jobs="sft data")
    evaluate: EvaluateConfig = option(factory=EvaluateConfig, help="samples of benchmarks", jobs="train eval")
    benchmarks: dict[str, BenchmarkConfig] = option(
        factory=dict, help="what a model is measured on; NAME is any of them", resume=MEASURED, jobs="train eval",
        aka="tasks eval_tasks"
    )
    cluster: ClusterConfig = option(
        factory=ClusterConfig, help="processes and machines", resume=SAFE, jobs="train sft eval"
    )
    trackers: list[str] = option(
        factory=lambda: ["console", "jsonl"], help="where metrics are logged; console, jsonl, samples, wandb, "
        "tensorboard, and trackers of plugins", resume=SAFE, jobs="train sft eval",
        aka="trainer.logger report_to logger use_wandb"
    )
    wandb: dict[str, Any] = option(
        factory=dict, help="options of the tracker wandb: project, entity, name, group, tags, mode; its key comes from "
        "the environment (WANDB_API_KEY)", resume=SAFE,
        jobs="train sft eval", aka={"project": "trainer.project_name project_name wandb_project"},
        entries=dict.fromkeys(("project", "entity", "name", "group", "tags", "mode"))
    )
