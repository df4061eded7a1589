"""Advantages of tokens from a teacher, from the policy in hindsight, and from the information that a turn gains."""

from __future__ import annotations

from ramet import AdvantageEstimator, Register, hookimpl
from ramet_distill.config import DistillConfig, IgpoConfig, SdpoConfig

ramet_contract = "1"


@hookimpl
def register_advantages(register: Register[AdvantageEstimator]) -> None:
    register("distill", "ramet_distill.teacher:Distill", config=DistillConfig)
    register("sdpo", "ramet_distill.hindsight:Sdpo", config=SdpoConfig)
    register("igpo", "ramet_distill.information_gain:Igpo", config=IgpoConfig)
