"""Tasks of inspect_ai for Ramet: a benchmark, and an agent that runs their samples against the policy."""

from __future__ import annotations

from ramet import Agent, Benchmark, Register, RolloutStep, hookimpl
from ramet_inspect.config import InspectBenchmarkConfig, InspectConfig

ramet_contract = "1"


@hookimpl
def register_rollout_steps(register: Register[RolloutStep | Agent]) -> None:
    register("inspect", "ramet_inspect.agent:InspectAgent", config=InspectConfig)


@hookimpl
def register_benchmarks(register: Register[Benchmark]) -> None:
    register("inspect", "ramet_inspect.benchmark:InspectBenchmark", config=InspectBenchmarkConfig)
