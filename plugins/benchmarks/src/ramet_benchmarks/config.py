"""Options of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ramet import OpenAIOptions, code_of_reward


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
class JudgeConfig:
    """A language model that says whether answers are right: the reward `llm_judge`, as one more metric."""

    ask: bool = False  # true: the metric `judge`, which is then the first
    server: OpenAIOptions = field(default_factory=OpenAIOptions)
    prompt: str = "equivalence_v2"  # a prompt of ramet-rewards, or a file with {question}, {gold} and {answer}
    cache: str | None = None  # file that keeps verdicts over runs; null: one of the run
    max_tokens: int = 512  # of a verdict; a judge that thinks first needs thousands
    extra: dict[str, Any] = field(default_factory=dict)  # more parameters of the request, by name


@dataclass(kw_only=True, slots=True)
class PublishedConfig:
    path: str | None = None  # a .jsonl file, a folder of them, or another name on the hub; null: the hub
    judge: JudgeConfig = field(default_factory=JudgeConfig)


@dataclass(kw_only=True, slots=True)
class FilesConfig:
    paths: list[str] = field(default_factory=list)  # files of JSON lines, or of one JSON array each
    question: str = "question"  # column
    answer: str = "answer"  # column: a text, a number, or a list of them, each of which is right
    id: str | None = None  # column; null: file stem and row
    metrics: dict[str, str] = field(default_factory=dict)  # name of a metric -> reward that measures it; first: main
    options: dict[str, Any] = field(default_factory=dict)  # name of a metric -> options of its reward
    prompt: str | None = None  # template of the user's message with {question}; null: the question alone
    tools: list[str] = field(default_factory=list)  # that its tasks may use; empty: all that are configured
    limits: dict[str, int] = field(default_factory=dict)  # calls of a rollout, by tool
    judge: JudgeConfig = field(default_factory=JudgeConfig)

    def runs_code(self) -> dict[str, str]:
        """Option -> file of code, of the rewards that measure: a recipe may not name it by itself."""
        return {
            f"options.{metric}.{option}": text
            for metric, name in self.metrics.items()
            for option, text in code_of_reward(name, self.options.get(metric) or {}).items()
        }
