"""Adapters of `rewards.jsonl`: the released forms, which are `ramet_rewards.release`, where the plugin is installed."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any

from golden_adapter import Adapter

if importlib.util.find_spec("ramet_rewards") is None:
    ADAPTERS: dict[str, Adapter] = {}
else:
    from ramet_rewards.release import deep_research, evaluation, maths

    def equal(given: dict[str, Any]) -> bool:
        return maths.is_equiv(given["str1"], given["str2"])

    def dapo(given: dict[str, Any]) -> dict[str, Any]:
        strict = given.get("strict_box_verify", False)
        return maths.dapo_score(given["solution_str"], given["ground_truth"], strict_box=strict)

    def released_reward(given: dict[str, Any]) -> dict[str, Any]:
        return dataclasses.asdict(deep_research.compute_score(given["solution_str"], given["ground_truth"]))

    def judged(given: dict[str, Any]) -> list[Any]:
        reply = given["judge_reply"]
        return [evaluation.judged_right(reply, given["pred_answer"], given["labeled_answer"]), reply]

    def exact_match(within: bool) -> Callable[[dict[str, Any]], float]:
        return lambda given: maths.em_score(given["solution_str"], given["ground_truth"], within=within)

    RUNS: dict[str, Callable[[dict[str, Any]], Any]] = {
        "deep_research.compute_score": released_reward,
        "deep_research.extract_answer": lambda given: deep_research.extract_answer(given["text"]),
        "deep_research.get_f1_score": lambda given: deep_research.get_f1_score(
            given["prediction"], given["ground_truths"]
        ),
        "deep_research.normalize_answer": lambda given: deep_research.normalize_answer(given["s"]),
        "deep_research.validate_format": lambda given: list(deep_research.validate_format(given["text"])),
        "evaluation.llm_judge.evaluate": judged,
        "evaluation.math_equivalence.is_equiv": equal,
        "evaluation.metrics.evaluate_math_prediction": lambda given: evaluation.math_metrics(
            given["prediction"], given["reference"]
        ),
        "evaluation.metrics.evaluate_qa_prediction": lambda given: evaluation.qa_metrics(
            given["prediction"], given["references"]
        ),
        "evaluation.utils.extract_answer": lambda given: evaluation.extract_answer(given["full_text"]),
        "gsm8k.compute_score": lambda given: maths.gsm8k_score(
            given["solution_str"], given["ground_truth"], given["method"]
        ),
        "math.compute_score": lambda given: maths.compute_score(given["solution_str"], given["ground_truth"]),
        "math.is_equiv": equal,
        "math_dapo.compute_score": dapo,
        "search_r1_em.compute_score": exact_match(within=False),
        "search_r1_em.compute_score_subem": exact_match(within=True),
    }
    ADAPTERS = {name: Adapter(run=run) for name, run in RUNS.items()}
