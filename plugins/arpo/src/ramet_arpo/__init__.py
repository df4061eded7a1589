"""ARPO (arXiv 2507.19849): forks after tool results where the entropy rose."""

from __future__ import annotations

from ramet import BranchPolicy, Register, hookimpl
from ramet_arpo.config import ArpoConfig

ramet_contract = "1"


@hookimpl
def register_branch_policies(register: Register[BranchPolicy]) -> None:
    register("arpo", "ramet_arpo.branching:Arpo", config=ArpoConfig)
