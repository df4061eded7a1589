"""Environments of the package `verifiers` for Ramet: as a benchmark, and as an agent that is trained."""

from __future__ import annotations

from ramet import Agent, Benchmark, Register, RolloutStep, hookimpl
from ramet_verifiers.config import VerifiersAgentConfig, VerifiersBenchmarkConfig

ramet_contract = "1"


@hookimpl
def register_rollout_steps(register: Register[RolloutStep | Agent]) -> None:
    register("verifiers", "ramet_verifiers.agent:VerifiersAgent", config=VerifiersAgentConfig)


@hookimpl
def register_benchmarks(register: Register[Benchmark]) -> None:
    register("verifiers", "ramet_verifiers.benchmark:VerifiersBenchmark", config=VerifiersBenchmarkConfig)
