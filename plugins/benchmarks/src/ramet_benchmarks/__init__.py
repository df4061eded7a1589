"""Benchmarks for Ramet."""

from __future__ import annotations

from ramet import Benchmark, Register, hookimpl
from ramet_benchmarks.config import ArithmeticConfig, FilesConfig, PublishedConfig

ramet_contract = "1"
PUBLISHED = (
    "aime24", "aime25", "math500", "gsm8k", "math", "hotpotqa", "two_wiki", "musique", "bamboogle", "webwalker", "gaia",
    "hle", "xbench", "simpleqa",
)  # fmt: skip


@hookimpl
def register_benchmarks(register: Register[Benchmark]) -> None:
    register("arithmetic", "ramet_benchmarks.arithmetic:Arithmetic", config=ArithmeticConfig)
    register("files", "ramet_benchmarks.files:FilesBenchmark", config=FilesConfig)
    for name in PUBLISHED:
        register(name, f"ramet_benchmarks.{name}:make", config=PublishedConfig)
