"""The history of a group, as branch policies see it, kept up to date event by event.

The history contains only decided events: a view has nothing that is later in logical order, however far the rollouts
themselves have come. Views of single rollouts are kept until something in them changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ramet.rollout.branching.events import Phase, RolloutEvent
from ramet.rollout.keys import BranchPath, path_text
from ramet.types import GroupView, PrefixView, RolloutView, StopReason, Task, TurnView


@dataclass(slots=True)
class _RolloutHistory:
    id: str
    root: str
    parent: str | None
    fork_turn: int | None
    fork_token: int
    turns: list[TurnView]
    prefix: int | None = None
    finished: bool = False
    stop: StopReason | None = None
    reward: float | None = None
    view: RolloutView | None = field(default=None)

    def as_view(self) -> RolloutView:
        if self.view is None:
            self.view = RolloutView(
                id=self.id,
                root=self.root,
                parent=self.parent,
                fork_turn=self.fork_turn,
                fork_token=self.fork_token,
                turns=tuple(self.turns),
                finished=self.finished,
                valid=self.stop not in (StopReason.FAULT, StopReason.PRUNED),
                stop=self.stop,
                reward=self.reward,
                prefix=self.prefix,
            )
        return self.view


class GroupHistory:
    """The group's history as far as it was decided upon. `n_live` counts rollouts whose last event is not in it yet.

    `last` is the phase of that event.
    """

    def __init__(
        self,
        task: Task,
        budget: int,
        vocab_size: int,
        last: Phase = Phase.END,
        prefixes: Sequence[PrefixView] = (),
    ) -> None:
        self.task = task
        self.budget = budget
        self.vocab_size = vocab_size
        self.prefixes = tuple(prefixes)
        self.n_live = 0
        self.n_unused = 0  # of the budget, left by the policy (`Done`)
        self._last = last
        self._rollouts: dict[BranchPath, _RolloutHistory] = {}

    @property
    def budget_left(self) -> int:
        return self.budget - len(self._rollouts) - self.n_unused

    @property
    def n_started(self) -> int:
        return len(self._rollouts)

    def add_root(self, path: BranchPath, prefix: int | None = None, turns: Sequence[TurnView] = ()) -> None:
        """A rollout from the prompt or, with its number and turns, from a stored prefix."""
        id = path_text(path)
        self._rollouts[path] = _RolloutHistory(id, id, None, None, 0, [*turns, _begun(len(turns))], prefix)
        self.n_live += 1

    def add_fork(self, path: BranchPath, turn: int, token: int = 0) -> None:
        """A fork of `path[:-1]` in `turn`: it inherits the turns before, and the parent's turn counts it."""
        parent = self._rollouts[path[:-1]]
        at = parent.turns[turn]
        parent.turns[turn] = replace(at, n_forks=at.n_forks + 1)
        parent.view = None
        self._rollouts[path] = _RolloutHistory(
            path_text(path), parent.root, parent.id, turn, token, [*parent.turns[:turn], _begun(turn)]
        )
        self.n_live += 1

    def apply(self, event: RolloutEvent) -> None:
        self.count(event)
        rollout = self._rollouts[event.path]
        rollout.view = None
        if event.phase is Phase.SCORED:
            rollout.reward = event.reward
            return
        last = rollout.turns[-1]
        first = event.phase is Phase.FIRST
        rollout.turns[-1] = TurnView(
            index=last.index,
            entropies=event.entropies or last.entropies,
            n_tokens=len(event.entropies) if first else event.n_tokens,
            ended=not first,
            n_forks=last.n_forks,
            calls=event.calls,
        )
        if first:
            return
        if event.phase is Phase.BEGIN:
            rollout.turns.append(_begun(event.turn))
        else:
            rollout.finished, rollout.stop = True, event.stop

    def count(self, event: RolloutEvent) -> None:
        """All of `apply` that is left once no policy is asked any more: the views may then stay as they are."""
        self.n_live -= event.phase is self._last

    def prune(self, path: BranchPath) -> int:
        """The policy stopped this rollout: it is over. Its newest turn, which is not part of it any more."""
        rollout = self._rollouts[path]
        rollout.view = None
        rollout.finished, rollout.stop = True, StopReason.PRUNED
        self.n_live -= 1
        return rollout.turns[-1].index

    def leave_rest(self) -> None:
        """The policy wants no more rollouts."""
        self.n_unused += self.budget_left

    def view(self) -> GroupView:
        return GroupView(
            task=self.task,
            budget=self.budget,
            budget_left=self.budget_left,
            rollouts=tuple(rollout.as_view() for rollout in self._rollouts.values()),
            vocab_size=self.vocab_size,
            prefixes=self.prefixes,
        )


def _begun(turn: int) -> TurnView:
    return TurnView(index=turn, entropies=(), n_tokens=0, ended=False, n_forks=0)
