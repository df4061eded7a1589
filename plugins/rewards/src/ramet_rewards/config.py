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
    timeout_s: float = option(5.0, "CPU time for one answer; an answer that takes more scores 0", above=0)
    budget_s: float = option(
        60.0, "CPU time of such answers together; beyond it an answer has 0.25 s, until time has passed", above=0
    )
    workers: int = option(
        2, "processes that compare; they start with the first answer that is not plainly equal", above=0
    )
    allow_terms: bool = option(
        False, "where the gold answer is a number, also a term of its value is right (17*23 for 391)"
    )


@dataclass(kw_only=True, slots=True)
class TagRules:
    """Tag names are without brackets."""

    paired: list[str] = option(factory=lambda: ["think", "python", "search", "answer"], help="closed, not crossing")
    required: list[str] = option(factory=lambda: ["answer"], help="at least one pair of each")
    forbidden: list[str] = option(factory=lambda: ["result"], help="only the environment writes these")

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
    good: float = 1.0
    bad: float = 0.0
    leave_out_truncated: bool = option(
        False, "rollouts cut by the token limit leave statistics and loss (DAPO, section 3.4)"
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

    text: TextScore = TextScore.F1
    maths: Maths = Maths.AUTO
    math: MathConfig = field(default_factory=MathConfig)


@dataclass(kw_only=True, slots=True)
class ThoughtRules(TagRules):
    required: list[str] = option(factory=lambda: ["think", "answer"], help="at least one pair of each")


@dataclass(kw_only=True, slots=True)
class ExactAccuracyConfig(AccuracyConfig):
    text: TextScore = TextScore.EM


@dataclass(kw_only=True, slots=True)
class DeepResearchConfig:
    bad_format: float = option(-1.0, "the score of a broken format, whatever the answer")
    bonus: float = option(0.1, "on top of an answer that is not wrong, for several tools")
    bonus_tools: int = option(2, "different tools, each with a call that ran", above=0)
    boxed: bool = option(True, "the answer has to be in a \\boxed{…}")
    tags: ThoughtRules = field(default_factory=ThoughtRules)
    accuracy: AccuracyConfig = field(default_factory=AccuracyConfig)


@dataclass(kw_only=True, slots=True)
class FormatCorrectConfig:
    format_weight: float = 0.2
    correct_weight: float = 0.8
    boxed: bool = option(False, "the answer has to be in a \\boxed{…}")
    tags: TagRules = field(default_factory=TagRules)
    accuracy: ExactAccuracyConfig = field(default_factory=ExactAccuracyConfig)


class Normalisation(StrEnum):
    SQUAD = "squad"  # the data sets' own: case, ASCII punctuation and English articles do not count
    UNICODE = "unicode"  # neither do widths, accents, punctuation of any script; signs and decimals do


@dataclass(kw_only=True, slots=True)
class QaConfig:
    normalisation: Normalisation = Normalisation.SQUAD


@dataclass(kw_only=True, slots=True)
class QaEmConfig(QaConfig):
    within: bool = option(False, "right also if a gold answer is within the answer, word by word")


@dataclass(kw_only=True, slots=True)
class MathDapoConfig:
    right: float = 1.0
    wrong: float = -1.0
    boxed: bool = option(False, "read the last \\boxed{…} instead of the last line `Answer: …`")
    last_chars: int = option(300, "of the last turn; what is before them is not read", above=0)
    math: MathConfig = field(default_factory=MathConfig)


class Gsm8kMethod(StrEnum):
    STRICT = "strict"  # the number after the last ####
    FLEXIBLE = "flexible"  # the last number of the final answer, or of the last turn where there is none


@dataclass(kw_only=True, slots=True)
class Gsm8kRewardConfig:
    method: Gsm8kMethod = Gsm8kMethod.STRICT
    format_score: float = option(0.0, "for a number in the right place that is wrong")


@dataclass(kw_only=True, slots=True)
class MultipleChoiceConfig:
    letters: str = "ABCDEFGHIJ"
    choices: str = option("choices", "column of the task that holds the texts of the choices; then these are right too")

    def __post_init__(self) -> None:
        if len(set(self.letters)) != len(self.letters) or not self.letters.isalpha() or not self.letters.isupper():
            raise ValueError(f"letters must be different capital letters, got {self.letters!r}")


@dataclass(kw_only=True, slots=True)
class OverlongConfig:
    max_tokens: int = option(4096, "from here on the score is -1; rollout.max_response_tokens, as a rule", minimum=1)
    buffer_tokens: int = option(1024, "before it, in which the score falls from 0 to -1", minimum=1)
    sampled_only: bool = option(
        False, "count what the policy wrote; false: tool results too, as the limit of rollouts does"
    )

    def __post_init__(self) -> None:
        if self.buffer_tokens > self.max_tokens >= 1:
            raise ValueError(f"buffer_tokens must be at most max_tokens={self.max_tokens}, got {self.buffer_tokens}")


@dataclass(kw_only=True, slots=True)
class LengthConfig:
    max_tokens: int = option(4096, "from here on the score is -1")
    free_tokens: int = option(0, "up to here it is 0", minimum=0)
    sampled_only: bool = option(True, "count what the policy wrote; false: tool results too")

    def __post_init__(self) -> None:
        if self.free_tokens >= self.max_tokens:
            raise ValueError(f"free_tokens must be under max_tokens={self.max_tokens}, got {self.free_tokens}")


@dataclass(kw_only=True, slots=True)
class ToolCostConfig:
    cost: float = option(0.05, "of one call", minimum=0)
    costs: dict[str, float] = option(factory=dict, help="of one call of a tool, by its name, instead of `cost`")
    free_calls: int = option(0, "the first ones, which cost nothing", minimum=0)
    most: float = option(1.0, "a rollout's calls cost no more than that", minimum=0)

    def __post_init__(self) -> None:
        _raise(f"costs.{name} must be at least 0, got {cost}" for name, cost in self.costs.items() if not cost >= 0)


@dataclass(kw_only=True, slots=True)
class ToolCallsConfig:
    partial: bool = option(False, "the share of calls that are right, instead of 1 only if all are")
    exact_text: bool = option(False, "compare texts letter by letter; else without case, spaces and , . / - _ * ^")


@dataclass(kw_only=True, slots=True)
class RepetitionConfig:
    ngram: int = option(20, "tokens", above=0)
    free_share: float = option(0.0, "share of repeated n-grams up to which the score is 0", minimum=0, below=1)


@dataclass(kw_only=True, slots=True)
class LlmJudgeConfig:
    server: OpenAIOptions = field(default_factory=OpenAIOptions)
    prompt: str = option("equivalence_v2", "a prompt of this package, or a file with {question}, {gold} and {answer}")
    max_tokens: int = option(512, "of a verdict", above=0)
    deadline_s: float = option(300.0, "for one verdict, with all attempts and waits", above=0)
    max_answer_chars: int = option(8000, "a longer answer is wrong, and not judged", above=0)
    cache: str | None = option(None, "file that keeps verdicts over runs; null: one of the run")
    extra: dict[str, Any] = option(factory=dict, help="more parameters of the request, by name")

    def input_files(self) -> dict[str, str]:
        """Return the prompt's file, as `CustomConfig.input_files`; a prompt of this package is not a file."""
        return _existing({"prompt": self.prompt})

    def __post_init__(self) -> None:
        if fixed := sorted({"model", "messages", "temperature", "max_tokens", "stream", "n"} & set(self.extra)):
            raise ValueError(f"extra holds {', '.join(fixed)}; allowed: parameters that the judge does not set itself")


@dataclass(kw_only=True, slots=True)
class CustomConfig:
    path: str = option("", "a Python file")
    function: str = "compute_score"
    workers: int = option(1, "processes that run it", above=0)
    timeout_s: float = option(60.0, "for one call; what takes longer is not judged", above=0)
    arguments: dict[str, Any] = option(factory=dict, help="more keyword arguments of the function, by name")

    def input_files(self) -> dict[str, str]:
        """Return the files for the run's manifest: a resume with another file is logged."""
        return _existing({"path": self.path})

    def runs_code(self) -> dict[str, str]:
        """Option -> the file whose code runs: a recipe that is passed on may not name it by itself."""
        return {"path": self.path} if self.path else {}
