"""What other trainers call our keys: verl (`ppo_trainer.yaml`), TRL (`GRPOConfig`, `SFTConfig`), OpenRLHF's options.

Used for one thing: the "did you mean" of an unknown key. No alias is ever accepted as a key. Names of a key of
the core are beside it (`option(aka=…)`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ramet.config.keys import OTHER_NAMES
from ramet.config.sections import COMPONENTS

# Options of components that several of them have, or that others call the same -> the names of others.
OF_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "engine.params.tensor_parallel": (
        "tensor_model_parallel_size", "tensor_parallel_size", "vllm_tensor_parallel_size",
    ),
    "engine.params.gpu_memory_utilization": ("rollout.gpu_memory_utilization", "vllm_gpu_memory_utilization"),
    "engine.params.slots": ("max_num_seqs",),
    "advantage.params.gamma": ("algorithm.gamma",),
    "advantage.params.lam": ("algorithm.lam", "gae_lambda", "lambd"),
    "advantage.params.normalize_std": ("algorithm.norm_adv_by_std_in_grpo", "scale_rewards"),
    "advantage.params.critic_lr": ("critic.optim.lr", "critic_learning_rate"),
    "policy_loss.params.clip_low": ("clip_ratio", "clip_ratio_low", "epsilon", "eps_clip", "cliprange"),
    "policy_loss.params.clip_high": ("clip_ratio_high", "epsilon_high"),
    "policy_loss.params.dual_clip": ("clip_ratio_c",),
}  # fmt: skip
NAMES = {**OTHER_NAMES, **OF_OPTIONS}
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
