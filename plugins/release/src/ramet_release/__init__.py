"""ARPO and AEPO as their authors released them, with their defects: to reproduce published runs.

Both have a separate rollout method, the released round schedule (`method.LockstepMethod`).
"""

from __future__ import annotations

from ramet import AdvantageEstimator, BranchPolicy, Register, hookimpl
from ramet_release.config import AepoReleaseConfig, AepoSoftmaxConfig, ArpoReleaseConfig

ramet_contract = "1"


@hookimpl
def register_branch_policies(register: Register[BranchPolicy]) -> None:
    register("arpo_release", "ramet_release.arpo:ArpoRelease", config=ArpoReleaseConfig)
    register("aepo_release", "ramet_release.aepo:AepoRelease", config=AepoReleaseConfig)


@hookimpl
def register_advantages(register: Register[AdvantageEstimator]) -> None:
    register("aepo_softmax", "ramet_release.aepo_softmax:AepoSoftmax", config=AepoSoftmaxConfig)
