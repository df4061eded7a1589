"""The rollout step: the turn protocol between the policy's tokens and the tools (hook 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from ramet.types.rollout import StopReason
from ramet.types.state import Stateful
from ramet.types.task import Message, Task
from ramet.types.tool import ToolCall, ToolResult
from ramet.types.tool_schema import ToolSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """Text of the protocol itself. Special tokens in it are parsed."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Untrusted:
    """Text from outside (tool results). Special tokens in it are never parsed."""

    text: str


S = TypeVar("S")
Insert: TypeAlias = Markup | Untrusted


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Text that the policy wrote, as part of a written trace (SFT)."""

    text: str


TracePart: TypeAlias = Sampled | Markup | Untrusted


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The policy's sample in this turn."""

    text: str
    stop: str | None  # the stop string that ended it (included in `text`); None: end of sequence or length
    finished: bool  # the policy sampled an end-of-sequence token
    truncated: bool  # the token limit ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """The rollout so far, as a step sees it. A step never changes it and keeps no state itself.

    `environment` is the state of an environment, as the step's own `open` or `fork` returned it (`Stateful`).
    """

    task: Task
    rollout: str
    turn: int  # 0-based index of this turn
    response: str  # all text after the prompt so far
    n_tool_calls: int
    environment: Any = None


class StepContext(Protocol):
    """The actions of a step. Both calls may raise `InfraError`, which a step lets pass."""

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools that this task may use."""
        ...

    @property
    def max_tool_calls(self) -> int:
        """Calls that a rollout may make. One more ends it with `StopReason.CALL_LIMIT`, whatever the step returns."""
        ...

    @property
    def turns_left(self) -> int:
        """Turns that may still be taken, this one included; at least 1."""
        ...

    @property
    def tokens_left(self) -> int:
        """Tokens that may still follow in the response, sampled and inserted together."""
        ...

    def calls_left(self, tool: str) -> int:
        """Calls of this tool that may still be made."""
        ...

    def render(self, messages: Sequence[Message]) -> Sequence[Insert]:
        """The chat template's text for further messages of the conversation, generation prompt included.

        Content is `Untrusted`, the template's own text `Markup`. Raises `PluginError` for no messages or for roles
        that the template does not take.
        """
        ...

    async def generate(self, *, stop: Sequence[str] = ()) -> Generation:
        """Sample until a stop string, the end of sequence or the token limit. At most once a turn."""
        ...

    async def call_tool(self, call: ToolCall) -> ToolResult:
        """Run a tool under its time-out, retries and caps. Raises `ToolError` with the text for the model.

        Several calls of a turn may run at once; calls of a tool with states run in their order. The turn ends
        when all of them have.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a turn: text to insert, whether the rollout stops and why, info, reward and metrics."""

    insert: tuple[Insert, ...] = ()
    stop: StopReason | None = None
    answer: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)  # JSON; recorded as `Rollout.infos`, visible to rewards
    reward: float | None = None  # of this turn; recorded as `Rollout.turn_rewards`
    metrics: Mapping[str, float] = field(default_factory=dict)  # averaged over the step's turns as `step/NAME`


class RolloutStep(Protocol):
    """Hook 1. One turn. Keeps no state itself; works for any tools. The core owns the token ids.

    An environment is a rollout step that is `Stateful`; it may have the members of `Environment`.
    """

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        """Name the tools for the model, and how to call them."""
        ...

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult: ...


class Environment(RolloutStep, Stateful[S], Protocol[S]):
    """A rollout step with state. `begin`, `state_key` and `finish` are optional, each independently."""

    async def begin(self, state: S) -> Sequence[Insert] | Sequence[Message]:
        """The first observation, inserted after the prompt of every root. Forks share their root's.

        Messages get the chat template's text, as with `StepContext.render`: they follow an empty assistant's message.
        """
        ...

    def state_key(self, state: S) -> str:
        """Names the state as it is when a turn begins: equal keys in rollouts of one task are the same state.

        Recorded as `Rollout.state_keys`; estimators compare turns by it (`AdvantageInputs.state_ids`, GiGPO).
        """
        ...

    async def finish(self, state: S, stop: StopReason) -> StepResult | None:
        """Called once at any end, limits included, unless the rollout is masked: the last info and turn reward.

        They are merged into the last turn's: info keys overwrite, rewards are added, `answer` replaces it if it is not
        None. `insert` and `stop` must be empty.
        """
        ...


@runtime_checkable
class TemplateFormat(Protocol):
    """Optional part of a rollout step whose calls and results have the form of the chat template.

    Unless `rollout_step.tools_in_template` says otherwise, the template then describes the tools. SFT takes the text of
    an assistant's message for what the policy writes, and what the template puts around results for inserted.
    """

    def results(self, texts: Sequence[str]) -> Sequence[Message]:
        """The messages that carry the results of one turn, in order. Rollouts and SFT render the same ones."""
        ...


class TraceReader(Protocol):
    """Optional part of a rollout step whose format SFT can learn: the inverse of rolling out."""

    def read(self, text: str, tools: Sequence[str]) -> Sequence[TracePart]:
        """Cut an assistant's text into the policy's parts and inserted parts; they join to `text`."""
        ...

    def result(self, text: str) -> Sequence[Insert]:
        """A tool result with its wrapper, exactly as a rollout inserts it."""
        ...
