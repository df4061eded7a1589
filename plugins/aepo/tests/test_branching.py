"""When the policy `aepo` starts and forks what, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest

from ramet import (
    AfterTool,
    BranchAction,
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
    StopReason,
    Task,
    TurnView,
)
from ramet.config.catalog import typed_options
from ramet.testing import check_branch_policy
from ramet_aepo.branching import Aepo
from ramet_aepo.config import AepoConfig, Consecutive, ForkRule

V = 1000
LN_V = math.log(V)
LOW, HIGH = (1.0,), (1.0 + LN_V,)  # a change of 1 / -1 by ln V
STATIC = {"dynamic": False}


def view(
    id: str,
    *turns: tuple[float, ...],
    parent: str | None = None,
    fork_turn: int | None = None,
    forked: Sequence[int] = (),
    finished: bool = False,
    stop: StopReason | None = None,
) -> RolloutView:
    """`forked`: the turns at whose beginning it was forked once."""
    seen = tuple(
        TurnView(index=i, entropies=e, n_tokens=9, ended=True, n_forks=int(i in forked)) for i, e in enumerate(turns)
    )
    return RolloutView(
        id=id, root=id.partition(".")[0], parent=parent, fork_turn=fork_turn, turns=seen, finished=finished,
        valid=stop is not StopReason.FAULT, stop=stop,
    )  # fmt: skip


def probe(*turns: tuple[float, ...], stop: StopReason = StopReason.ANSWER) -> RolloutView:
    return view("0", *turns, finished=True, stop=stop)


def group(*rollouts: RolloutView, budget: int = 16, left: int | None = None) -> GroupView:
    left = budget - len(rollouts) if left is None else left
    task = Task(id="t", prompt=())
    return GroupView(task=task, budget=budget, budget_left=left, rollouts=rollouts, vocab_size=V)


def decide(event: object, seen: GroupView, seed: int = 0, **config: object) -> list[BranchAction]:
    return list(Aepo(AepoConfig(**config)).decide(event, seen, Random(seed)))  # type: ignore[arg-type]


def started(seen: GroupView, **config: object) -> int:
    """How many roots there are once the probe has ended; nothing forks."""
    ended = Finished(rollout="0", stop=seen.rollouts[0].stop or StopReason.ANSWER)
    actions = decide(ended, seen, tau=1.0, **config)
    assert all(isinstance(action, StartRoots) for action in actions) and len(actions) <= 1
    return len(seen.rollouts) + sum(action.n for action in actions)


def test_the_policy_keeps_the_contract_with_every_option() -> None:
    check_branch_policy(Aepo(AepoConfig()))
    check_branch_policy(Aepo(AepoConfig(early_roots=2, branches=3, tau=0.3, consecutive=Consecutive.PROMPT)))
    check_branch_policy(Aepo(AepoConfig(rule=ForkRule.BERNOULLI, penalty=0.5, normalizer=EntropyScale.SUM_VOCAB)))
    check_branch_policy(Aepo(AepoConfig(dynamic=False, initial_rollouts=1, tau=0.2)))


def test_earlier_turns_are_needed_only_where_forks_wait_for_the_probe() -> None:
    assert Aepo(AepoConfig()).needs == {Need.ENTROPY, Need.EARLIER_TURNS}
    assert Aepo(AepoConfig(dynamic=False)).needs == {Need.ENTROPY}


@pytest.mark.parametrize(
    ("config", "budget", "roots"),
    [({}, 16, 1), ({}, 1, 1), ({"early_roots": 3}, 16, 4), (STATIC, 16, 8), (STATIC, 1, 1),
     ({**STATIC, "initial_rollouts": 12}, 16, 12)],
)  # fmt: skip
def test_it_starts_the_probe_or_a_fixed_number_of_roots(config: dict[str, object], budget: int, roots: int) -> None:
    assert decide(Start(), group(budget=budget), **config) == [StartRoots(n=roots)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"early_roots": 16},
         "branch_policy.params.early_roots: 16 and the probe are more than rollout.group_size, 16"),
        ({**STATIC, "initial_rollouts": 20},
         "branch_policy.params.initial_rollouts: 20 is more than rollout.group_size, 16"),
    ],
)  # fmt: skip
def test_more_roots_than_rollouts_are_refused(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decide(Start(), group(), **config)
    assert str(caught.value) == message


def test_the_number_of_roots_by_hand() -> None:
    """H_root = 2, H_tool = mean(1, 1.5) = 1.25: 16 * sigmoid(10 * 0.75 / 6.907755) = 16 * 0.747609 = 11.96."""
    seen = group(probe((3.0, 1.0), (1.0,), (2.0, 1.0)))
    assert started(seen) == 12
    assert started(group(probe((1.25,), (2.0,)))) == 4
    assert started(seen, beta_root=0.0) == 8


def test_the_scale_of_the_difference_by_hand() -> None:
    """20 * 0.75 / ln V * 0.5 = 1.085736 is the same as 10 * 0.75 / ln V; 20 * 0.75 / V * 100 = 1.5: 16 * 0.817574."""
    seen = group(probe((2.0,), (1.25,)))
    assert started(seen, root_scale=EntropyScale.SUM_LN_VOCAB, beta_root=0.5) == started(seen) == 12
    assert started(seen, root_scale=EntropyScale.SUM_VOCAB, beta_root=100.0) == 13


def test_only_the_first_k_tokens_of_ended_turns_count() -> None:
    """With k = 1 it is 2 against 1 instead of 2 against 10."""
    seen = group(probe((2.0, 2.0), (1.0, 19.0)))
    assert (started(seen, window=1), started(seen)) == (13, 1)


def test_all_or_one_may_be_roots() -> None:
    assert started(group(probe((9e9,), (0.0,)))) == 16
    assert started(group(probe((0.0,), (9e9,)))) == 1
    assert started(group(probe((0.0,), (9e9,)), view("1", (0.0,)), view("2", (0.0,)))) == 3


@pytest.mark.parametrize(
    "ended",
    [probe((5.0,)), probe((5.0,), (1.0,), stop=StopReason.FAULT), probe((), stop=StopReason.FAULT)],
    ids=["no tool", "masked", "masked before it sampled"],
)
def test_a_probe_that_tells_nothing_makes_half_of_the_budget_roots(ended: RolloutView) -> None:
    assert [started(group(ended, budget=budget)) for budget in (16, 5, 1)] == [8, 3, 1]


def test_nothing_is_forked_before_the_probe_has_ended() -> None:
    seen = group(view("0", LOW, HIGH), view("1", LOW, HIGH))
    for id in "01":
        assert decide(FirstTokens(rollout=id, turn=1, entropies=HIGH), seen, early_roots=1) == []
    assert decide(Finished(rollout="1", stop=StopReason.ANSWER), seen, early_roots=1) == []


def test_what_was_sampled_before_is_decided_when_the_probe_has_ended_and_the_roots_come_first() -> None:
    """beta_root 0: 4 of 8 are roots, 4 for forks. Turn 1 of both comes before turn 2; a turn not sampled yet waits."""
    early = view("1", LOW, HIGH, HIGH, ())
    seen = group(probe(LOW, HIGH, LOW, HIGH), early, budget=8)
    actions = decide(Finished(rollout="0", stop=StopReason.ANSWER), seen, early_roots=1, beta_root=0.0, tau=0.55)
    assert actions == [
        StartRoots(n=2),
        Fork(rollout="0", turn=1),
        Fork(rollout="1", turn=1),
        Fork(rollout="1", turn=2),
        Fork(rollout="0", turn=3),
    ]


def test_forks_of_what_was_sampled_before_keep_to_their_budget() -> None:
    seen = group(probe(LOW, HIGH, HIGH, HIGH), budget=4)
    ended = Finished(rollout="0", stop=StopReason.ANSWER)
    assert decide(ended, seen, beta_root=0.0, branches=3) == [StartRoots(n=1), Fork(rollout="0", turn=1, n=2)]


def test_forks_of_one_answer_are_consecutive_too() -> None:
    """score = (0.5 + 0.2) * (1 - 0.3 l) > 0.5 holds for l = 0 only, so every second turn is forked."""
    seen = group(probe(LOW, HIGH, HIGH, HIGH, HIGH), budget=16)
    _, *forks = decide(Finished(rollout="0", stop=StopReason.ANSWER), seen, beta_root=0.0, penalty=0.3)
    assert forks == [Fork(rollout="0", turn=1), Fork(rollout="0", turn=3)]


def test_a_masked_probe_is_not_forked() -> None:
    seen = group(probe(LOW, HIGH, stop=StopReason.FAULT))
    assert decide(Finished(rollout="0", stop=StopReason.FAULT), seen) == [StartRoots(n=7)]


def after(rollout: RolloutView, *others: RolloutView, seed: int = 0, **config: object) -> bool:
    """Whether the newest turn of `rollout` is forked."""
    turn = rollout.turns[-1]
    event = FirstTokens(rollout=rollout.id, turn=turn.index, entropies=turn.entropies)
    actions = decide(event, group(*others, rollout, left=4), seed, **{**STATIC, **config})
    assert actions in ([], [Fork(rollout=rollout.id, turn=turn.index)])
    return bool(actions)


def test_the_threshold_by_hand() -> None:
    """0.2 + 0.5 * (sum / ln V) > 0.6 if and only if the sum exceeds 0.8 ln V; gamma 0 leaves alpha alone."""
    values = {"alpha": 0.2, "gamma": 0.5, "tau": 0.6}
    edge = 0.8 * LN_V
    assert not after(view("0", LOW, (1.0 + edge - 1e-6,)), **values)
    assert after(view("0", LOW, (1.0 + edge + 1e-6,)), **values)
    assert not after(view("0", LOW, HIGH), **{**values, "gamma": 0.0})


def test_the_first_turn_is_the_baseline_of_a_root_and_its_forks_and_never_forked() -> None:
    assert not after(view("0", HIGH))
    fork = view("1.0", (9.0,), (9.0,), HIGH, parent="1", fork_turn=1)
    assert after(fork, view("0", (99.0,)), view("1", LOW, (9.0,)))
    assert not after(fork, view("0", LOW), view("1", (99.0,), (9.0,)))


# (0.5 + 0.2) * (1 - 0.1 l) is 0.7, 0.63, 0.56, 0.49: below a tau of 0.6 from l = 2 on.
PENALTY = {"penalty": 0.1, "tau": 0.6}


@pytest.mark.parametrize(
    ("rollout", "forked"),
    [
        (view("0", LOW, LOW, LOW, HIGH), True),
        (view("0", LOW, LOW, LOW, HIGH, forked=[2]), True),
        (view("0", LOW, LOW, LOW, HIGH, forked=[1, 2]), False),
        (view("0", LOW, LOW, LOW, LOW, HIGH, forked=[1, 2]), True),
        (view("0", LOW, LOW, LOW, LOW, HIGH, forked=[1, 3]), True),
    ],
    ids=["none", "one", "two", "two, not directly before", "one after a pause"],
)
def test_consecutive_branch_points_on_the_path_are_counted(rollout: RolloutView, forked: bool) -> None:
    assert after(rollout, **PENALTY) is forked
    assert after(rollout, **{**PENALTY, "penalty": 0.0})


def test_a_fork_counts_the_turn_that_it_begins_with_and_those_of_its_ancestors() -> None:
    root = view("0", LOW, LOW, LOW, forked=[1])
    child = view("0.0", LOW, LOW, LOW, HIGH, parent="0", fork_turn=1)
    assert after(child, root, **PENALTY), "turn 1, not directly before turn 3"
    child = view("0.0", LOW, LOW, LOW, parent="0", fork_turn=1, forked=[2])
    grandchild = view("0.0.0", LOW, LOW, LOW, HIGH, parent="0.0", fork_turn=2)
    assert not after(grandchild, root, child, **PENALTY), "turns 1 and 2, of which its own view shows neither as forked"
    child = view("0.0", LOW, LOW, LOW, HIGH, parent="0", fork_turn=2)
    assert after(child, view("0", LOW, LOW, LOW, forked=[2]), **PENALTY), "turn 2 alone"


def test_branch_points_of_others_count_only_by_prompt() -> None:
    others = view("0", LOW, LOW, LOW, forked=[1]), view("0.0", LOW, LOW, LOW, parent="0", fork_turn=1, forked=[2])
    rollout = view("1", LOW, HIGH)
    assert after(rollout, *others, **PENALTY)
    assert not after(rollout, *others, **PENALTY, consecutive=Consecutive.PROMPT)


def test_a_branch_point_that_forks_inherit_counts_once_by_prompt() -> None:
    """The view of the fork holds the turn before its own, with the fork that was made there."""
    others = view("0", LOW, LOW, forked=[1]), view("0.0", LOW, LOW, LOW, parent="0", fork_turn=2, forked=[1])
    assert after(view("1", LOW, HIGH), *others, **PENALTY, consecutive=Consecutive.PROMPT)


def test_the_penalty_never_turns_the_score_around() -> None:
    rollout = view("0", LOW, LOW, LOW, LOW, (0.0,), forked=[1, 2, 3])
    assert not after(rollout, penalty=1.0, gamma=9.0, tau=0.0)


def test_the_bernoulli_rule_forks_with_the_score_as_its_probability() -> None:
    """(0.3 + 0.5 * 1) * (1 - 0.25) = 0.6; a change of -1 and of 2 are clipped to 0 and 1."""
    config = {"rule": ForkRule.BERNOULLI, "alpha": 0.3, "gamma": 0.5, "tau": 9.0, "penalty": 0.25}

    def share(*turns: tuple[float, ...], forked: Sequence[int] = ()) -> float:
        rollout = view("0", *turns, forked=forked)
        return sum(after(rollout, seed=seed, **config) for seed in range(1000)) / 1000

    assert share(LOW, LOW, HIGH, forked=[1]) == pytest.approx(0.6, abs=0.05)
    assert share(HIGH, LOW) == 0.0
    assert share(LOW, (1.0 + 2 * LN_V,)) == 1.0


def test_branches_are_cut_to_the_budget_left() -> None:
    event = FirstTokens(rollout="0", turn=1, entropies=HIGH)
    seen = {left: group(view("0", LOW, HIGH), left=left) for left in (2, 0)}
    assert decide(event, seen[2], **STATIC, branches=3) == [Fork(rollout="0", turn=1, n=2)]
    assert decide(event, seen[0], **STATIC, branches=3) == []


def test_budget_left_when_everything_has_finished_goes_to_whole_rollouts_at_once() -> None:
    assert decide(Idle(), group(probe(LOW), left=5)) == [StartRoots(n=5)]


@pytest.mark.parametrize("event", [AfterTool(rollout="0", turn=1), Finished(rollout="1", stop=StopReason.ANSWER)])
def test_other_events_decide_nothing(event: AfterTool | Finished) -> None:
    assert decide(event, group(probe(LOW), view("1", LOW))) == []
    assert decide(event, group(probe(LOW), view("1", LOW)), **STATIC) == []


def test_an_engine_without_entropies_is_refused_instead_of_never_forking() -> None:
    with pytest.raises(ConfigError, match=r"^branch_policy: aepo needs exact entropies"):
        decide(FirstTokens(rollout="0", turn=0, entropies=()), group(view("0", ())))


def test_a_rule_that_looks_at_the_sign_alone_is_told(caplog: pytest.LogCaptureFixture) -> None:
    Aepo(AepoConfig())
    Aepo(AepoConfig(tau=0.6, penalty=0))
    Aepo(AepoConfig(rule=ForkRule.BERNOULLI, penalty=0))
    Aepo(AepoConfig(gamma=0, penalty=0))  # never forks
    assert caplog.messages == []
    Aepo(AepoConfig(penalty=0))
    assert caplog.messages == [
        "branch_policy=aepo: alpha equals tau (0.5) and penalty is 0, so a rollout is forked wherever the entropy "
        "rose, by however little: gamma and normalizer have no effect. Raise branch_policy.params.tau to ask for more"
    ]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"early_roots": -1}, "early_roots .* -1"),
        ({**STATIC, "initial_rollouts": 0}, "initial_rollouts .* 0"),
        ({"window": 0}, "window .* 0"),
        ({"branches": 0}, "branches .* 0"),
        ({"penalty": 1.5}, "penalty .* 1.5"),
        ({"initial_rollouts": 4},
         "initial_rollouts is 4, but with dynamic=true the probe says how many roots there are; set dynamic=false, or "
         "leave it out"),
        ({**STATIC, "early_roots": 2},
         "early_roots is 2, but with dynamic=false there is no probe; use initial_rollouts"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(bad: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=f"^{message}$"):
        typed_options(AepoConfig, bad)
