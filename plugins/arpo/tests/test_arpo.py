from __future__ import annotations

import math
from dataclasses import replace
from importlib import resources
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
    RolloutView,
    Start,
    StartRoots,
    StopReason,
    Task,
    TurnView,
    entropy_change,
)
from ramet.testing import check_branch_policy, check_plugin
from ramet.types.option import option_problems
from ramet_arpo.branching import Arpo
from ramet_arpo.config import ArpoConfig, Budget, Rule

V = 1000


def view(id: str, *turns: tuple[float, ...], root: str | None = None) -> RolloutView:
    seen = tuple(TurnView(index=i, entropies=e, n_tokens=9, ended=True, n_forks=0) for i, e in enumerate(turns))
    return RolloutView(id=id, root=root or id, parent=None, fork_turn=None, turns=seen, finished=False, valid=True)


def group(*rollouts: RolloutView, budget: int = 16, left: int = 8) -> GroupView:
    task = Task(id="t", prompt=())
    return GroupView(task=task, budget=budget, budget_left=left, rollouts=rollouts, vocab_size=V)


def after(entropies: tuple[float, ...], *, left: int = 8, turn: int = 1, **config: object) -> list[BranchAction]:
    """What is decided where a root with baseline (1, 1) sampled `entropies` after a tool result."""
    policy = Arpo(ArpoConfig(**config))  # type: ignore[arg-type]
    event = FirstTokens(rollout="0", turn=turn, entropies=entropies)
    return list(policy.decide(event, group(view("0", (1.0, 1.0)), left=left), Random(0)))


def test_the_policy_keeps_the_contract() -> None:
    check_branch_policy(Arpo(ArpoConfig()))
    check_branch_policy(Arpo(ArpoConfig(initial_rollouts=1, branches=3, tau=0.4, normalizer=EntropyScale.SUM_VOCAB)))


def test_the_installed_plugin_passes_the_kit() -> None:
    check_plugin("arpo")


def test_the_change_of_entropy_by_hand() -> None:
    """Differences 1.0, 0.5 and -0.3 sum to 1.2; V = 1000, ln V = 6.907755."""
    now, before = (2.0, 1.5, 0.7), (1.0, 1.0, 1.0)
    assert entropy_change(now, before, EntropyScale.SUM_VOCAB, V) == pytest.approx(0.0012)
    assert entropy_change(now, before, EntropyScale.SUM_LN_VOCAB, V) == pytest.approx(1.2 / 6.907755)
    assert entropy_change(now, before, EntropyScale.MEAN_LN_VOCAB, V) == pytest.approx(0.4 / 6.907755)


def test_vectors_of_different_length_are_compared_over_the_shorter() -> None:
    assert entropy_change((3.0,), (1.0, 9.0, 9.0), EntropyScale.SUM_VOCAB, V) == pytest.approx(0.002)
    assert entropy_change((3.0, 9.0), (1.0,), EntropyScale.SUM_VOCAB, V) == pytest.approx(0.002)


def test_with_the_papers_values_it_forks_exactly_where_the_entropy_rose() -> None:
    assert after((1.0, 1.1)) == [Fork(rollout="0", turn=1, n=1)]
    assert after((1.0, 1.0)) == []
    assert after((1.0, 0.9)) == []


def test_a_fork_says_by_which_numbers_it_was_decided() -> None:
    (fork,) = after((1.0, 1.1))
    assert isinstance(fork, Fork)
    change = entropy_change((1.0, 1.1), (1.0, 1.0), ArpoConfig().normalizer, V)
    assert fork.reason == pytest.approx({"entropy change": change, "score": 0.5 + 0.2 * change, "tau": 0.5})


def test_the_threshold_by_hand() -> None:
    """alpha + beta * change = 0.2 + 0.5 * (sum / ln V) > 0.6 if and only if the sum exceeds 0.8 ln V = 5.526204."""
    values = {"alpha": 0.2, "beta": 0.5, "tau": 0.6}
    edge = 0.8 * math.log(V)
    assert after((1.0, 1.0 + edge - 1e-6), **values) == []
    assert after((1.0, 1.0 + edge + 1e-6), **values) == [Fork(rollout="0", turn=1, n=1)]


def test_a_fork_is_compared_with_the_first_turn_of_its_root() -> None:
    event = FirstTokens(rollout="0.0", turn=2, entropies=(2.0,))
    rollouts = view("0", (5.0,)), view("1", (0.0,)), view("0.0", (0.0,), (0.0,), root="0")
    assert Arpo(ArpoConfig()).decide(event, group(*rollouts), Random(0)) == []
    rollouts = view("0", (1.0,)), view("1", (9.0,)), view("0.0", (9.0,), (9.0,), root="0")
    assert Arpo(ArpoConfig()).decide(event, group(*rollouts), Random(0)) == [Fork(rollout="0.0", turn=2, n=1)]


def test_the_first_turn_is_the_baseline_and_never_forked() -> None:
    assert after((9.0, 9.0), turn=0) == []


def test_the_window_bounds_what_is_compared() -> None:
    assert after((2.0, 0.0, 0.0)) == []
    assert after((2.0, 0.0, 0.0), window=1) == [Fork(rollout="0", turn=1, n=1)]


def test_the_bernoulli_rule_forks_with_the_clipped_score_as_its_probability() -> None:
    """alpha + beta * change = 0.3 + 0.5 * 0.4 = 0.5: the change is 0.4 ln V over one token."""
    policy = Arpo(ArpoConfig(rule=Rule.BERNOULLI, alpha=0.3, beta=0.5, tau=9.0))

    def share(change: float) -> float:
        event = FirstTokens(rollout="0", turn=1, entropies=(1.0 + change * math.log(V),))
        drawn = (policy.decide(event, group(view("0", (1.0, 1.0))), Random(seed)) for seed in range(1000))
        return sum(map(len, drawn)) / 1000

    assert share(0.4) == pytest.approx(0.5, abs=0.05)
    assert share(-1.0) == 0.0
    assert share(2.0) == 1.0


def test_a_root_and_its_forks_have_a_limit_together() -> None:
    fork = view("0.0", (1.0,), (1.0,), root="0")
    forked = replace(fork, parent="0", fork_turn=1)
    rollouts = view("0", (1.0, 1.0)), view("1", (1.0, 1.0)), forked
    policy = Arpo(ArpoConfig(max_forks_per_root=1))
    rose = {"turn": 1, "entropies": (2.0, 2.0)}
    assert policy.decide(FirstTokens(rollout="0", **rose), group(*rollouts), Random(0)) == []
    assert policy.decide(FirstTokens(rollout="0.0", **rose), group(*rollouts), Random(0)) == []
    assert policy.decide(FirstTokens(rollout="1", **rose), group(*rollouts), Random(0)) != []


def test_each_root_may_have_its_share_of_the_budget() -> None:
    """A budget of 5 leaves 3 for forks: two of root 0 and one of root 1."""
    policy = Arpo(ArpoConfig(budget=Budget.PER_ROOT, branches=9))
    roots = view("0", (1.0, 1.0)), view("1", (1.0, 1.0))
    for root, n in (("0", 2), ("1", 1)):
        event = FirstTokens(rollout=root, turn=1, entropies=(2.0, 2.0))
        assert policy.decide(event, group(*roots, budget=5, left=3), Random(0)) == [Fork(rollout=root, turn=1, n=n)]


def test_options_that_change_nothing_since_alpha_equals_tau_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """The paper's own values, the defaults, are equal: with them nothing is told."""
    for config in (ArpoConfig(), ArpoConfig(tau=0.6, beta=0.4), ArpoConfig(rule=Rule.BERNOULLI, beta=0.4)):
        Arpo(config)
    for beta in (0.0, -0.2):  # no fork at all, and forks where the entropy fell
        Arpo(ArpoConfig(beta=beta))
    assert caplog.messages == []
    Arpo(ArpoConfig(beta=0.4))
    Arpo(ArpoConfig(beta=0.4, normalizer=EntropyScale.MEAN_LN_VOCAB))
    told = "branch_policy=arpo: alpha equals tau (0.5), so a rollout is forked wherever the entropy rose"
    assert caplog.messages == [
        f"{told}, by however little, and {without} no effect; raise branch_policy.params.tau to ask for more"
        for without in ("beta has", "beta and normalizer have")
    ]


def test_branches_are_cut_to_the_budget_left() -> None:
    assert after((9.0, 9.0), branches=3, left=2) == [Fork(rollout="0", turn=1, n=2)]
    assert after((9.0, 9.0), branches=3, left=0) == []


def test_it_starts_half_of_the_budget_or_what_it_is_told() -> None:
    def started(budget: int, initial: int | None = None) -> object:
        policy = Arpo(ArpoConfig(initial_rollouts=initial))
        return policy.decide(Start(), group(budget=budget, left=budget), Random(0))

    assert started(16) == [StartRoots(n=8)]
    assert started(1) == [StartRoots(n=1)]
    assert started(16, 12) == [StartRoots(n=12)]
    with pytest.raises(ConfigError, match=r"initial_rollouts: 20 .*, 16$"):
        started(16, 20)


def test_budget_left_when_everything_has_finished_goes_to_whole_rollouts_at_once() -> None:
    assert Arpo(ArpoConfig()).decide(Idle(), group(left=5), Random(0)) == [StartRoots(n=5)]


@pytest.mark.parametrize("event", [AfterTool(rollout="0", turn=1), Finished(rollout="0", stop=StopReason.ANSWER)])
def test_nothing_is_decided_before_the_first_tokens_are_there(event: AfterTool | Finished) -> None:
    assert Arpo(ArpoConfig()).decide(event, group(view("0", (1.0,))), Random(0)) == []


def test_an_engine_without_entropies_is_refused_instead_of_never_forking() -> None:
    with pytest.raises(ConfigError, match="exact entropies"):
        after(())


@pytest.mark.parametrize("bad", [{"initial_rollouts": 0}, {"branches": 0}, {"window": 0}])
def test_options_that_cannot_be_are_refused(bad: dict[str, int]) -> None:
    [problem] = option_problems(ArpoConfig(**bad))  # type: ignore[arg-type]
    assert problem.startswith(f"{next(iter(bad))} ")


def test_the_preset_ships_with_the_package() -> None:
    preset = resources.files("ramet_arpo.conf").joinpath("algorithm", "arpo.yaml").read_text(encoding="utf-8")
    for line in ("override /branch_policy: arpo", "override /advantage: grpo", "override /policy_loss: ppo_clip"):
        assert line in preset
