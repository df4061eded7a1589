"""Asking a branch policy, and holding it to the contract: it may start only what exists and what the budget allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from ramet.errors import ConfigError, PluginError
from ramet.plugin_code import defined_at, failed, named
from ramet.plugins import origin
from ramet.types import BranchEvent, BranchPolicy, Fork, GroupView, Need, StartRoots


def ask(
    policy: BranchPolicy, event: BranchEvent, view: GroupView, rng: Random, *, stateful: bool = False
) -> list[StartRoots | Fork]:
    """What the policy wants started. Raises `PluginError` naming it if it fails or asks for what cannot be.

    `stateful`: rollouts hold states, of which only those of the newest turn are kept without `Need.EARLIER_TURNS`.
    """
    name = f"branch policy {origin(policy)}"
    try:
        answer = policy.decide(event, view, rng)
        actions = list(answer) if isinstance(answer, Iterable) and not isinstance(answer, str) else [answer]
    except ConfigError as error:
        raise named(error, name, "branch_policy") from error
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise failed(error, name, f" on {event}") from error
    known = [action for action in actions if isinstance(action, StartRoots | Fork)]
    strange = [f"{action!r:.80}" for action in actions if not isinstance(action, StartRoots | Fork)]
    problems = [f"{one} is neither StartRoots nor Fork" for one in strange] or _problems(known, view)
    if not problems and stateful and Need.EARLIER_TURNS not in getattr(policy, "needs", frozenset()):
        problems = [problem for action in known if (problem := _earlier_turn(action, view))]
    if problems:
        raise PluginError(
            f"{name} answered {event} wrongly: {'; '.join(problems)}: return a list of StartRoots and Fork within "
            f"group.budget_left, [] for nothing{defined_at(policy, 'decide')}"
        )
    return known


def _problems(actions: Sequence[StartRoots | Fork], view: GroupView) -> list[str]:
    """Judged by the view that the policy was given. More than the budget left is a mistake, never clipped."""
    found = [problem for action in actions if (problem := _type_problem(action))]
    if found:
        return found
    found = [f"{action}: n must not be negative" for action in actions if action.n < 0]
    for action in actions:
        if isinstance(action, Fork):
            found += _fork_problems(action, view)
    wanted = sum(action.n for action in actions)
    if not found and wanted > view.budget_left:
        found.append(f"it asks for {wanted} rollouts, budget left is {view.budget_left}")
    return found


def _type_problem(action: StartRoots | Fork) -> str | None:
    given: dict[str, object] = {"n": action.n}
    if isinstance(action, Fork):
        given |= {"turn": action.turn, "token": action.token}
        if not isinstance(action.rollout, str):
            return f"{action}: rollout is {action.rollout!r}, not the id of a rollout, which is a string"
    wrong = [name for name, value in given.items() if not isinstance(value, int) or isinstance(value, bool)]
    return f"{action}: {wrong[0]} is {given[wrong[0]]!r}, not an int" if wrong else None


def _fork_problems(fork: Fork, view: GroupView) -> list[str]:
    known = {rollout.id: rollout for rollout in view.rollouts}
    if fork.rollout not in known:
        return [f"{fork}: the group has no such rollout, only {', '.join(known) or 'none'}"]
    last = len(known[fork.rollout].turns) - 1
    if fork.token:
        return [f"{fork}: token must be 0; forks at sampled tokens are not there yet"]
    if last == 0:
        return [f"{fork}: rollout {fork.rollout} has no tool result yet; for turn 0 use StartRoots"]
    if not 1 <= fork.turn <= last:
        return [f"{fork}: rollout {fork.rollout} can be forked at turns 1 to {last}; for turn 0 use StartRoots"]
    return []


def _earlier_turn(action: StartRoots | Fork, view: GroupView) -> str | None:
    if not isinstance(action, Fork) or action.turn == (newest := len(view.rollout(action.rollout).turns) - 1):
        return None
    return (
        f"{action}: turn {action.turn} is before the newest of rollout {action.rollout}, {newest}, and tools or "
        "environment hold a state; a policy that forks such rollouts there declares Need.EARLIER_TURNS"
    )
