"""ARPO (arXiv 2507.19849): forks after tool results where the entropy rose."""

from __future__ import annotations

from ramet import AdvantageEstimator, BranchPolicy, Register, hookimpl
from ramet_arpo.config import ArpoAdvantageConfig, ArpoConfig

ramet_contract = "1"


@hookimpl
def register_branch_policies(register: Register[BranchPolicy]) -> None:
    register("arpo", "ramet_arpo.branching:Arpo", config=ArpoConfig)


@hookimpl
def register_advantages(register: Register[AdvantageEstimator]) -> None:
    register("arpo", "ramet_arpo.advantage:ArpoAdvantage", config=ArpoAdvantageConfig)
