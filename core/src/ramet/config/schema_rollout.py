"""The sections of rollouts, and of the components that run, judge and measure them (`ramet.config.schema`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from ramet.config.choices import Combine, SystemPrompt
from ramet.types.option import SAMPLING, Resume, option

NUMBERS, SAFE, MEMORY, FAILURES = Resume.NUMBERS, Resume.SAFE, Resume.MEMORY, Resume.FAILURES
PATIENCE, VALIDATION = Resume.PATIENCE, Resume.VALIDATION
# fmt: off


@dataclass(kw_only=True, slots=True)
class RolloutConfig:
    group_size: int = option(
        8, "rollouts per task and step, forks included", minimum=1, resume=NUMBERS,
        instead={"eval": "evaluate.k", "play": "--n"},
        aka="rollout.n rollout_n num_generations n_samples_per_prompt num_rollouts group_size"
    )
    max_turns: int = option(
        16, "most turns of a rollout; a turn is one generation and what its tools return", minimum=1, resume=NUMBERS,
        aka="max_assistant_turns max_user_turns max_iterations"
    )
    max_tool_calls: int = option(
        8, "most tool calls of a rollout, of all tools together", minimum=0, resume=NUMBERS, aka="call_limit"
    )
    max_response_tokens: int = option(
        4096, "most tokens after the prompt, tool results included", minimum=1, resume=NUMBERS,
        aka="max_response_length max_completion_length generate_max_len max_new_tokens max_tokens response_length"
    )
    temperature: float = option(
        1.0, "sampling temperature; 0: greedy", minimum=0, resume=NUMBERS,
        instead={"eval": "evaluate.sampling.temperature"}, aka="temperature"
    )
    first_tokens: int = option(
        20, "sampled tokens at the start of a turn after which the branch policy may fork", minimum=1, resume=NUMBERS
    )
    max_concurrent: int = option(
        256, "rollouts at the same time in one rollout worker; run.deterministic: at most the engine's slots",
        minimum=1,
        resume=MEMORY
    )
    deadline_s: float = option(
        1800.0, "time limit of one rollout, in seconds; then it is masked", above=0, resume=PATIENCE
    )
    step_deadline_s: float = option(
        7200.0, "time limit of all rollouts of a training step, in seconds; what is left is masked; train.staleness: "
        "of a group", above=0, resume=FAILURES,
        instead={"eval": "rollout.deadline_s", "play": "rollout.deadline_s"}
    )
    max_masked_share: float | None = option(
        None, "largest share of rollouts that infrastructure failures mask; above it training stops after the step, "
        "and a benchmark has no results; null: 0.2 of a step, 0.05 of a benchmark", minimum=0, maximum=1,
        resume=FAILURES,
        instead={"play": None}
    )


@dataclass(kw_only=True, slots=True)
class RolloutStepConfig:
    name: str = option("tags", "the turn protocol")
    params: Any = None
    system_prompt: SystemPrompt = option(
        SystemPrompt.AUTO, "use of the rollout step's system prompt; auto: for tasks without their own; always: "
        "instead of the task's; append: after the task's; never"
    )
    instruction: str = option(
        "", "system prompt of your own; the step's text about format and tools follows, but for system_prompt=never",
        aka="default_system system_message"
    )
    tools_in_template: bool | None = option(
        None,
        "the chat template describes the tools (`tools=`) instead of the step's prompt; null: as the step does "
        "(hermes: true)"
    )


@dataclass(kw_only=True, slots=True)
class ComponentConfig:
    """A single-choice component: which one, and its own options."""

    name: str = option(MISSING, "which one")
    params: Any = None


@dataclass(kw_only=True, slots=True)
class ToolConfig:
    """The tool runtime's settings of one tool."""

    timeout_s: float = option(60.0, "time-out of one attempt of a call, in seconds", above=0, resume=PATIENCE)
    retries: int = option(
        2, "further attempts of a call of an idempotent tool, after infrastructure errors only", minimum=0,
        resume=PATIENCE
    )
    concurrency: int = option(64, "calls at the same time in one rollout worker", minimum=1, resume=FAILURES)
    max_result_tokens: int = option(
        1024, "longest result, in tokens; longer ones are cut, with a visible mark", minimum=1, resume=NUMBERS
    )
    use: str | None = option(None, "registered name of the component that NAME uses; null: NAME itself", resume=NUMBERS)
    params: Any = option(None, resume=NUMBERS)


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    weight: float = option(1.0, "factor of the score in the total reward")
    clip: list[float] | None = option(None, "[lowest, highest] score, before the weight; null: not clipped")
    combine: Combine = option(
        Combine.ADD, "add: weight x score is added; multiply: the sum of the added ones is multiplied by it"
    )
    sources: list[str] | None = option(None, "data sources whose tasks it scores; null: all")
    timeout_s: float = option(600.0, "time-out of one attempt to score, in seconds", above=0)
    retries: int = option(2, "further attempts to score, after infrastructure errors only", minimum=0)
    max_unjudged: float = option(
        0.05, "largest share of a step's rollouts without its score; more, and more than 3 rollouts, stop the run",
        minimum=0, maximum=1
    )
    resample: bool = option(
        False, "train.resample_rounds compares the scores that are marked so, instead of the total reward"
    )
    use: str | None = option(None, "registered name of the component that NAME uses; null: NAME itself")
    params: Any = None


@dataclass(kw_only=True, slots=True)
class BenchmarkConfig:
    split: str = option("test", "split of the benchmark that is measured")
    limit: int | None = option(None, "number of tasks, an even share of each data source; null: all", minimum=1)
    tools: list[str] | None = option(
        None, "tools that its tasks may use; null: the benchmark's own, else all configured"
    )
    limits: dict[str, int] | None = option(
        None, "most calls of a rollout, by tool; max_tool_calls: of all tools together; null: the benchmark's own"
    )
    sampling: dict[str, float] = option(
        factory=dict, help="sampling of this benchmark only: temperature, top_p, top_k, min_p, repetition_penalty",
        entries=SAMPLING
    )
    prompt: str | None = option(None, "template of the user's message, with {question}; null: the benchmark's own")
    system_prompt: str | None = option(None, "system prompt instead of the rollout step's; null: the benchmark's own")
    use: str | None = option(None, "registered name of the component that NAME uses; null: NAME itself")
    params: Any = None


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    k: int = option(
        1, "rollouts per task", minimum=1, resume=SAFE, instead={"train": "train.eval_k"},
        aka="rollout.n num_generations n_samples_per_prompt val_kwargs.n n_samples pass_k"
    )
    sampling: dict[str, float] = option(
        factory=dict, help="sampling of all benchmarks: temperature, top_p, top_k, min_p, repetition_penalty; what is "
        "not set: the benchmark's own, else 0.6, 0.95, 0, 0, 1", resume=VALIDATION, entries=SAMPLING,
        aka={name: f"{name} val_kwargs.{name}" for name in SAMPLING}
    )
