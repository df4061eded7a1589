"""Options of the built-in rollout steps and branch policies. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramet.config.option import check_options, option


@dataclass(kw_only=True, slots=True)
class TagsConfig:
    """The step `tags`. `think`, `result` and `answer` are the tag names; a tool's tag is its registered name.

    other_tags: tags that prompts name and that are no tool's, such as `plan`: the model may write them freely.
    """

    think: str = "think"
    result: str = "result"
    answer: str = "answer"
    other_tags: list[str] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class RandomBranchConfig:
    """The control `random`: the same budget as ARPO, coin flips instead of entropies.

    roots: rollouts started from the prompt at once; null: half the budget, at least one.
    probability: of a fork after each tool result.
    """

    roots: int | None = None
    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must be in [0, 1], got {self.probability}")
        if self.roots is not None and self.roots < 1:
            raise ValueError(f"roots must be at least 1, got {self.roots}")


@dataclass(kw_only=True, slots=True)
class TreeExpansionConfig:
    """The trees of Tree-GRPO (arXiv 2509.21240)."""

    trees: int | None = option(
        None, "M, rollouts started from the prompt; null: so many that one round fills the group", minimum=1
    )
    expansions: int = option(2, "N, turns of a tree at which it is expanded in a round", minimum=1)

    def __post_init__(self) -> None:
        check_options(self)
