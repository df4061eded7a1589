"""Names and seeds: every rollout has one name, and every random draw derives from a stable hash of such names.

Python's own `hash()` differs from process to process, so it is never used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from random import Random

BranchPath = tuple[int, ...]  # branch path: (0,) is root "0", (0, 1) is its second fork "0.1"


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """One rollout's name, unique within a worker. `salt`: training or evaluation; `path` is the branch path."""

    salt: str
    step: int
    task: str
    path: str
    text: str = field(
        init=False, repr=False, compare=False
    )  # made once: it names the rollout in every request and wait

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"{self.salt}/{self.step}/{self.task}/{self.path}")

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> RolloutKey:
        """The inverse of `str`. A task's id may contain slashes."""
        salt, step, rest = text.split("/", 2)
        task, _, path = rest.rpartition("/")
        return cls(salt, int(step), task, path)


def path_text(path: BranchPath) -> str:
    return ".".join(map(str, path))


def path_of(text: str) -> BranchPath:
    return tuple(int(part) for part in text.split("."))


def stable_seed(*parts: str | int) -> int:
    """63 bits from these parts, the same in every process and on every machine."""
    return _seed_of("\x1f".join(map(str, parts)))


def _seed_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest()) >> 1


def request_seed(seed: int, key: RolloutKey, turn: int) -> int:
    """The seed of one generation: `stable_seed` of these parts, whose text is made at once."""
    return _seed_of(f"request\x1f{seed}\x1f{key.salt}\x1f{key.step}\x1f{key.task}\x1f{key.path}\x1f{turn}")


def branch_rng(seed: int, key: RolloutKey, event: str, turn: int) -> Random:
    """The generator of one branch decision. `key.path` is the path of the rollout that the event is about."""
    return Random(stable_seed("branch", seed, key.salt, key.step, key.task, event, key.path, turn))
