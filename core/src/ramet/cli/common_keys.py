"""The keys that people set, for each job: what `ramet JOB --help` shows first. The one place where they are chosen.

A section of components (`tools`) stands for its choice. `EXAMPLES` are command lines that run as they are written.
"""

from __future__ import annotations

COMMON = {
    "train": (
        "model.path", "model.dtype", "data.train", "data.valid", "run.name",
        "engine", "tools", "rewards", "trackers",
        "rollout.group_size", "rollout.max_turns", "rollout.max_tool_calls", "rollout.max_response_tokens",
        "rollout.temperature", "rollout_step.instruction",
        "train.steps", "train.tasks_per_step", "train.minibatches", "train.kl_coef",
        "train.eval_every", "train.eval_k", "train.save_every", "train.staleness",
        "policy.lr", "policy.lora_rank", "policy.max_microbatch_tokens", "policy.activation_checkpointing",
        "policy.offload",
        "cluster", "cluster.policy_workers", "cluster.rollout_workers", "cluster.colocate",
    ),
    "sft": (
        "model.path", "model.dtype", "model.chat_template", "run.name", "run.out", "run.seed",
        "sft.data", "sft.valid", "sft.valid_share", "sft.columns", "sft.mixing", "sft.max_samples", "sft.max_tokens",
        "sft.truncate", "sft.malformed", "sft.mask_history", "sft.mask_tags",
        "rollout_step", "rollout_step.instruction", "tools",
        "sft.epochs", "sft.sequences_per_step", "sft.max_microbatch_tokens", "sft.lr", "sft.lora_rank", "sft.trainer",
        "sft.strategy", "cluster.policy_workers", "trackers",
    ),
    "eval": (
        "model.path", "model.dtype", "run.name", "run.out", "run.seed",
        "benchmarks", "benchmarks.NAME.limit", "benchmarks.NAME.split", "benchmarks.NAME.limits",
        "evaluate.k", "evaluate.sampling",
        "engine", "tools", "tools.NAME.timeout_s", "tools.NAME.max_result_tokens",
        "rollout_step", "rollout_step.instruction", "rollout_step.system_prompt",
        "rollout.max_turns", "rollout.max_tool_calls", "rollout.max_response_tokens", "rollout.max_concurrent",
        "rollout.deadline_s", "rollout.max_masked_share", "data.max_prompt_tokens",
        "cluster", "cluster.rollout_workers", "trackers",
    ),
}  # fmt: skip
EXAMPLES = {
    "train": (
        "ramet train algorithm=arpo model.path=Qwen/Qwen2.5-0.5B-Instruct data.train=tasks.jsonl \\",
        "    'tools=[python]' 'rewards=[custom]' rewards.custom.params.path=reward.py --dry-run",
    ),
    "sft": ("ramet sft model.path=Qwen/Qwen2.5-0.5B-Instruct sft.data=traces.jsonl 'tools=[python]' --dry-run",),
    "eval": ("ramet eval model.path=exported 'benchmarks=[gsm8k]' 'tools=[python]' evaluate.k=4 --dry-run",),
}
