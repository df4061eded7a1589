"""Benchmarks for Ramet."""

from __future__ import annotations

from ramet import Benchmark, Register, hookimpl
from ramet_benchmarks.config import ArithmeticConfig, Gsm8kConfig

ramet_contract = "1"


@hookimpl
def register_benchmarks(register: Register[Benchmark]) -> None:
    register("arithmetic", "ramet_benchmarks.arithmetic:Arithmetic", config=ArithmeticConfig)
    register("gsm8k", "ramet_benchmarks.gsm8k:Gsm8k", config=Gsm8kConfig)
