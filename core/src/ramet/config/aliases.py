"""What other trainers call our keys: verl (`ppo_trainer.yaml`), TRL (`GRPOConfig`, `SFTConfig`), OpenRLHF's options.

Used for one thing: the "did you mean" of a key that there is not. No alias is ever accepted as a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ramet.config.sections import COMPONENTS

# Our key -> the names of others, in full or as far as their last words say what is meant.
NAMES: Mapping[str, tuple[str, ...]] = {
    "run.name": ("trainer.experiment_name", "experiment_name", "output_dir", "run_name", "trainer.resume_mode"),
    "run.root": ("trainer.default_local_dir", "logging_dir", "save_path"),
    "model.path": ("model_name_or_path", "model_name", "pretrain"),
    "model.dtype": ("bf16", "fp16", "torch_dtype", "model_dtype"),
    "model.attention": ("attn_implementation", "flash_attn"),
    "data.train": ("data.train_files", "train_files", "prompt_data", "dataset", "dataset_name", "data.path"),
    "data.valid": ("data.val_files", "val_files", "eval_dataset", "data.valid_files", "data.val", "data.eval"),
    "data.max_prompt_tokens": ("max_prompt_length", "prompt_max_len"),
    "data.columns.prompt": ("data.prompt_key", "input_key"),
    "data.columns.answer": ("data.answer_key", "label_key"),
    "data.columns.data_source": ("data.reward_fn_key",),
    "data.limit": ("data.train_max_samples", "max_samples"),
    "engine": ("rollout.name", "use_vllm", "backend"),
    "engine.params.tensor_parallel": (
        "tensor_model_parallel_size", "tensor_parallel_size", "vllm_tensor_parallel_size",
    ),
    "engine.params.gpu_memory_utilization": ("rollout.gpu_memory_utilization", "vllm_gpu_memory_utilization"),
    "engine.params.slots": ("max_num_seqs",),
    "rollout.group_size": (
        "rollout.n", "rollout_n", "num_generations", "n_samples_per_prompt", "num_rollouts", "group_size",
    ),
    "evaluate.k": ("rollout.n", "num_generations", "n_samples_per_prompt", "val_kwargs.n", "n_samples", "pass_k"),
    "train.eval_k": ("val_kwargs.n",),
    "rollout.temperature": ("temperature",),
    "evaluate.temperature": ("temperature", "val_kwargs.temperature"),
    "train.eval_temperature": ("val_kwargs.temperature",),
    "rollout.top_p": ("top_p",),
    "evaluate.top_p": ("top_p", "val_kwargs.top_p"),
    "train.eval_top_p": ("val_kwargs.top_p",),
    "rollout.top_k": ("top_k",),
    "evaluate.top_k": ("top_k", "val_kwargs.top_k"),
    "train.eval_top_k": ("val_kwargs.top_k",),
    "rollout.max_response_tokens": (
        "max_response_length", "max_completion_length", "generate_max_len", "max_new_tokens", "max_tokens",
        "response_length",
    ),
    "rollout.max_tool_calls": ("call_limit",),
    "branch_policy": ("beam_size", "branch_probability", "entropy_weight"),
    "rollout.max_turns": ("max_assistant_turns", "max_user_turns", "max_iterations"),
    "rewards": (
        "reward_funcs", "reward_function", "custom_reward_function.path", "custom_reward_function.name",
        "reward_model.reward_manager",
    ),
    "advantage": ("algorithm.adv_estimator", "adv_estimator", "advantage_estimator"),
    "advantage.params.gamma": ("algorithm.gamma",),
    "advantage.params.lam": ("algorithm.lam", "gae_lambda", "lambd"),
    "advantage.params.normalize_std": ("algorithm.norm_adv_by_std_in_grpo", "scale_rewards"),
    "advantage.params.critic_lr": ("critic.optim.lr", "critic_learning_rate"),
    "policy_loss.params.clip_low": ("clip_ratio", "clip_ratio_low", "epsilon", "eps_clip", "cliprange"),
    "policy_loss.params.clip_high": ("clip_ratio_high", "epsilon_high"),
    "policy_loss.params.dual_clip": ("clip_ratio_c",),
    "train.tasks_per_step": (
        "train_batch_size", "per_device_train_batch_size", "rollout_batch_size", "gen_batch_size", "batch_size",
    ),
    "train.minibatches": ("ppo_mini_batch_size", "mini_batch_size", "num_mini_batches", "steps_per_generation"),
    "train.epochs": ("ppo_epochs", "num_iterations", "num_ppo_epochs"),
    "train.steps": (
        "total_epochs", "total_training_steps", "num_train_epochs", "max_steps", "num_episodes", "total_steps",
    ),
    "train.kl_coef": ("kl_coef", "beta", "kl_loss_coef", "use_kl_loss", "init_kl_coef", "use_kl_in_reward"),
    "train.kl_estimator": ("kl_loss_type", "kl_penalty", "kl_estimator"),
    "train.entropy_coef": ("entropy_coeff", "entropy_loss_coef", "ent_coef"),
    "train.loss_aggregation": ("loss_agg_mode", "loss_type"),
    "train.resample_rounds": ("filter_groups.enable", "filter_groups.max_num_gen_batches", "dynamic_filtering"),
    "train.tis_cap": ("tis_imp_ratio_cap", "vllm_importance_sampling_cap"),
    "train.save_every": ("save_freq", "save_steps"),
    "train.eval_every": ("test_freq", "eval_steps", "eval_freq"),
    "train.eval_first": ("val_before_train", "eval_on_start"),
    "train.keep_checkpoints": ("max_actor_ckpt_to_keep", "save_total_limit", "max_ckpt_num"),
    "policy.lr": ("lr", "learning_rate", "optim.lr", "actor_learning_rate"),
    "policy.beta1": ("adam_beta1",),
    "policy.beta2": ("adam_beta2",),
    "policy.grad_clip": ("clip_grad", "max_grad_norm", "max_norm", "gradient_clipping"),
    "policy.schedule": ("lr_scheduler_type", "lr_scheduler", "warmup_style"),
    "policy.warmup_steps": ("lr_warmup_steps", "warmup_ratio", "lr_warmup_steps_ratio", "lr_warmup_ratio"),
    "policy.max_microbatch_tokens": (
        "ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size", "ppo_max_token_len_per_gpu", "micro_train_batch_size",
        "log_prob_micro_batch_size_per_gpu", "gradient_accumulation_steps", "max_tokens_per_gpu",
    ),
    "policy.activation_checkpointing": ("gradient_checkpointing", "enable_gradient_checkpointing"),
    "policy.sequence_parallel": ("ulysses_sequence_parallel_size", "ring_attn_size"),
    "policy.replicas": ("data_parallel_replicate_degree", "dp_replicate_size"),
    "policy.offload": ("param_offload", "optimizer_offload", "offload_policy", "adam_offload"),
    "policy.compile": ("use_torch_compile", "torch_compile"),
    "policy.lora_rank": ("lora_r", "use_peft", "model.lora_rank"),
    "sft.data": (
        "data.train_files", "train_files", "dataset", "dataset_name", "data.train", "data.path", "train_file",
    ),
    "sft.strategy": ("deepspeed", "fsdp", "zero_stage"),
    "sft.epochs": ("total_epochs", "num_train_epochs", "max_epochs", "num_epochs"),
    "sft.max_steps": ("total_training_steps", "total_steps", "steps"),
    "sft.sequences_per_step": ("train_batch_size", "batch_size", "per_device_train_batch_size"),
    "sft.max_microbatch_tokens": (
        "per_device_train_batch_size", "micro_batch_size_per_gpu", "micro_train_batch_size", "max_tokens_per_gpu",
        "gradient_accumulation_steps", "accumulate", "packing",
    ),
    "sft.lr": ("lr", "learning_rate", "optim.lr"),
    "sft.beta2": ("adam_beta2",),
    "sft.schedule": ("lr_scheduler_type", "lr_scheduler"),
    "sft.warmup_ratio": ("warmup_steps", "lr_warmup_steps", "lr_warmup_ratio", "lr_warmup_steps_ratio"),
    "sft.max_tokens": ("max_length", "max_seq_length", "max_seq_len", "max_len", "cutoff_len"),
    "sft.save_every": ("save_freq", "save_steps"),
    "sft.log_every": ("logging_steps",),
    "evaluate.out": ("output_path",),
    "benchmarks": ("tasks", "eval_tasks"),
    "cluster.policy_workers": (
        "n_gpus_per_node", "nnodes", "num_gpus", "n_gpus", "gpus", "num_processes", "actor_num_gpus_per_node",
    ),
    "cluster.rollout_workers": ("vllm_num_engines", "num_engines"),
    "cluster.colocate": ("hybrid_engine", "colocate_all_models", "vllm_mode"),
    "wandb.project": ("trainer.project_name", "project_name", "wandb_project"),
    "trackers": ("trainer.logger", "report_to", "logger", "use_wandb"),
}  # fmt: skip
# Sections of others that only look like one of ours: a key in them is no slip of the keyboard.
FOREIGN_SECTIONS = frozenset({"actor_rollout_ref", "trainer", "critic", "custom_reward_function", "reward_model"})
COMPONENT_SECTIONS = frozenset(group.name for group in COMPONENTS)


def meant(key: str, accepts: Callable[[str], bool]) -> list[str] | None:
    """Our keys for what others call `key`, as far as the job `accepts` them; None if no other calls anything so.

    The longest end of the key that is a name of others counts: `actor_rollout_ref.rollout.n` is `rollout.n`. Options of
    a component are its own: there only whole names count.
    """
    parts = key.split(".")
    ends = 1 if parts[0] in COMPONENT_SECTIONS else len(parts)
    for start in range(ends):
        name = ".".join(parts[start:])
        if start and accepts(name):
            return [name]
        targets = [target for target, names in NAMES.items() if name in names]
        if targets:
            return [target for target in targets if accepts(target)]
    return None
