"""Options that agents have in common: agents of the core and of plugins inherit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from ramet.types import AgentSettings
from ramet.types.option import option


@dataclass(kw_only=True)
class AgentOptions:
    """Options that agents have in common. Without slots, so that a class of options may have another base too."""

    forks: str = option(
        "none",
        "forks of branch policies; replay: the agent runs again and its own tools with it, answered from the record up "
        "to the fork",
        choices=("none", "replay"),
    )
    on_crash: str = option(
        "reward",
        "a crash of the agent; reward: judged as a rollout without an answer; mask: left out, so a policy can avoid "
        "bad rewards by crashing",
        choices=("reward", "mask"),
    )
    history: str = option(
        "keep",
        "thoughts that a client leaves out of earlier turns; keep: the recorded tokens continue; template: as the chat "
        "template shows earlier turns",
        choices=("keep", "template"),
    )
    timeout_s: float | None = option(
        None,
        "seconds until the agent is cancelled, which counts as a crash; null: rollout.deadline_s ends it, which masks",
        above=0,
    )
    host: str = option("127.0.0.1", "address at which the gateway listens; others than the loopback are reachable")
    port: int = option(0, "port of the gateway; 0: any free one", minimum=0, maximum=65535)

    @property
    def settings(self) -> AgentSettings:
        """Return these options as the contract has them."""
        return AgentSettings(
            host=self.host,
            port=self.port,
            history=cast(Literal["keep", "template"], self.history),
            on_crash=cast(Literal["reward", "mask"], self.on_crash),
            timeout_s=self.timeout_s,
        )
