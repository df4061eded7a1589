"""The sections of rollouts, and of the components that play, judge and measure them (`ramet.config.schema`)."""

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
        8, "M: rollouts per task, forks included", minimum=1, resume=NUMBERS,
        instead={"eval": "evaluate.k", "play": "--n"},
        aka="rollout.n rollout_n num_generations n_samples_per_prompt num_rollouts group_size"
    )
    max_turns: int = option(16, minimum=1, resume=NUMBERS, aka="max_assistant_turns max_user_turns max_iterations")
    max_tool_calls: int = option(8, minimum=0, resume=NUMBERS, aka="call_limit")
    max_response_tokens: int = option(
        4096, "of a rollout, tool results included", minimum=1, resume=NUMBERS,
        aka="max_response_length max_completion_length generate_max_len max_new_tokens max_tokens response_length"
    )
    temperature: float = option(
        1.0, minimum=0, resume=NUMBERS, instead={"eval": "evaluate.sampling.temperature"}, aka="temperature"
    )
    first_tokens: int = option(
        20, "k: sampled tokens of a turn after which a branch policy is asked", minimum=1, resume=NUMBERS
    )
    max_concurrent: int = option(
        256, "rollouts in flight in one rollout worker; run.deterministic: at most the engine's slots", minimum=1,
        resume=MEMORY
    )
    deadline_s: float = option(1800.0, "of one rollout", above=0, resume=PATIENCE)
    step_deadline_s: float = option(
        7200.0, "of all rollouts of a training step; train.staleness: of a group", above=0, resume=FAILURES,
        instead={"eval": "rollout.deadline_s", "play": "rollout.deadline_s"}
    )
    max_masked_share: float | None = option(
        None, "masked by infrastructure: above it a training stops after the step, and a benchmark has no results; "
        "null: 0.2 of a step, 0.05 of a benchmark", minimum=0, maximum=1, resume=FAILURES, instead={"play": None}
    )


@dataclass(kw_only=True, slots=True)
class RolloutStepConfig:
    name: str = option("tags", "the turn protocol")
    params: Any = None
    system_prompt: SystemPrompt = SystemPrompt.AUTO
    instruction: str = option(
        "", "a system prompt of your own, before what the step says of its format and tools; with system_prompt=never "
        "it stands alone", aka="default_system system_message"
    )
    tools_in_template: bool | None = option(
        None,
        "the chat template describes the tools (`tools=`), and the step's prompt names none; null: as the step has it "
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

    timeout_s: float = option(60.0, "of one attempt", above=0, resume=PATIENCE)
    retries: int = option(2, "after infrastructure errors only", minimum=0, resume=PATIENCE)
    concurrency: int = option(64, "calls at the same time, in one rollout worker", minimum=1, resume=FAILURES)
    max_result_tokens: int = option(1024, "longer results are cut, with a visible mark", minimum=1, resume=NUMBERS)
    use: str | None = option(None, "the registered name that NAME is an instance of; null: NAME itself", resume=NUMBERS)
    params: Any = option(None, resume=NUMBERS)


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    weight: float = 1.0
    clip: list[float] | None = option(None, "[lowest, highest] score before the weight; null: as it is")
    combine: Combine = option(Combine.ADD, "multiply: the sum of those that add is multiplied by weight x score")
    sources: list[str] | None = option(None, "data sources that it scores; null: all")
    timeout_s: float = option(600.0, "of one attempt", above=0)
    retries: int = option(2, "after infrastructure errors only", minimum=0)
    max_unjudged: float = option(
        0.05, "share of a step that it may leave unjudged; more (and over 3) stop the run", minimum=0, maximum=1
    )
    resample: bool = option(False, "train.resample_rounds compares this score, and others that say so, not the total")
    use: str | None = option(None, "the registered name that NAME is an instance of; null: NAME itself")
    params: Any = None


@dataclass(kw_only=True, slots=True)
class BenchmarkConfig:
    split: str = "test"
    limit: int | None = option(None, "tasks, an even share of each data source", minimum=1)
    tools: list[str] | None = option(None, "that its tasks may use; null: the benchmark's own, else all configured")
    limits: dict[str, int] | None = option(
        None, "calls of a rollout, by tool; max_tool_calls: of all tools; null: the benchmark's own"
    )
    sampling: dict[str, float] = option(
        factory=dict, help="temperature, top_p, top_k, min_p, repetition_penalty, for this benchmark alone",
        entries=SAMPLING
    )
    prompt: str | None = option(None, "with {question} where the question goes; null: the benchmark's own")
    system_prompt: str | None = option(None, "replaces that of the rollout step; null: the benchmark's own")
    use: str | None = option(None, "the registered name that NAME is an instance of; null: NAME itself")
    params: Any = None


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    k: int = option(
        1, "rollouts per task", minimum=1, resume=SAFE, instead={"train": "train.eval_k"},
        aka="rollout.n num_generations n_samples_per_prompt val_kwargs.n n_samples pass_k"
    )
    sampling: dict[str, float] = option(
        factory=dict, help="temperature, top_p, top_k, min_p, repetition_penalty of all benchmarks; without one "
        "of them: the benchmark's own, else 0.6, 0.95, 0, 0, 1", resume=VALIDATION, entries=SAMPLING,
        aka={name: f"{name} val_kwargs.{name}" for name in SAMPLING}
    )
