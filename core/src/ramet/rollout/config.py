"""Options of the built-in rollout steps and branch policies. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any

from ramet.config.secrets import hide
from ramet.rollout.steps.json_calls import FORMS
from ramet.types.option import option


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
class HermesConfig:
    """The step `hermes`."""

    form: str = option(
        "auto",
        "of calls: tool_call (Hermes, Qwen), json (Llama 3.1); auto: json in messages without <tool_call>",
        choices=FORMS,
    )


@dataclass(kw_only=True, slots=True)
class FromRowConfig:
    """The tool `from_row`."""

    results: str = option("tool_results", "column with what calls return, by name or as a list with arguments")
    default: str = option("ok", "what a call returns that the row says nothing of")


@dataclass(kw_only=True, slots=True)
class McpConfig:
    """The tool set `mcp`: one server."""

    command: list[str] = option(factory=list, help="program and arguments of a server over stdio")
    url: str | None = option(None, "of a server over HTTP, instead of a command")
    env: dict[str, str] = option(factory=dict, help="variables of the program, which sees no others but PATH and such")
    headers: dict[str, str] = option(factory=dict, help="of every HTTP request")
    cwd: str | None = option(None, "the program's working directory; null: this one")
    tools: list[str] = option(factory=list, help="names of the server's tools that are used; empty: all")
    read_only: list[str] = option(
        factory=list,
        help="tools that only read, though the server does not say so: calls that failed are made again; all",
    )
    prefix: str = option("", "of every tool's name, where two servers have tools of the same name")
    state: str = option(
        "shared",
        "shared: one server for all rollouts; own: each rollout has its own, and cannot be forked; replayable: as own, "
        "and a fork makes the calls of its prefix again",
        choices=("shared", "own", "replayable"),
    )
    connect_timeout_s: float = option(30.0, above=0)

    def __post_init__(self) -> None:
        if bool(self.command) == (self.url is not None):
            raise ValueError("give either command or url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {self.url!r}")
        unused = [key for key, value in self._of_the_other_kind.items() if value]
        if unused:
            raise ValueError(f"{', '.join(unused)}: a server with {'a command' if self.command else 'a url'} has none")

    def runs_code(self) -> dict[str, str]:
        """Option -> the program; its folder and variables decide what it is."""
        if not self.command:
            return {}
        options = {"command": shlex.join(self.command), "env": ", ".join(self.env), "cwd": self.cwd}
        return {option: text for option, text in options.items() if text}

    @property
    def _of_the_other_kind(self) -> dict[str, Any]:
        return {"headers": self.headers} if self.command else {"env": self.env, "cwd": self.cwd}

    @property
    def name(self) -> str:
        """Command or address for messages, without passwords."""
        return hide(shlex.join(self.command) if self.command else self.url or "")[:120]


@dataclass(kw_only=True, slots=True)
class NoBranchConfig:
    """Options without forks. With `calls`, a group ends by what it cost instead of by its number of rollouts."""

    calls: int | None = option(
        None,
        "tool calls of a group: rollouts start while fewer are expected of those that did, at most the budget; null: "
        "the whole budget, at once",
        minimum=1,
    )


@dataclass(kw_only=True, slots=True)
class ShuffledConfig:
    """The control of a policy that chooses turns by entropy: it sees the entropies of other turns of the same depth."""

    policy: str = option("", "the branch policy under test; must be named")
    params: dict[str, Any] = option(factory=dict, help="its options")


@dataclass(kw_only=True, slots=True)
class RandomBranchConfig:
    """The control `random`: budget and initial rollouts of ARPO, coin flips instead of entropies."""

    initial_rollouts: int | None = option(
        None, "started from the prompt at once; null: half the budget, at least one", minimum=1
    )
    probability: float = option(0.5, "of a fork after each tool result", minimum=0, maximum=1)


@dataclass(kw_only=True, slots=True)
class ValueGuidedConfig:
    """Forks of failed rollouts, in rounds, once their rewards are known."""

    initial_rollouts: int | None = option(
        None, "started from the prompt at once; null: half the budget, at least one", minimum=1
    )
    rounds: int = option(2, "in which the rest of the budget is used", minimum=1)
    failed_below: float = option(0.5, "a rollout has failed if its reward is below it")


@dataclass(kw_only=True, slots=True)
class TokenEntropyConfig:
    """A fork at the most uncertain token of a turn."""

    initial_rollouts: int | None = option(
        None, "started from the prompt at once; null: half the budget, at least one", minimum=1
    )
    min_entropy: float = option(0.5, "nats, of the token; 0.69 is a coin flip between two tokens", minimum=0)
    max_forks: int = option(1, "of one rollout", minimum=1)


@dataclass(kw_only=True, slots=True)
class StoredPrefixConfig:
    """Groups that start from stored prefixes of earlier steps."""

    probability: float = option(0.5, "of a group to start from one, where its task has any", minimum=0, maximum=1)


@dataclass(kw_only=True, slots=True)
class TreeExpansionConfig:
    """The trees of Tree-GRPO (arXiv 2509.21240)."""

    trees: int | None = option(
        None, "M, rollouts started from the prompt; null: so many that one round fills the group", minimum=1
    )
    expansions: int = option(2, "N, turns of a tree at which it is expanded in a round", minimum=1)


@dataclass(kw_only=True, slots=True)
class EnvironmentConfig:
    last: bool = False  # true: the last turn's reward that there is, instead of the sum of all
    scale: float = 1.0  # the sum is multiplied by it
    clip: list[float] | None = None  # [lowest, highest] value after that, as in a metric, which is in [0, 1]
