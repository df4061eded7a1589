"""Options of the rewards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ramet import OpenAIOptions, option


def _raise(problems: Iterable[str]) -> None:
    all_problems = list(problems)
    if all_problems:
        raise ValueError("; ".join(all_problems))


def _existing(paths: Mapping[str, str]) -> dict[str, str]:
    expanded = {option: Path(path).expanduser() for option, path in paths.items()}
    return {option: str(path) for option, path in expanded.items() if path.is_file()}


@dataclass(kw_only=True, slots=True)
class MathConfig:
    """Equality of the answer with the gold answer, as mathematics."""

    timeout_s: float = option(5.0, "CPU time for one answer, in seconds; an answer that takes more scores 0", above=0)
    budget_s: float = option(
        60.0, "CPU time of slow answers together, in seconds; beyond it an answer has 0.25 s for a while", above=0
    )
    workers: int = option(
        2,
        "processes that compare, of each worker where workers score (cluster=ray); they start with the first answer "
        "that is not equal as text",
        above=0,
    )
    allow_terms: bool = option(False, "a term with the value of the gold number is right too (17*23 for 391)")


@dataclass(kw_only=True, slots=True)
class TagRules:
    """Tag names are without brackets."""

    paired: list[str] = option(
        factory=lambda: ["think", "python", "search", "answer"], help="tags that must be closed and must not cross"
    )
    required: list[str] = option(factory=lambda: ["answer"], help="tags of which one pair must be there")
    forbidden: list[str] = option(factory=lambda: ["result"], help="tags that only the environment may write")

    def __post_init__(self) -> None:
        paired = ", ".join(self.paired)
        names = [name for name in (*self.paired, *self.forbidden) if not re.fullmatch(r"[^<>/\s]+", name)]
        problems = [f"tags are named {name!r}; allowed: names without brackets, slashes and spaces" for name in names]
        if absent := sorted(set(self.required) - set(self.paired)):
            problems.append(f"required names {', '.join(absent)}; allowed: tags of `paired`, that is {paired}")
        if both := sorted(set(self.forbidden) & set(self.paired)):
            problems.append(
                f"forbidden names {', '.join(both)}; allowed: tags that are not in `paired`, that is {paired}"
            )
        if not self.paired and not self.forbidden:
            problems.append("paired and forbidden are empty; allowed: at least one tag")
        _raise(problems)


@dataclass(kw_only=True, slots=True)
class FormatConfig(TagRules):
    """Format of a rollout: tags that must be closed, must be there, or must not."""

    good: float = option(1.0, "score of a rollout in the format")
    bad: float = option(0.0, "score of any other rollout")
    leave_out_truncated: bool = option(
        False, "leave rollouts that the token limit cut out of statistics and loss (DAPO, section 3.4)"
    )


class TextScore(StrEnum):
    EM = "em"  # 1 for equal texts, else 0
    F1 = "f1"  # the share of words in common


class Maths(StrEnum):
    AUTO = "auto"  # gold answers that are numbers or formulas are compared as such, all others as text
    ALWAYS = "always"
    NEVER = "never"


@dataclass(kw_only=True, slots=True)
class AccuracyConfig:
    """The way in which an answer is compared with its gold answers."""

    text: TextScore = option(TextScore.F1, "score of texts; em: 1 for equal ones; f1: share of words in common")
    maths: Maths = option(Maths.AUTO, "compare as maths; auto: where the gold answer is a number or a formula")
    math: MathConfig = field(default_factory=MathConfig)


@dataclass(kw_only=True, slots=True)
class ThoughtRules(TagRules):
    required: list[str] = option(factory=lambda: ["think", "answer"], help="tags of which one pair must be there")


@dataclass(kw_only=True, slots=True)
class ExactAccuracyConfig(AccuracyConfig):
    text: TextScore = option(TextScore.EM, "score of texts; em: 1 for equal ones; f1: share of words in common")


@dataclass(kw_only=True, slots=True)
class DeepResearchConfig:
    """Accuracy of a deep-research answer, with a penalty for its format and a bonus for several tools."""

    bad_format: float = option(-1.0, "score of a broken format, whatever the answer")
    bonus: float = option(0.1, "added to an answer that is not wrong, if several tools were used")
    bonus_tools: int = option(2, "different tools, each with a call that ran, that the bonus needs", above=0)
    boxed: bool = option(True, "the answer has to be in a \\boxed{…}")
    tags: ThoughtRules = field(default_factory=ThoughtRules)
    accuracy: AccuracyConfig = field(default_factory=AccuracyConfig)


@dataclass(kw_only=True, slots=True)
class FormatCorrectConfig:
    """Weighted sum of format and accuracy."""

    format_weight: float = option(0.2, "weight of the format (0 or 1) in the score")
    correct_weight: float = option(0.8, "weight of the answer (0 to 1) in the score")
    boxed: bool = option(False, "the answer has to be in a \\boxed{…}")
    tags: TagRules = field(default_factory=TagRules)
    accuracy: ExactAccuracyConfig = field(default_factory=ExactAccuracyConfig)


class Normalisation(StrEnum):
    SQUAD = "squad"  # the data sets' own: case, ASCII punctuation and English articles do not count
    UNICODE = "unicode"  # neither do widths, accents, punctuation of any script; signs and decimals do


@dataclass(kw_only=True, slots=True)
class QaConfig:
    """Share of words that answer and gold answer have in common (F1)."""

    normalisation: Normalisation = option(
        Normalisation.SQUAD, "what does not count; squad: case, ASCII punctuation, articles; unicode: any script's too"
    )


@dataclass(kw_only=True, slots=True)
class QaEmConfig(QaConfig):
    """Equality of the answer with a gold answer, as texts (exact match)."""

    within: bool = option(False, "an answer that contains a gold answer, word by word, is right too")


@dataclass(kw_only=True, slots=True)
class MathDapoConfig:
    """DAPO's rule for mathematics: the last line `Answer: …`, or the last box."""

    right: float = option(1.0, "score of a right answer")
    wrong: float = option(-1.0, "score of a wrong answer")
    boxed: bool = option(False, "read the last \\boxed{…} instead of the last line `Answer: …`")
    last_chars: int = option(300, "last characters of the last turn that are read", above=0)
    math: MathConfig = field(default_factory=MathConfig)


class Gsm8kMethod(StrEnum):
    STRICT = "strict"  # the number after the last ####
    FLEXIBLE = "flexible"  # the last number of the final answer, or of the last turn where there is none


@dataclass(kw_only=True, slots=True)
class Gsm8kRewardConfig:
    """GSM8K's rule: the number after ####."""

    method: Gsm8kMethod = option(
        Gsm8kMethod.STRICT, "where the answer is read; strict: after the last ####; flexible: the last number"
    )
    format_score: float = option(0.0, "score of a wrong number in the right place")


@dataclass(kw_only=True, slots=True)
class MultipleChoiceConfig:
    """Letter of the right choice, or its text."""

    letters: str = option("ABCDEFGHIJ", "letters of the choices, in their order")
    choices: str = option("choices", "column of the task with the texts of the choices; they are right too")

    def __post_init__(self) -> None:
        if len(set(self.letters)) != len(self.letters) or not self.letters.isalpha() or not self.letters.isupper():
            raise ValueError(f"letters must be different capital letters, got {self.letters!r}")


@dataclass(kw_only=True, slots=True)
class OverlongConfig:
    """Penalty for rollouts near the length limit (DAPO)."""

    max_tokens: int = option(4096, "tokens from which the score is -1; mostly rollout.max_response_tokens", minimum=1)
    buffer_tokens: int = option(1024, "tokens before that over which the score falls from 0 to -1", minimum=1)
    sampled_only: bool = option(
        False, "count sampled tokens only; false: tool results too, as rollout.max_response_tokens does"
    )

    def __post_init__(self) -> None:
        if self.buffer_tokens > self.max_tokens >= 1:
            raise ValueError(f"buffer_tokens must be at most max_tokens={self.max_tokens}, got {self.buffer_tokens}")


@dataclass(kw_only=True, slots=True)
class LengthConfig:
    """Penalty that grows with the length."""

    max_tokens: int = option(4096, "tokens from which the score is -1")
    free_tokens: int = option(0, "tokens up to which the score is 0", minimum=0)
    sampled_only: bool = option(True, "count sampled tokens only; false: tool results too")

    def __post_init__(self) -> None:
        if self.free_tokens >= self.max_tokens:
            raise ValueError(f"free_tokens must be under max_tokens={self.max_tokens}, got {self.free_tokens}")


@dataclass(kw_only=True, slots=True)
class ToolCostConfig:
    """Cost of tool calls."""

    cost: float = option(0.05, "cost of one tool call", minimum=0)
    costs: dict[str, float] = option(factory=dict, help="cost of one call by tool name, instead of `cost`")
    free_calls: int = option(0, "number of first calls that cost nothing", minimum=0)
    most: float = option(1.0, "largest cost of a rollout", minimum=0)

    def __post_init__(self) -> None:
        _raise(f"costs.{name} must be at least 0, got {cost}" for name, cost in self.costs.items() if not cost >= 0)


@dataclass(kw_only=True, slots=True)
class ToolCallsConfig:
    """Comparison of calls with the gold calls; no tool runs."""

    partial: bool = option(False, "score the share of right calls; false: 1 if all are right, else 0")
    exact_text: bool = option(False, "compare texts letter by letter; false: without case, spaces and , . / - _ * ^")


@dataclass(kw_only=True, slots=True)
class RepetitionConfig:
    """Penalty for n-grams that are repeated."""

    ngram: int = option(20, "length of the n-grams, in tokens", above=0)
    free_share: float = option(0.0, "share of repeated n-grams up to which the score is 0", minimum=0, below=1)


@dataclass(kw_only=True, slots=True)
class LlmJudgeConfig:
    """Verdict of a language model on an OpenAI-compatible server."""

    server: OpenAIOptions = field(default_factory=OpenAIOptions)
    prompt: str = option("equivalence_v2", "prompt of this package, or a file with {question}, {gold} and {answer}")
    max_tokens: int = option(512, "most tokens of a verdict; a judge that thinks first needs thousands", above=0)
    deadline_s: float = option(300.0, "time limit of one verdict with all attempts and waits, in seconds", above=0)
    max_answer_chars: int = option(8000, "longest answer in characters; a longer one is wrong without a judge", above=0)
    cache: str | None = option(None, "file that keeps verdicts over runs; null: a file of the run")
    extra: dict[str, Any] = option(factory=dict, help="more parameters of the request, by name")

    def input_files(self) -> dict[str, str]:
        """Return the prompt's file, as `CustomConfig.input_files`; a prompt of this package is not a file."""
        return _existing({"prompt": self.prompt})

    def __post_init__(self) -> None:
        if fixed := sorted({"model", "messages", "temperature", "max_tokens", "stream", "n"} & set(self.extra)):
            raise ValueError(f"extra holds {', '.join(fixed)}; allowed: parameters that the judge does not set itself")


@dataclass(kw_only=True, slots=True)
class CustomConfig:
    """Function in a Python file of yours."""

    path: str = option("", "Python file with the function")
    function: str = option("compute_score", "name of the function in the file")
    workers: int = option(1, "processes that run the function", above=0)
    timeout_s: float = option(
        60.0, "time-out of one call, in seconds; a rollout that takes longer is not judged", above=0
    )
    arguments: dict[str, Any] = option(factory=dict, help="more keyword arguments of the function, by name")

    def input_files(self) -> dict[str, str]:
        """Return the files for the run's manifest: a resume with another file is logged."""
        return _existing({"path": self.path})

    def runs_code(self) -> dict[str, str]:
        """Option -> the file whose code runs: a recipe that is passed on may not name it by itself."""
        return {"path": self.path} if self.path else {}
