"""Options of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ramet import OpenAIOptions, code_of_reward


@dataclass(kw_only=True, slots=True)
class ArithmeticConfig:
    """Generated arithmetic tasks."""

    operators: list[str] = field(default_factory=lambda: ["*"])  # operators of the tasks, of + - * // %, equally often
    min_operand: int = 10  # smallest number
    max_operand: int = 99  # largest number
    n_test: int = 200  # number of tasks of the test split
    n_train: int | None = None  # number of training tasks; null: all that are not in the test split
    seed: int = 1  # seed of the order, and so of the split
    prompt: str = "{problem}=?"  # template of the question


@dataclass(kw_only=True, slots=True)
class JudgeConfig:
    """A language model that says whether answers are right: the reward `llm_judge`, as one more metric."""

    ask: bool = False  # ask the judge: its verdicts are the metric `judge`, which is then the first
    server: OpenAIOptions = field(default_factory=OpenAIOptions)
    prompt: str = "equivalence_v2"  # prompt of ramet-rewards, or a file with {question}, {gold} and {answer}
    cache: str | None = None  # file that keeps verdicts over runs; null: a file of the run
    max_tokens: int = 512  # most tokens of a verdict; a judge that thinks first needs thousands
    extra: dict[str, Any] = field(default_factory=dict)  # more parameters of the request, by name


@dataclass(kw_only=True, slots=True)
class PublishedConfig:
    path: str | None = None  # .jsonl file, a folder of them, or another name on the hub; null: the hub
    judge: JudgeConfig = field(default_factory=JudgeConfig)


@dataclass(kw_only=True, slots=True)
class FilesConfig:
    """Tasks in files of your own."""

    paths: list[str] = field(default_factory=list)  # files of JSON lines, or of one JSON array each
    question: str = "question"  # column with the question
    answer: str = "answer"  # column with the answer: a text, a number, or a list of right ones
    id: str | None = None  # column with the id; null: name of the file and row
    metrics: dict[str, str] = field(default_factory=dict)  # reward of each metric, by its name; the first is the main
    options: dict[str, Any] = field(default_factory=dict)  # options of the reward, by name of the metric
    prompt: str | None = None  # template of the user's message with {question}; null: only the question
    tools: list[str] = field(default_factory=list)  # tools that its tasks may use; empty: all configured
    limits: dict[str, int] = field(default_factory=dict)  # most calls of a rollout, by tool
    judge: JudgeConfig = field(default_factory=JudgeConfig)

    def runs_code(self) -> dict[str, str]:
        """Option -> file of code, of the rewards that measure: a recipe may not name it by itself."""
        return {
            f"options.{metric}.{option}": text
            for metric, name in self.metrics.items()
            for option, text in code_of_reward(name, self.options.get(metric) or {}).items()
        }
