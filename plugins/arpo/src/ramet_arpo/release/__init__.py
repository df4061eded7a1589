"""ARPO as its authors released it, with its defects: to reproduce published runs. Nothing else of this package uses it.

A plugin of its own beside `ramet_arpo`; it plays under the round schedule of `ramet.rollout.lockstep`.
"""

from __future__ import annotations

from ramet import BranchPolicy, Register, hookimpl
from ramet_arpo.release.config import ArpoReleaseConfig

ramet_contract = "1"


@hookimpl
def register_branch_policies(register: Register[BranchPolicy]) -> None:
    register("arpo_release", "ramet_arpo.release.branching:ArpoRelease", config=ArpoReleaseConfig)
