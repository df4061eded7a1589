"""Rewards for Ramet: mathematics, question answering and format, which read the final answer, and length."""

from __future__ import annotations

from ramet import Register, Reward, hookimpl
from ramet_rewards.config import FormatConfig, MathConfig, OverlongConfig

ramet_contract = "1"


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("math", "ramet_rewards.math:MathReward", config=MathConfig)
    register("qa_f1", "ramet_rewards.qa_f1:make")
    register("format", "ramet_rewards.format:make", config=FormatConfig)
    register("overlong", "ramet_rewards.overlong:make", config=OverlongConfig)
