"""Rewards for Ramet: mathematics, question answering, format. All read `Rollout.answer`; no answer scores 0."""

from __future__ import annotations

from ramet import Register, Reward, hookimpl
from ramet_rewards.config import FormatConfig, MathConfig

ramet_contract = "1"


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("math", "ramet_rewards.math:MathReward", config=MathConfig)
    register("qa_f1", "ramet_rewards.qa_f1:make")
    register("format", "ramet_rewards.format:make", config=FormatConfig)
