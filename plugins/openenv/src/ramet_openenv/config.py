"""Options of the rollout step `openenv`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ramet import option

PORT = "{port}"  # in `command`
DEFAULT_URL = "http://127.0.0.1:8000"  # where the servers of `openenv init` listen (openenv 0.10.0, cli/templates)


@dataclass(kw_only=True, slots=True)
class OpenEnvConfig:
    """An environment of an OpenEnv server: its observations are inserted, its rewards are turn rewards."""

    url: str | None = option(None, f"address of a server that runs; null: the command, or {DEFAULT_URL} without one")
    command: list[str] = option(
        factory=list,
        help="program and arguments of a server that each rollout worker starts, with {port} for a free port",
    )
    cwd: str | None = option(None, "working directory of the program; null: the current one")
    env: dict[str, str] = option(
        factory=dict, help="environment variables of the program; it sees few others, such as PATH"
    )
    headers: dict[str, str] = option(factory=dict, help="headers of every request, by name")
    action: str = option("", "field of the action that gets the text of a turn; empty: the policy writes tool calls")
    observation: list[str] = option(
        factory=list, help="fields of observations that the policy reads; empty: all but metadata"
    )
    max_chars: int = option(20_000, "most characters of one observation; longer ones are cut", minimum=100)
    reset: dict[str, Any] = option(
        factory=dict, help="arguments of every reset; the column `reset` of a task has further ones"
    )
    seed: str = option(
        "task",
        "seed of the reset; task: from the task's id, one for all its rollouts; rollout: another for each root; "
        "none: the reset gets no seed",
        choices=("task", "rollout", "none"),
    )
    forks: str = option(
        "none",
        "forks of rollouts; replay: a reset with the same seed, and the actions again, for environments that then "
        "give the same observations; none: refused",
        choices=("none", "replay"),
    )
    failed_action: str = option(
        "mistake",
        "an action at which the environment raises an exception, or gives no reply though its server serves; mistake: "
        "the policy's doing; infra: masks the rollout, so a policy can avoid bad rewards by such actions",
        choices=("mistake", "infra"),
    )
    mistake_reward: float = option(0.0, "reward of a turn without a valid action")
    start_timeout_s: float = option(60.0, "time-out of the start of the program, in seconds", above=0)
    timeout_s: float = option(60.0, "time-out of each request, in seconds", above=0)

    def __post_init__(self) -> None:
        if self.command and self.url is not None:
            raise ValueError("give either command or url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {self.url!r}")
        if self.url is not None and "@" in urlsplit(self.url).netloc:
            raise ValueError("url has a user or a password: give headers={Authorization: …} instead")
        if self.command and not any(PORT in argument for argument in self.command):
            raise ValueError(
                f"command must have {PORT} where the server takes its port, got {shlex.join(self.command)!r}"
            )
        if not self.command and (unused := [name for name in ("env", "cwd") if getattr(self, name)]):
            raise ValueError(f"{', '.join(unused)}: a server without a command has none")

    def runs_code(self) -> dict[str, str]:
        """Option -> the program; its folder and variables decide what it is."""
        if not self.command:
            return {}
        options = {"command": shlex.join(self.command), "env": ", ".join(self.env), "cwd": self.cwd}
        return {option: text for option, text in options.items() if text}

    @property
    def name(self) -> str:
        """Return command or address for messages."""
        return f"OpenEnv server {(shlex.join(self.command[:3]) if self.command else self.address)[:120]}"

    @property
    def address(self) -> str:
        """Return the address of a server that runs."""
        return (self.url or DEFAULT_URL).rstrip("/")
