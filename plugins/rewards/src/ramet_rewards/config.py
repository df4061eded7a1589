"""Options of the rewards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ramet import OpenAIOptions


def _raise(problems: Iterable[str]) -> None:
    found = list(problems)
    if found:
        raise ValueError("; ".join(found))


def _existing(paths: Mapping[str, str]) -> dict[str, str]:
    expanded = {option: Path(path).expanduser() for option, path in paths.items()}
    return {option: str(path) for option, path in expanded.items() if path.is_file()}


def _over_zero(values: Mapping[str, float]) -> Iterable[str]:
    return (f"{name} must be over 0, got {value}" for name, value in values.items() if not value > 0)


def _not_negative(values: Mapping[str, float]) -> Iterable[str]:
    return (f"{name} must be at least 0, got {value}" for name, value in values.items() if not value >= 0)


@dataclass(kw_only=True, slots=True)
class MathConfig:
    timeout_s: float = 5.0  # CPU time for one answer; an answer that takes more scores 0
    budget_s: float = 60.0  # CPU time of such answers together; beyond it an answer has 0.25 s, until time has passed
    workers: int = 2  # processes that compare; they start with the first answer that is not plainly equal
    allow_terms: bool = False  # where the gold answer is a number, also a term of its value is right (17*23 for 391)

    def __post_init__(self) -> None:
        _raise(_over_zero({"timeout_s": self.timeout_s, "budget_s": self.budget_s, "workers": self.workers}))


@dataclass(kw_only=True, slots=True)
class TagRules:
    """Tag names are without brackets."""

    paired: list[str] = field(default_factory=lambda: ["think", "python", "search", "answer"])  # closed, not crossing
    required: list[str] = field(default_factory=lambda: ["answer"])  # at least one pair of each
    forbidden: list[str] = field(default_factory=lambda: ["result"])  # only the environment writes these

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
    leave_out_truncated: bool = False  # rollouts cut by the token limit leave statistics and loss (DAPO, section 3.4)


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
    required: list[str] = field(default_factory=lambda: ["think", "answer"])  # at least one pair of each


@dataclass(kw_only=True, slots=True)
class ExactAccuracyConfig(AccuracyConfig):
    text: TextScore = TextScore.EM


@dataclass(kw_only=True, slots=True)
class DeepResearchConfig:
    bad_format: float = -1.0  # the score of a broken format, whatever the answer
    bonus: float = 0.1  # on top of an answer that is not wrong, for several tools
    bonus_tools: int = 2  # different tools, each with a call that ran
    boxed: bool = True  # the answer has to be in a \boxed{…}
    tags: ThoughtRules = field(default_factory=ThoughtRules)
    accuracy: AccuracyConfig = field(default_factory=AccuracyConfig)

    def __post_init__(self) -> None:
        _raise(_over_zero({"bonus_tools": self.bonus_tools}))


@dataclass(kw_only=True, slots=True)
class FormatCorrectConfig:
    format_weight: float = 0.2
    correct_weight: float = 0.8
    boxed: bool = False  # the answer has to be in a \boxed{…}
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
    within: bool = False  # right also if a gold answer is within the answer, word by word


@dataclass(kw_only=True, slots=True)
class MathDapoConfig:
    right: float = 1.0
    wrong: float = -1.0
    boxed: bool = False  # read the last \boxed{…} instead of the last line `Answer: …`
    last_chars: int = 300  # of the last turn; what is before them is not read
    math: MathConfig = field(default_factory=MathConfig)

    def __post_init__(self) -> None:
        _raise(_over_zero({"last_chars": self.last_chars}))


class Gsm8kMethod(StrEnum):
    STRICT = "strict"  # the number after the last ####
    FLEXIBLE = "flexible"  # the last number of the final answer, or of the last turn where there is none


@dataclass(kw_only=True, slots=True)
class Gsm8kRewardConfig:
    method: Gsm8kMethod = Gsm8kMethod.STRICT
    format_score: float = 0.0  # for a number in the right place that is wrong


@dataclass(kw_only=True, slots=True)
class MultipleChoiceConfig:
    letters: str = "ABCDEFGHIJ"
    choices: str = "choices"  # column of the task that holds the texts of the choices; then these are right too

    def __post_init__(self) -> None:
        if len(set(self.letters)) != len(self.letters) or not self.letters.isalpha() or not self.letters.isupper():
            raise ValueError(f"letters must be different capital letters, got {self.letters!r}")


@dataclass(kw_only=True, slots=True)
class OverlongConfig:
    max_tokens: int = 4096  # from here on the score is -1; rollout.max_response_tokens, as a rule
    buffer_tokens: int = 1024  # before it, in which the score falls from 0 to -1
    sampled_only: bool = False  # count what the policy wrote; false: tool results too, as the limit of rollouts does

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 1 <= self.buffer_tokens <= self.max_tokens:
            raise ValueError(
                f"buffer_tokens must be at least 1 and at most max_tokens={self.max_tokens}, got {self.buffer_tokens}"
            )


@dataclass(kw_only=True, slots=True)
class LengthConfig:
    max_tokens: int = 4096  # from here on the score is -1
    free_tokens: int = 0  # up to here it is 0
    sampled_only: bool = True  # count what the policy wrote; false: tool results too

    def __post_init__(self) -> None:
        if not 0 <= self.free_tokens < self.max_tokens:
            raise ValueError(
                f"free_tokens must be at least 0 and under max_tokens={self.max_tokens}, got {self.free_tokens}"
            )


@dataclass(kw_only=True, slots=True)
class ToolCostConfig:
    cost: float = 0.05  # of one call
    costs: dict[str, float] = field(default_factory=dict)  # of one call of a tool, by its name, instead of `cost`
    free_calls: int = 0  # the first ones, which cost nothing
    most: float = 1.0  # a rollout's calls cost no more than that

    def __post_init__(self) -> None:
        costs = {f"costs.{name}": cost for name, cost in self.costs.items()}
        _raise(_not_negative({"cost": self.cost, **costs, "free_calls": self.free_calls, "most": self.most}))


@dataclass(kw_only=True, slots=True)
class RepetitionConfig:
    ngram: int = 20  # tokens
    free_share: float = 0.0  # share of repeated n-grams up to which the score is 0

    def __post_init__(self) -> None:
        _raise(_over_zero({"ngram": self.ngram}))
        if not 0 <= self.free_share < 1:
            raise ValueError(f"free_share must be at least 0 and under 1, got {self.free_share}")


@dataclass(kw_only=True, slots=True)
class LlmJudgeConfig:
    server: OpenAIOptions = field(default_factory=OpenAIOptions)
    prompt: str = "equivalence_v2"  # a prompt of this package, or a file with {question}, {gold} and {answer}
    max_tokens: int = 512  # of a verdict
    deadline_s: float = 300.0  # for one verdict, with all attempts and waits
    max_answer_chars: int = 8000  # a longer answer is wrong, and not judged
    cache: str | None = None  # file that keeps verdicts over runs; null: one of the run
    extra: dict[str, Any] = field(default_factory=dict)  # more parameters of the request, by name

    def input_files(self) -> dict[str, str]:
        """Return the prompt's file, as `CustomConfig.input_files`; a prompt of this package is not a file."""
        return _existing({"prompt": self.prompt})

    def __post_init__(self) -> None:
        over = {"max_tokens": self.max_tokens, "deadline_s": self.deadline_s, "max_answer_chars": self.max_answer_chars}
        fixed = sorted({"model", "messages", "temperature", "max_tokens", "stream", "n"} & set(self.extra))
        problems = [f"extra holds {', '.join(fixed)}; allowed: parameters that the judge does not set itself"]
        _raise([*_over_zero(over), *(problems if fixed else [])])


@dataclass(kw_only=True, slots=True)
class CustomConfig:
    path: str = ""  # a Python file
    function: str = "compute_score"
    workers: int = 1  # processes that run it
    timeout_s: float = 60.0  # for one call; what takes longer is not judged
    arguments: dict[str, Any] = field(default_factory=dict)  # more keyword arguments of the function, by name

    def input_files(self) -> dict[str, str]:
        """Return the files for the run's manifest: a resume with another file is logged."""
        return _existing({"path": self.path})

    def runs_code(self) -> dict[str, str]:
        """Option -> the file whose code runs: a recipe that is passed on may not name it by itself."""
        return {"path": self.path} if self.path else {}

    def __post_init__(self) -> None:
        _raise(_over_zero({"workers": self.workers, "timeout_s": self.timeout_s}))
