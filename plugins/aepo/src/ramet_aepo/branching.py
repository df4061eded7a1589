"""Roots by the entropies of a first rollout, and fewer forks one after the other (arXiv 2510.14545, §3).

    m = M * sigmoid(beta_root * (H_root - H_tool))                 roots, of a budget of M rollouts
    score = (alpha + gamma * change) * max(0, 1 - penalty * l)     fork if score > tau, or with that probability

The first rollout of a group is the probe. When it has ended, H_root is the mean entropy of its first k tokens and
H_tool the mean, over its turns after a tool result, of the same; their difference is scaled (`root_scale`). Nothing is
forked before that, since m decides the budget for forks. Then every turn that the probe and the rollouts started with
it have sampled is decided on, earlier turns first, and later ones as they come. The probe is kept as one of the m. A
probe that called no tool, or that was masked, says nothing about tools: the difference is 0, and half of the budget are
roots.

`change` is ARPO's, of a turn against the first turn of the rollout's root (`ramet.entropy_change`). l counts branch
points: turns at whose beginning a fork was made, the fork's own first turn included. Budget that is left when
everything has finished goes to new rollouts from the prompt. Deviations from the paper are in the README.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from statistics import fmean

from ramet import (
    BranchAction,
    BranchEvent,
    ConfigError,
    EntropyScale,
    Finished,
    FirstTokens,
    Fork,
    GroupView,
    Idle,
    Need,
    RolloutView,
    Start,
    StartRoots,
    entropy_change,
)
from ramet_aepo.config import AepoConfig, Consecutive, ForkRule

logger = logging.getLogger(__name__)


class Aepo:
    """The branch policy `aepo`."""

    def __init__(self, config: AepoConfig) -> None:
        self.config = config
        self.needs = frozenset({Need.ENTROPY, Need.EARLIER_TURNS} if config.dynamic else {Need.ENTROPY})
        by_sign = config.alpha == config.tau and config.penalty == 0 and config.gamma > 0
        if config.rule is ForkRule.THRESHOLD and by_sign:
            logger.warning(
                "branch_policy=aepo: alpha equals tau (%g) and penalty is 0, so a rollout is forked wherever the "
                "entropy rose, by however little: gamma and normalizer have no effect. Raise branch_policy.params.tau "
                "to ask for more",
                config.tau,
            )

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        match event:
            case Start():
                return [StartRoots(n=self._initial(group.budget))]
            case FirstTokens():
                if not event.entropies:
                    raise ConfigError("branch_policy: aepo needs exact entropies, and this engine reports none")
                if self.config.dynamic and not group.rollouts[0].finished:
                    return []  # decided when the probe has ended
                return self._forks([(event.turn, event.rollout)], group, group.budget_left, rng)
            case Finished() if self.config.dynamic and event.rollout == group.rollouts[0].id:
                return self._after_probe(group, rng)
            case Idle():
                return [StartRoots(n=group.budget_left)]
        return []

    def _initial(self, budget: int) -> int:
        config = self.config
        if config.dynamic and config.early_roots >= max(budget, 1):
            raise ConfigError(
                f"branch_policy.params.early_roots: {config.early_roots} and the probe are more than "
                f"rollout.group_size, {budget}"
            )
        if config.initial_rollouts is not None and config.initial_rollouts > budget:
            raise ConfigError(
                f"branch_policy.params.initial_rollouts: {config.initial_rollouts} is more than rollout.group_size, "
                f"{budget}"
            )
        roots = 1 + config.early_roots if config.dynamic else config.initial_rollouts or max(1, budget // 2)
        return min(roots, budget)

    def _after_probe(self, group: GroupView, rng: Random) -> list[BranchAction]:
        """The other roots, and the forks of turns sampled until now."""
        more = max(0, min(self._roots(group) - len(group.rollouts), group.budget_left))
        sampled = sorted(
            (turn.index, place)
            for place, rollout in enumerate(group.rollouts)
            for turn in rollout.turns
            if turn.entropies
        )
        points = [(turn, group.rollouts[place].id) for turn, place in sampled if group.rollouts[place].valid]
        forks = self._forks(points, group, group.budget_left - more, rng)
        return [*([StartRoots(n=more)] if more else []), *forks]

    def _roots(self, group: GroupView) -> int:
        """m, of which the probe is one; halves are rounded up."""
        probe = group.rollouts[0]
        turns = [turn.entropies for turn in probe.turns if turn.entropies]
        difference = 0.0
        if probe.valid and len(turns) > 1:
            root, *tools = (fmean(entropies[: self.config.window]) for entropies in turns)
            difference = _scaled(root - fmean(tools), self.config, group.vocab_size)
        return max(1, math.floor(group.budget * _sigmoid(self.config.beta_root * difference) + 0.5))

    def _forks(self, points: Iterable[tuple[int, str]], group: GroupView, budget: int, rng: Random) -> list[Fork]:
        """The forks at these (turn, rollout), within this budget."""
        forks: list[Fork] = []
        for turn, id in points:
            n = min(self.config.branches, budget - sum(fork.n for fork in forks))
            if turn > 0 and n > 0 and (reason := self._reason(turn, group.rollout(id), group, forks, rng)):
                forks.append(Fork(rollout=id, turn=turn, n=n, reason=reason))
        return forks

    def _reason(
        self, turn: int, rollout: RolloutView, group: GroupView, forks: Sequence[Fork], rng: Random
    ) -> Mapping[str, float]:
        """Return the numbers that decide for a fork; empty if none does."""
        config, window = self.config, self.config.window
        now, before = rollout.turns[turn].entropies, group.rollout(rollout.root).turns[0].entropies
        change = entropy_change(now[:window], before[:window], config.normalizer, group.vocab_size)
        count = _on_path if config.consecutive is Consecutive.PATH else _in_group
        penalty = max(0.0, 1 - config.penalty * count(turn, rollout, group, forks))
        score = min(1.0, max(0.0, (config.alpha + config.gamma * change) * penalty))
        known = {"entropy change": change, "penalty factor": penalty}
        if config.rule is ForkRule.BERNOULLI:
            draw = rng.random()
            return {**known, "probability": score, "draw": draw} if draw < score else {}
        return {**known, "score": score, "tau": config.tau} if score > config.tau else {}


def _on_path(turn: int, rollout: RolloutView, group: GroupView, forks: Sequence[Fork]) -> int:
    """Branch points directly before this turn, on the path from the prompt. `forks` are not in the view yet."""
    points = {forked.index for forked in rollout.turns if forked.n_forks}
    points |= {fork.turn for fork in forks if fork.rollout == rollout.id}
    ancestor = rollout
    while ancestor.parent is not None and ancestor.fork_turn is not None:
        points.add(ancestor.fork_turn)
        ancestor = group.rollout(ancestor.parent)
    length = 0
    while turn - 1 - length in points:
        length += 1
    return length


def _in_group(turn: int, rollout: RolloutView, group: GroupView, forks: Sequence[Fork]) -> int:
    """Return all branch points of the group, each once."""
    n_points = sum(
        bool(at.n_forks) for member in group.rollouts for at in member.turns if at.index >= (member.fork_turn or 0)
    )
    return n_points + len(forks)


def _scaled(difference: float, config: AepoConfig, vocab_size: int) -> float:
    """A difference of mean entropies (nats) in the unit of `root_scale`."""
    tokens = 1 if config.root_scale is EntropyScale.MEAN_LN_VOCAB else config.window
    return entropy_change((difference,) * tokens, (0.0,) * tokens, config.root_scale, vocab_size)


def _sigmoid(x: float) -> float:
    """1 / (1 + e^-x), which cannot overflow."""
    return 0.5 * (1 + math.tanh(x / 2))
