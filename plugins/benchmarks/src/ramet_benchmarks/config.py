"""Options of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True)
class ArithmeticConfig:
    operators: list[str] = field(default_factory=lambda: ["*"])  # of + - * // %; tasks are spread evenly over them
    min_operand: int = 10
    max_operand: int = 99
    n_test: int = 200
    n_train: int | None = None  # null: all that are not in the test split
    seed: int = 1  # of the order, and so of the split
    prompt: str = "{problem}=?"


@dataclass(kw_only=True, slots=True)
class Gsm8kConfig:
    path: str = "openai/gsm8k"  # name on the hub, a folder with SPLIT.jsonl files, or one .jsonl file for all splits
