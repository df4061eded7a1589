"""A policy loss that kills the driver from inside the update, in the process of a policy rank.

A Ray actor's parent is its node's daemon, and of a cluster that a command started for itself the daemon's parent is
that command. `E2E_KILL_DRIVER=STEP:FILE`; the file says that the kill struck, and it strikes once.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ramet import LossInputs, LossOutput, Need, PolicyLoss, Register, hookimpl

ramet_contract = "1"


class PolicyGradient:
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: LossInputs) -> LossOutput:
        step, _, struck = os.environ.get("E2E_KILL_DRIVER", "").partition(":")
        if step and int(batch.policy_versions.max()) + 1 == int(step) and not Path(struck).exists():
            Path(struck).touch()
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
        return LossOutput(per_token=-batch.advantages * batch.logprobs)


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


@hookimpl
def register_policy_losses(register: Register[PolicyLoss]) -> None:
    register("e2e_gradient", PolicyGradient)
