"""Options of the built-in rollout steps and branch policies. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from ramet.config.secrets import hide
from ramet.helpers.agent_options import AgentOptions
from ramet.helpers.json_calls import FORMS
from ramet.types.option import option

INITIAL_HELP = "rollouts that start from the prompt; null: half of rollout.group_size, at least one"


@dataclass(kw_only=True, slots=True)
class TagsConfig:
    """The step `tags`: thoughts, calls, results and answers between tags; a tool's tag is its registered name."""

    think: str = option("think", "tag of thoughts, without brackets")
    result: str = option("result", "tag of tool results")
    answer: str = option("answer", "tag of the final answer")
    other_tags: list[str] = option(
        factory=list, help="tags that prompts name and that are not a tool's, such as plan; the model may write them"
    )


@dataclass(kw_only=True, slots=True)
class HermesConfig:
    """The step `hermes`: calls as JSON objects, as the chat templates of Hermes, Qwen and Llama have them."""

    form: str = option(
        "auto",
        "form of calls; tool_call: Hermes, Qwen; json: Llama 3.1; auto: json in messages without <tool_call>",
        choices=FORMS,
    )


@dataclass(kw_only=True, slots=True)
class FunctionConfig(AgentOptions):
    """The agent `function`: a coroutine function of yours."""

    function: str = option("", "the function, as FILE.py:NAME, or as MODULE:NAME; required")
    arguments: dict[str, Any] = option(factory=dict, help="its keyword arguments, in addition to task and context")

    def runs_code(self) -> dict[str, str]:
        """Option -> the code that it names."""
        return {"function": self.function} if self.function else {}


@dataclass(kw_only=True, slots=True)
class CommandConfig(AgentOptions):
    """The agent `command`: a program, once for each rollout."""

    argv: list[str] = option(
        factory=list,
        help="program and arguments; {question}, {task} (a JSON file), {result}, {folder}, {base_url}, {key} and "
        "{model} are filled in, other names are refused; {{name}} is the text {name}; required",
    )
    folder: str | None = option(None, "working directory; null: an empty one for each rollout")
    env: dict[str, str] = option(
        factory=dict, help="environment variables of the program; it sees few others, such as PATH and HOME"
    )
    result: str = option(
        "output",
        "what the program gives; output: its standard output is the answer; file: JSON in the file RAMET_RESULT, with "
        "answer, reward, info and status",
        choices=("output", "file"),
    )
    timeout_s: float = option(
        600.0, "seconds until the program is killed, which counts as a crash of the agent", above=0
    )

    def runs_code(self) -> dict[str, str]:
        """Option -> the program; its folder and variables decide what it is."""
        options = {"argv": shlex.join(self.argv), "env": ", ".join(self.env), "folder": self.folder}
        return {option: text for option, text in options.items() if text}


@dataclass(kw_only=True, slots=True)
class ExternalConfig(AgentOptions):
    """The agent `external`: programs elsewhere, which lease the rollouts over HTTP."""

    admin_key: str | None = option(
        None,
        "key of the control plane, as ${oc.env:VARIABLE}; null: each rollout worker draws one and logs it with its "
        "address",
    )
    lease_s: float = option(
        60.0, "seconds without a sign of life until a leased rollout is masked: requests and `alive` are some", above=0
    )


@dataclass(kw_only=True, slots=True)
class FromRowConfig:
    """The tool `from_row`: it returns what the task's row has, for tests and recorded tools."""

    results: str = option("tool_results", "column with what calls return, by tool name, or as a list with arguments")
    default: str = option("ok", "result of a call that the row does not have")


@dataclass(kw_only=True, slots=True)
class McpConfig:
    """The tool set `mcp`: the tools of one MCP server."""

    command: list[str] = option(factory=list, help="program and arguments of a server over standard input and output")
    url: str | None = option(None, "address of a server over HTTP; null: a command")
    env: dict[str, str] = option(
        factory=dict, help="environment variables of the program; it sees few others, such as PATH"
    )
    headers: dict[str, str] = option(factory=dict, help="headers of every HTTP request, by name")
    cwd: str | None = option(None, "working directory of the program; null: the current one")
    tools: list[str] = option(factory=list, help="names of the tools that are used; empty: all of the server")
    read_only: list[str] = option(
        factory=list,
        help="tools that only read, though the server does not say so (`all`); failed calls are retried",
    )
    prefix: str = option("", "prefix of every tool's name, for servers that have tools of the same name")
    state: str = option(
        "shared",
        "servers; shared: one for all rollouts; own: one for each rollout, which cannot be forked; replayable: as own, "
        "and a fork repeats the calls of its prefix",
        choices=("shared", "own", "replayable"),
    )
    connect_timeout_s: float = option(30.0, "time-out of the start and of the connection, in seconds", above=0)

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
    """No forks. With `calls`, a group ends by its number of tool calls instead of its number of rollouts."""

    calls: int | None = option(
        None,
        "tool calls of a group; rollouts start while those before are expected to make fewer, at most "
        "rollout.group_size; null: all rollouts start at once",
        minimum=1,
    )


@dataclass(kw_only=True, slots=True)
class ShuffledConfig:
    """The control of a policy that chooses turns by entropy: it sees the entropies of other turns of the same depth."""

    policy: str = option("", "name of the branch policy under test; required")
    params: dict[str, Any] = option(factory=dict, help="options of that branch policy, by name")


@dataclass(kw_only=True, slots=True)
class RandomBranchConfig:
    """The control `random`: budget and initial rollouts of ARPO, coin flips instead of entropies."""

    initial_rollouts: int | None = option(None, INITIAL_HELP, minimum=1)
    probability: float = option(0.5, "probability of a fork after each tool result", minimum=0, maximum=1)


@dataclass(kw_only=True, slots=True)
class ValueGuidedConfig:
    """Forks of failed rollouts, in rounds, once their rewards are known."""

    initial_rollouts: int | None = option(None, INITIAL_HELP, minimum=1)
    rounds: int = option(2, "rounds of forks that use the rest of the budget", minimum=1)
    failed_below: float = option(0.5, "reward below which a rollout has failed")


@dataclass(kw_only=True, slots=True)
class TokenEntropyConfig:
    """A fork at the most uncertain token of a turn."""

    initial_rollouts: int | None = option(None, INITIAL_HELP, minimum=1)
    min_entropy: float = option(
        0.5, "least entropy of the token, in nats; 0.69: a coin flip between two tokens", minimum=0
    )
    max_forks: int = option(1, "most forks of one rollout", minimum=1)


@dataclass(kw_only=True, slots=True)
class StoredPrefixConfig:
    """Groups that start from stored prefixes of earlier steps."""

    probability: float = option(
        0.5, "probability that a group starts from a stored prefix of its task, if there is one", minimum=0, maximum=1
    )


@dataclass(kw_only=True, slots=True)
class TreeExpansionConfig:
    """The trees of Tree-GRPO (arXiv 2509.21240)."""

    trees: int | None = option(
        None,
        "rollouts that start from the prompt, each a tree (the paper's M); null: so many that one round fills the "
        "group",
        minimum=1,
    )
    expansions: int = option(2, "turns at which each tree is forked in a round (the paper's N)", minimum=1)


@dataclass(kw_only=True, slots=True)
class EnvironmentConfig:
    """The reward that the environment gave."""

    last: bool = False  # the reward of the last turn that has one, instead of the sum over turns
    scale: float = 1.0  # factor of that reward
    clip: list[float] | None = None  # [lowest, highest] score, after the factor; null: not clipped
