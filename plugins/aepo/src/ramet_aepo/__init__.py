"""AEPO (arXiv 2510.14545): rollouts, clipping and advantages that look at entropies."""

from __future__ import annotations

from ramet import AdvantageEstimator, BranchPolicy, PolicyLoss, Register, hookimpl
from ramet_aepo.config import AepoAdvantageConfig, AepoConfig, AepoLossConfig

ramet_contract = "1"


@hookimpl
def register_branch_policies(register: Register[BranchPolicy]) -> None:
    register("aepo", "ramet_aepo.branching:Aepo", config=AepoConfig)


@hookimpl
def register_advantages(register: Register[AdvantageEstimator]) -> None:
    register("aepo", "ramet_aepo.advantage:AepoAdvantage", config=AepoAdvantageConfig)


@hookimpl
def register_policy_losses(register: Register[PolicyLoss]) -> None:
    register("aepo", "ramet_aepo.loss:AepoLoss", config=AepoLossConfig)
