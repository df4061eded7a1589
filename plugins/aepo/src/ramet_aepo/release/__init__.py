"""AEPO as its authors released it, with its defects: to reproduce published runs. Nothing else of this package uses it.

A plugin of its own beside `ramet_aepo`; it plays under the round schedule of `ramet.rollout.lockstep`.
"""

from __future__ import annotations

from ramet import AdvantageEstimator, BranchPolicy, Register, hookimpl
from ramet_aepo.release.config import AepoReleaseConfig, AepoSoftmaxConfig

ramet_contract = "1"


@hookimpl
def register_branch_policies(register: Register[BranchPolicy]) -> None:
    register("aepo_release", "ramet_aepo.release.branching:AepoRelease", config=AepoReleaseConfig)


@hookimpl
def register_advantages(register: Register[AdvantageEstimator]) -> None:
    register("aepo_softmax", "ramet_aepo.release.advantage:AepoSoftmax", config=AepoSoftmaxConfig)
