"""Which rollouts' prefixes the engine may forget: those that neither the rollout nor a fork of it needs any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ramet.rollout.keys import BranchPath


class PrefixRelease:
    """Calls `release` once for each rollout of a group.

    `keep`: prefixes stay until the group ends. In a deterministic run a late fork must find the same, whatever ran.
    """

    def __init__(self, release: Callable[[Sequence[BranchPath]], None], *, keep: bool) -> None:
        self._release = release
        self._keep = keep
        self._held: set[BranchPath] = set()
        self._ended: set[BranchPath] = set()
        self._pending: Counter[BranchPath] = Counter()  # forks that have not sampled yet, by parent

    def hold(self, path: BranchPath, parent: BranchPath | None) -> None:
        """A rollout begins; a fork needs its parent's prefix until it has sampled."""
        self._held.add(path)
        if parent is not None:
            self._pending[parent] += 1

    def fork_sampled(self, parent: BranchPath) -> None:
        """A fork of this rollout has sampled its first tokens, or ended without any."""
        self._pending[parent] -= 1
        self._release_unneeded(parent)

    def ended(self, path: BranchPath) -> None:
        self._ended.add(path)
        self._release_unneeded(path)

    def release_all(self) -> None:
        """The group is over."""
        self._release_now(sorted(self._held))

    def _release_unneeded(self, path: BranchPath) -> None:
        if path in self._held and path in self._ended and not self._pending[path] and not self._keep:
            self._release_now([path])

    def _release_now(self, paths: Iterable[BranchPath]) -> None:
        released = list(paths)
        self._held.difference_update(released)
        self._release(released)
