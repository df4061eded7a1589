"""Rewards for Ramet: mathematics, question answering, format, length, cost, a judge, and custom functions."""

from __future__ import annotations

from ramet import Register, Reward, hookimpl
from ramet_rewards import config

ramet_contract = "1"


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("math", "ramet_rewards.math:MathReward", config=config.MathConfig)
    register("math_dapo", "ramet_rewards.math_dapo:MathDapo", config=config.MathDapoConfig)
    register("gsm8k", "ramet_rewards.gsm8k:Gsm8k", config=config.Gsm8kRewardConfig)
    register("qa_em", "ramet_rewards.qa:em", config=config.QaEmConfig)
    register("qa_f1", "ramet_rewards.qa:f1", config=config.QaConfig)
    register("multiple_choice", "ramet_rewards.multiple_choice:make", config=config.MultipleChoiceConfig)
    register("deep_research", "ramet_rewards.deep_research:DeepResearch", config=config.DeepResearchConfig)
    register("deep_research_release", "ramet_rewards.release.deep_research:make")
    register("format_correct", "ramet_rewards.format_correct:FormatCorrect", config=config.FormatCorrectConfig)
    register("format", "ramet_rewards.format:make", config=config.FormatConfig)
    register("llm_judge", "ramet_rewards.llm_judge:LlmJudge", config=config.LlmJudgeConfig)
    register("custom", "ramet_rewards.custom:Custom", config=config.CustomConfig)
    register("length", "ramet_rewards.length:make", config=config.LengthConfig)
    register("overlong", "ramet_rewards.overlong:make", config=config.OverlongConfig)
    register("tool_cost", "ramet_rewards.tool_cost:ToolCost", config=config.ToolCostConfig)
    register("tool_calls", "ramet_rewards.tool_calls:ToolCalls", config=config.ToolCallsConfig)
    register("repetition", "ramet_rewards.repetition:make", config=config.RepetitionConfig)
