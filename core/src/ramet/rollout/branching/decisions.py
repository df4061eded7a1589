"""Asking a branch policy, and holding it to the contract: it may start only what exists and what the budget allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import SupportsFloat

from ramet.errors import ConfigError, PluginError
from ramet.plugins import origin
from ramet.plugins.plugin_code import defined_at, failed, named
from ramet.types import (
    BranchAction,
    BranchEvent,
    BranchPolicy,
    Done,
    FirstTokens,
    Fork,
    GroupView,
    Need,
    RolloutView,
    StartFrom,
    StartRoots,
    Stop,
    StopReason,
)
from ramet.types.branch import policy_needs

# In tuples, since `A | B` would be built at each of the questions, of which a step has many.
STARTS = (StartRoots, Fork, StartFrom)  # actions that use the budget
ACTIONS = (*STARTS, Stop, Done)


def ask(
    policy: BranchPolicy, event: BranchEvent, view: GroupView, rng: Random, *, stateful: bool = False
) -> list[BranchAction]:
    """The policy's actions. Raises `PluginError` naming it if it fails or asks for an impossible action.

    `stateful`: rollouts have states. Without `Need.EARLIER_TURNS` only the states of the newest turn are kept.
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
        raise failed(error, name, f" on {_shown(event)}") from error
    known_actions = [action for action in actions if isinstance(action, ACTIONS)]
    strange = [f"{action!r:.80}" for action in actions if not isinstance(action, ACTIONS)]
    problems = [f"{text} is not a branch action" for text in strange] or _problems(known_actions, view)
    if not problems and stateful and Need.EARLIER_TURNS not in policy_needs(policy):
        problems = [problem for action in known_actions if (problem := _earlier_turn(action, view))]
    if problems:
        raise PluginError(
            f"{name} answered {_shown(event)} wrongly: {'; '.join(problems)}: return a list of StartRoots, Fork and "
            f"StartFrom within group.budget_left, Stop and Done, [] for nothing{defined_at(policy, 'decide')}"
        )
    return known_actions


def _shown(event: BranchEvent) -> str:
    """Return an event for a message, with entropies rounded so that a reader can compare them."""
    if isinstance(event, FirstTokens):
        event = replace(event, entropies=tuple(round(entropy, 3) for entropy in event.entropies))
    return str(event)


def _problems(actions: Sequence[BranchAction], view: GroupView) -> list[str]:
    """Judged by the view that the policy was given. More than the budget left is a mistake, never clipped."""
    problems = [problem for action in actions if (problem := _type_problem(action))]
    if problems:
        return problems
    starts = [action for action in actions if isinstance(action, STARTS)]
    problems = [f"{action}: n must not be negative" for action in starts if action.n < 0]
    by_id = {rollout.id: rollout for rollout in view.rollouts}
    for action in actions:
        match action:
            case Fork():
                problems += _fork_problems(action, by_id)
            case Stop():
                problems += _stop_problems(action, by_id)
            case StartFrom() if not 0 <= action.prefix < len(view.prefixes):
                problems.append(_no_prefix(action, len(view.prefixes)))
    stopped = [action.rollout for action in actions if isinstance(action, Stop)]
    problems += [f"it stops rollout {path} twice" for path in sorted(set(stopped)) if stopped.count(path) > 1]
    if any(isinstance(action, Done) for action in actions[:-1]):
        problems.append("Done is not the last action, and nothing can be started after it")
    wanted = sum(action.n for action in starts)
    if not problems and wanted > view.budget_left:
        problems.append(f"it asks for {wanted} rollouts, budget left is {view.budget_left}")
    return problems


def _type_problem(action: BranchAction) -> str | None:
    names = {Fork: ("n", "turn", "token"), StartFrom: ("n", "prefix"), StartRoots: ("n",)}.get(type(action), ())
    if isinstance(action, Fork | Stop) and not isinstance(action.rollout, str):
        return f"{action}: rollout is {action.rollout!r}, not the id of a rollout, which is a string"
    values = {name: getattr(action, name) for name in names}
    wrong = [name for name, value in values.items() if not isinstance(value, int) or isinstance(value, bool)]
    if wrong:
        return f"{action}: {wrong[0]} is {values[wrong[0]]!r}, not an int"
    if isinstance(action, Fork) and not _is_reason(action.reason):
        return f"{action}: reason is {action.reason!r:.200}, not a mapping of names to numbers"
    return None


def _is_reason(reason: object) -> bool:
    if not isinstance(reason, Mapping):
        return False
    return all(isinstance(name, str) and isinstance(value, SupportsFloat) for name, value in reason.items())


def _fork_problems(fork: Fork, by_id: Mapping[str, RolloutView]) -> list[str]:
    if fork.rollout not in by_id:
        return [f"{fork}: the group has no such rollout, only {', '.join(by_id) or 'none'}"]
    parent = by_id[fork.rollout]
    if parent.stop is StopReason.PRUNED:
        return [f"{fork}: rollout {fork.rollout} was stopped"]
    if fork.token:
        return _token_problems(fork, parent)
    last = len(parent.turns) - 1
    if last == 0:
        return [f"{fork}: rollout {fork.rollout} has no tool result yet; for turn 0 use StartRoots"]
    if not 1 <= fork.turn <= last:
        return [f"{fork}: rollout {fork.rollout} can be forked at turns 1 to {last}; for turn 0 use StartRoots"]
    return []


def _token_problems(fork: Fork, parent: RolloutView) -> list[str]:
    ended = [turn for turn in parent.turns if turn.ended]
    if not 0 <= fork.turn < len(ended):
        turns = f"turns 0 to {len(ended) - 1}" if ended else "none of its turns"
        return [f"{fork}: at a token {turns} of rollout {fork.rollout} can be forked, since those have ended"]
    most = ended[fork.turn].n_tokens - 1
    if not 1 <= fork.token <= most:
        return [f"{fork}: turn {fork.turn} of rollout {fork.rollout} can be forked at tokens 1 to {most}"]
    return []


def _stop_problems(stop: Stop, by_id: Mapping[str, RolloutView]) -> list[str]:
    if stop.rollout not in by_id:
        return [f"{stop}: the group has no such rollout, only {', '.join(by_id) or 'none'}"]
    return [f"{stop}: rollout {stop.rollout} has ended"] if by_id[stop.rollout].finished else []


def _no_prefix(start: StartFrom, n: int) -> str:
    if n:
        return f"{start}: the group has stored prefixes 0 to {n - 1}"
    return f"{start}: the group has no stored prefixes; a policy that starts from them declares Need.PREFIXES"


def _earlier_turn(action: BranchAction, view: GroupView) -> str | None:
    if not isinstance(action, Fork) or action.turn == (newest := len(view.rollout(action.rollout).turns) - 1):
        return None
    return (
        f"{action}: turn {action.turn} is before the newest of rollout {action.rollout}, {newest}, and tools or "
        "environment have a state; a policy that forks such rollouts there declares Need.EARLIER_TURNS"
    )
