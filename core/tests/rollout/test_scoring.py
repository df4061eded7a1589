"""Scoring: routing, weights, parts; what cannot be judged is masked and counted, what breaks the contract stops."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from http.client import IncompleteRead
from typing import Any

import pytest
import torch

from ramet import ConfigError, Fault, Group, InfraError, PluginError, Rollout, Score, Task, per_rollout, user_prompt
from ramet.rollout.faults import is_defect
from ramet.rollout.scoring import ScoredGroup, Scorer, WeightedReward, check_failures, n_unjudged
from ramet.testing import written_rollout

ONE_EACH = "return one per rollout, None where it cannot judge"
FINITE = "give a finite number, or None for not judged"
NUMBER = "give a float, a Score, or None for not judged"
TASK = Task(id="sums/7", prompt=user_prompt("2 + 3?"), answer=("5",), data_source="sums")


def group(*replies: str, faults: Sequence[int] = ()) -> Group:
    rollouts = [written_rollout(TASK, [reply], id=str(i)) for i, reply in enumerate(replies)]
    for i in faults:
        rollouts[i] = replace(rollouts[i], fault=Fault(where="tool:python", message="down"))
    return Group(task=TASK, rollouts=tuple(rollouts))


def weighted(score: Any, name: str = "length", **options: Any) -> WeightedReward:
    return WeightedReward(name=name, plugin="mine", reward=score, **options)


def length(rollout: Rollout) -> float:
    return float(len(rollout.reply))


def returning(*scores: Any) -> Callable[[Sequence[Rollout]], Any]:
    async def reward(_: Sequence[Rollout]) -> Any:
        return list(scores)

    return reward


class Picky:
    """Judges no task with a gold answer of 5, and knows one tool."""

    per_rollout = True

    def check_task(self, task: Task) -> str | None:
        return "five is no answer" if "5" in task.answer else None

    def check_tools(self, tools: Sequence[str]) -> Sequence[str]:
        return [f"tool: {name} is unknown" for name in tools if name != "python"]

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | None]:
        return [1.0] * len(group)


@pytest.mark.parametrize(
    ("error", "defect"),
    [
        (KeyError("gold"), True),
        (RuntimeError("judge"), True),
        (EOFError(), False),
        (IncompleteRead(b""), False),
        (subprocess.TimeoutExpired("x", 1), False),
        (BrokenExecutor(), False),
    ],
)
def test_what_failed_outside_is_not_a_mistake_of_a_plugin(error: Exception, defect: bool) -> None:
    assert is_defect(error) is defect
    chained = RuntimeError("wrapped")
    chained.__cause__ = error
    assert is_defect(chained) is defect


@pytest.mark.parametrize(("error", "defect"), [(KeyError("gold"), True), (ConnectionError(), False)])
def test_causes_in_a_circle_are_looked_at_once(error: Exception, defect: bool) -> None:
    itself, first, group = RuntimeError("itself"), RuntimeError("first"), ExceptionGroup("group", [error])
    itself.__cause__ = itself
    assert is_defect(itself)
    first.__cause__, error.__cause__ = group, first
    assert is_defect(first) is is_defect(group) is defect


def test_rewards_are_asked_about_the_tasks_that_they_judge_and_about_tools() -> None:
    scorer = Scorer([weighted(per_rollout(length)), weighted(Picky(), "picky", sources=frozenset({"sums"}))])
    assert scorer.task_problem(TASK) == "rewards.picky: five is no answer"
    assert scorer.task_problem(replace(TASK, data_source="facts")) is None
    assert scorer.task_problem(replace(TASK, answer=("6",))) is None
    assert scorer.tool_problems(["python", "search"]) == ["rewards.picky.params.tool: search is unknown"]


def test_a_check_that_raises_is_a_defect_of_the_plugin() -> None:
    class Broken(Picky):
        def check_task(self, task: Task) -> str | None:
            raise KeyError("gold")

    with pytest.raises(PluginError) as caught:
        Scorer([weighted(Broken(), "broken")]).task_problem(TASK)
    assert str(caught.value).startswith("reward 'broken' of plugin 'mine' raised KeyError in check_task: 'gold' (")

    class SaysFalse(Picky):
        def check_task(self, task: Task) -> Any:
            return False

    told = r"reward 'broken' of plugin 'mine': check_task returned False: return None, or a text .*\.py:\d+\)"
    with pytest.raises(PluginError, match=told):
        Scorer([weighted(SaysFalse(), "broken")]).task_problem(TASK)


def score(one: Group, *rewards: WeightedReward) -> ScoredGroup:
    return asyncio.run(Scorer(rewards).score(one))


def rewards_of(scored: ScoredGroup) -> list[float | None]:
    return [rollout.reward for rollout in scored.rollouts]


def test_scores_follow_the_order_of_the_group() -> None:
    assert rewards_of(score(group("aaa", "a", "aa"), weighted(per_rollout(length)))) == [3.0, 1.0, 2.0]


def test_the_reward_is_the_weighted_sum_and_every_part_is_kept_unweighted() -> None:
    shaped = per_rollout(lambda r: Score(value=2.0, parts={"f1": 0.25}, token_rewards={0: 1.0}, reason="it is long"))
    scored = score(
        group("aaa"), weighted(per_rollout(length), weight=0.5), weighted(shaped, "shape", weight=10.0)
    ).rollouts[0]
    assert scored.reward == 0.5 * 3 + 10 * 2
    assert scored.parts == {"length": 3.0, "shape": 2.0, "shape/f1": 0.25}
    assert scored.token_rewards == {0: 10.0}
    assert scored.reasons == {"shape": "it is long"}


def test_a_reward_may_multiply_the_sum_of_those_that_add() -> None:
    shaped = per_rollout(lambda r: Score(value=2.0, token_rewards={0: 1.0}))
    gate = weighted(per_rollout(lambda r: float(r.reply != "aaa")), "gate", multiplies=True, weight=2.0)
    rewards = [weighted(shaped, "shape"), gate, weighted(per_rollout(length), weight=0.5)]
    scored = score(group("aaa", "aa"), *rewards).rollouts
    assert [one.reward for one in scored] == [0.0, (2 + 0.5 * 2) * 2]
    assert scored[1].parts == {"shape": 2.0, "gate": 1.0, "length": 2.0} and scored[1].token_rewards == {0: 1.0}
    with pytest.raises(
        ConfigError, match="none that adds applies to task 'sums/7' of data source 'sums'; configured: gate"
    ):
        score(group("aaa"), gate)


def test_a_score_is_clipped_before_its_weight_and_recorded_so() -> None:
    clipped = weighted(per_rollout(length), clip=(2.0, 3.0), weight=10.0)
    scored = score(group("a", "aa", "aaaaa"), clipped).rollouts
    assert [one.reward for one in scored] == [20.0, 20.0, 30.0]
    assert [one.parts["length"] for one in scored] == [2.0, 2.0, 3.0]


def test_the_data_source_chooses_the_rewards() -> None:
    here = weighted(per_rollout(length), sources=frozenset({"sums"}))
    elsewhere = weighted(per_rollout(lambda r: 100.0), "other", sources=frozenset({"essays"}))
    scored = score(group("aaa"), here, elsewhere).rollouts[0]
    assert (scored.reward, dict(scored.parts)) == (3.0, {"length": 3.0})


def test_a_task_without_a_reward_is_the_users_mistake_and_names_its_source() -> None:
    with pytest.raises(ConfigError, match=r"'sums/7' of data source 'sums'; .*other for essays"):
        score(group("a"), weighted(per_rollout(length), "other", sources=frozenset({"essays"})))


def test_a_masked_rollout_is_not_shown_to_rewards_and_stays_masked() -> None:
    scored = score(group("aaa", "a", "aa", faults=[1]), weighted(per_rollout(length)))
    assert rewards_of(scored) == [3.0, None, 2.0]
    assert [r.rollout.id for r in scored.valid] == ["0", "2"]
    assert scored.rollouts[1].rollout.fault == Fault(where="tool:python", message="down")


def test_a_group_that_is_masked_as_a_whole_asks_no_reward() -> None:
    scored = score(group("a", "b", faults=[0, 1]), weighted(returning("never asked")))
    assert rewards_of(scored) == [None, None]
    assert scored.valid == ()


def test_none_means_not_judged_and_masks_the_rollout() -> None:
    scored = score(group("a", "b"), weighted(returning(None, 1.0)), weighted(per_rollout(length), "second"))
    assert rewards_of(scored) == [None, 2.0]
    fault = scored.rollouts[0].rollout.fault
    assert fault == Fault(where="reward:length", message="not judged")


def test_a_masked_score_leaves_the_rollout_out_on_purpose_and_counts_as_no_failure() -> None:
    overlong = per_rollout(lambda r: Score(value=0.0, masked=r.n_response_tokens > 2))
    scored = score(group("aaa", "a", "aa"), weighted(per_rollout(length)), weighted(overlong, "overlong"))
    assert rewards_of(scored) == [None, 1.0, 2.0]
    assert [r.rollout.left_out for r in scored.rollouts] == ["reward:overlong", None, None]
    assert [r.rollout.fault for r in scored.rollouts] == [None, None, None]
    assert scored.rollouts[0].parts == {"length": 3.0, "overlong": 0.0}
    assert [r.rollout.id for r in scored.valid] == ["1", "2"]
    assert n_unjudged([scored]) == 0
    check_failures([scored], [weighted(per_rollout(length))])


@pytest.mark.parametrize(("failed", "of", "stops"), [(1, 16, False), (3, 16, False), (4, 16, True), (4, 100, False)])
def test_few_failures_never_stop_a_run(failed: int, of: int, stops: bool) -> None:
    reward = weighted(returning(*[None] * failed, *[1.0] * (of - failed)))
    some = score(group(*["a"] * of), reward)
    check_failures([some], [replace(reward, max_unjudged=0.25)])
    if not stops:
        check_failures([some], [reward])
        return
    with pytest.raises(InfraError) as raised:
        check_failures([some], [reward])
    assert str(raised.value) == (
        "reward 'length' of plugin 'mine' could not judge 4 of 16 rollouts of this step (limit "
        "rewards.length.max_unjudged=0.05); most often: not judged"
    )


class JudgeDown(Exception):
    """As an HTTP client raises, which is not the reward's mistake."""


JudgeDown.__module__ = "aiohttp.client_exceptions"


@pytest.mark.parametrize(
    ("error", "stops_with", "attempts"),
    [(InfraError("down"), InfraError, 3), (JudgeDown("down"), InfraError, 1), (OSError("disk"), InfraError, 1),
     (KeyError("x"), PluginError, 1), (SystemExit(3), PluginError, 1)],
)  # fmt: skip
def test_a_reward_is_tried_again_where_that_helps_and_a_mistake_of_its_own_stops_otherwise(
    error: BaseException, stops_with: type[Exception], attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume helps where a service was down, and meets a mistake again, so they end with other exit codes."""
    monkeypatch.setattr("ramet.rollout.scoring.BACKOFF_S", 0.001)
    asked = []

    async def fails(rollouts: Sequence[Rollout]) -> list[float]:
        asked.append(len(rollouts))
        raise error

    reward = weighted(fails)
    found = score(group(*"abcd"), reward)
    assert asked == [4] * attempts
    with pytest.raises(stops_with, match=r"reward 'length' .* 4 of 4 .*scoring\.py:"):
        check_failures([found], [reward])


def test_a_reward_that_works_the_second_time_has_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.rollout.scoring.BACKOFF_S", 0.001)
    answers = iter([InfraError("busy", retry_after_s=0.002), [1.0]])

    async def busy(_: Sequence[Rollout]) -> list[float]:
        if isinstance(answer := next(answers), InfraError):
            raise answer
        return answer

    assert rewards_of(score(group("a"), weighted(busy, retries=1))) == [1.0]


RAISED = [ValueError("bad"), InfraError("judge down"), TimeoutError("socket"), KeyError("x"), SystemExit(3)]


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_a_reward_that_raises_masks_its_rollouts_and_never_scores_them_0(error: BaseException) -> None:
    async def fails(_: Sequence[Rollout]) -> list[float]:
        raise error

    scored = score(group("a", "b"), weighted(fails, retries=0))
    assert rewards_of(scored) == [None, None]
    fault = scored.rollouts[0].rollout.fault
    whose = "plugin:" if isinstance(error, ValueError | KeyError | SystemExit) else ""
    assert fault is not None and fault.where == f"reward:{whose}length" and repr(error) in fault.message


def test_a_reward_that_hangs_is_masked_after_its_time() -> None:
    async def hangs(_: Sequence[Rollout]) -> list[float]:
        await asyncio.sleep(60)
        return [0.0]

    fault = score(group("a"), weighted(hangs, timeout_s=0.01)).rollouts[0].rollout.fault
    assert fault is not None and fault.message == "timed out after 0.01 s"


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ([1.0], f"returned 1 scores for 2 rollouts: {ONE_EACH}"),
        ([1.0, 2.0, 3.0], f"returned 3 scores for 2 rollouts: {ONE_EACH}"),
        ([1.0, float("nan")], f"scored the reply 'b' with nan: {FINITE}"),
        ([float("inf"), 1.0], f"scored the reply 'a' with inf: {FINITE}"),
        ([1.0, "1"], f"scored the reply 'b' with '1': {NUMBER}"),
        ([1.0, [1.0]], f"scored the reply 'b' with [1.0]: {NUMBER}"),
        ([1.0, torch.ones(2)], f"scored the reply 'b' with tensor([1., 1.]): {NUMBER}"),
        ([1.0, 10**400], f"scored the reply 'b' with 1{79 * '0'}: {NUMBER}"),
        ([1.0, Score(value=float("nan"))], f"scored the reply 'b' with nan: {FINITE}"),
        ([1.0, Score(value=1.0, parts={"f1": float("nan")})], f"scored part 'f1' with nan: {FINITE}"),
        ([1.0, Score(value=1.0, token_rewards={0: float("nan")})], f"scored token 0 with nan: {FINITE}"),
        ([1.0, Score(value=1.0, token_rewards={1: 1.0})], "token_rewards names position 1 of a response of 1 tokens"),
        (
            [1.0, Score(value=1.0, parts=["f1"])],  # type: ignore[arg-type]
            "scored with a Score whose parts or token_rewards are not a mapping of names or positions to numbers",
        ),
        (
            [1.0, Score(value=1.0, masked="no")],  # type: ignore[arg-type]
            "scored with Score(masked='no'): give True or False",
        ),
        ([1.0, Score(value=1.0, token_rewards={-1: 1.0})], "token_rewards names position -1 of a response of 1 tokens"),
    ],
)
def test_what_breaks_the_contract_stops_at_once_and_names_plugin_and_task(returned: list[Any], problem: str) -> None:
    reward = returning(*returned)
    with pytest.raises(PluginError) as caught:
        score(group("a", "b"), weighted(reward))
    where = f"core/tests/rollout/test_scoring.py:{reward.__code__.co_firstlineno}"
    assert str(caught.value) == f"reward 'length' of plugin 'mine', task 'sums/7': {problem} ({where})"


@pytest.mark.parametrize("returned", [1.0, None, "ab", torch.ones(2), {0: 1.0, 1: 1.0}])
def test_something_else_than_a_list_stops_at_once(returned: Any) -> None:
    async def odd(_: Sequence[Rollout]) -> Any:
        return returned

    what = f"returned {type(returned).__name__}: return a list with one score per rollout"
    with pytest.raises(PluginError, match=re.escape(f"task 'sums/7': {what} (")):
        score(group("a", "b"), weighted(odd))


def test_a_reward_that_raises_says_in_which_line_and_with_debug_how_it_came_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(rollout: Rollout) -> float:
        return 1 / 0

    line = f"core/tests/rollout/test_scoring.py:{fails.__code__.co_firstlineno + 1}"
    message = f"ZeroDivisionError('division by zero') ({line})"
    for level, traceback in ((logging.INFO, False), (logging.DEBUG, True)):
        caplog.clear()
        with caplog.at_level(level, logger="ramet"):
            fault = score(group("a"), weighted(per_rollout(fails))).rollouts[0].rollout.fault
        assert fault == Fault(where="reward:plugin:length", message=message)
        (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert record.getMessage() == f"reward length of plugin mine failed: {message}"
        assert bool(record.exc_info) is traceback


def test_a_configuration_error_of_a_reward_stops_the_run_with_its_name() -> None:
    def fails(rollout: Rollout) -> float:
        raise ConfigError("no key in the environment")

    def names_itself(rollout: Rollout) -> float:
        raise ConfigError("rewards.length: no key in the environment")

    line = f"core/tests/rollout/test_scoring.py:{fails.__code__.co_firstlineno + 1}"
    for function, message in (
        (fails, f"reward 'length' of plugin 'mine': no key in the environment ({line})"),
        (names_itself, "rewards.length: no key in the environment"),
    ):
        with pytest.raises(ConfigError) as caught:
            score(group("a"), weighted(per_rollout(function)))
        assert str(caught.value) == message


def test_scalars_of_torch_and_booleans_are_numbers() -> None:
    assert rewards_of(score(group("a", "b"), weighted(returning(torch.tensor(0.5), True)))) == [0.5, 1.0]


def failing_on(*ids: str) -> Any:
    return per_rollout(lambda rollout: None if rollout.id in ids else 1.0)


def test_over_five_percent_of_a_step_stop_the_run() -> None:
    reward = weighted(failing_on("0"))

    async def play() -> list[ScoredGroup]:
        scorer = Scorer([reward])
        return [await scorer.score(group(*["a"] * n)) for n in (20, 10, 10, 10)]

    groups = asyncio.run(play())
    check_failures(groups[:1], [reward])  # 1 of 20 is not over 5 %
    check_failures(groups[:2], [reward])  # 2 of 30 are few
    with pytest.raises(InfraError, match=r"4 of 50 rollouts .*: not judged$"):
        check_failures(groups, [reward])
    assert n_unjudged(groups) == 4


def test_infrastructure_faults_of_rollouts_are_not_the_rewards_failures() -> None:
    found = score(group("a", "b", faults=[0]), weighted(per_rollout(length)))
    check_failures([found], [weighted(per_rollout(length))])
    assert n_unjudged([found]) == 0


def test_a_reward_that_reorders_what_it_is_given_disturbs_no_other() -> None:
    async def reverses(rollouts: Sequence[Rollout]) -> list[float]:
        backwards = list(rollouts)
        backwards.reverse()
        assert not hasattr(rollouts, "reverse")
        return [0.0] * len(backwards)

    scored = score(group("aaa", "a"), weighted(reverses, "reverses"), weighted(per_rollout(length)))
    assert rewards_of(scored) == [3.0, 1.0]


def test_what_training_leaves_out_on_purpose_a_validation_counts() -> None:
    """Without the rollouts that were cut off, a policy would look better the more of its hard ones it never ends."""
    overlong = weighted(per_rollout(lambda r: Score(value=0.25, masked=r.id == "0")), weight=2.0)
    scorer = Scorer([overlong])
    assert rewards_of(asyncio.run(scorer.score(group("a", "b")))) == [None, 0.5]
    kept = asyncio.run(scorer.score(group("a", "b"), leave_out=False))
    assert rewards_of(kept) == [0.5, 0.5]
    assert len(kept.valid) == 2 and all(one.rollout.valid for one in kept.rollouts)


def test_a_reward_that_cannot_be_closed_is_named_and_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    class Held:
        def __init__(self, name: str) -> None:
            self.name = name

        async def __call__(self, group: Sequence[Rollout]) -> list[float]:
            return [0.0] * len(group)

        async def aclose(self) -> None:
            if self.name == "raises":
                raise ValueError("no process")
            closed.append(self.name)

    names = ("raises", "good")
    asyncio.run(Scorer([WeightedReward(name=name, plugin="test", reward=Held(name)) for name in names]).aclose())
    assert closed == ["good"]
    assert caplog.messages == ["aclose of reward raises of plugin test failed: ValueError('no process')"]


@pytest.mark.parametrize("error", [InfraError("busy", retry_after_s="5"), PluginError("x")])  # type: ignore[arg-type]
def test_what_a_reward_raises_wrongly_stops_the_run_and_is_named(error: Exception) -> None:
    async def busy(_: Sequence[Rollout]) -> list[float | Score | None]:
        raise error

    with pytest.raises(PluginError, match=r"^reward 'length' of plugin 'mine'.* raised "):
        score(group("a", "b"), weighted(busy, retries=1))


@pytest.mark.parametrize("returned", ["bad", None, [1]])
def test_a_check_of_tools_that_returns_no_list_of_texts_is_named(returned: Any) -> None:
    class Odd(Picky):
        def check_tools(self, tools: Sequence[str]) -> Any:
            return returned

    with pytest.raises(PluginError, match=r"check_tools returned .*: return a list of texts"):
        Scorer([weighted(Odd())]).tool_problems(["python"])
