from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from ramet.config.schema import SystemPrompt, ToolConfig
from ramet.errors import ConfigError, PluginError
from ramet.models.encoder import Encoder
from ramet.rollout.plan import RolloutPlan
from ramet.rollout.worker import Admission
from ramet.testing.doubles import Reply, ScriptedEngine, echo_tool, read_request_id
from ramet.types import (
    CallStatus,
    Message,
    Origin,
    RolloutState,
    SegmentKind,
    StepContext,
    StepResult,
    StopReason,
    Task,
)

Play = Callable[..., Any]
CALL, ANSWER = "<think>x</think><python>1+1</python>", "<think>y</think><answer>2</answer>"


def one_call(task: str, path: str, turn: int) -> str:
    return CALL if turn == 0 else ANSWER


def test_a_rollout_is_prompt_turn_result_turn(play: Play, encoder: Encoder) -> None:
    [rollout] = play(one_call, group_size=1).rollouts
    kinds = [(s.kind, s.origin, s.turn) for s in rollout.segments]
    assert kinds == [
        (SegmentKind.PROMPT, Origin.INSERTED, 0),
        (SegmentKind.TURN, Origin.SAMPLED, 0),
        (SegmentKind.RESULT, Origin.INSERTED, 0),
        (SegmentKind.TURN, Origin.SAMPLED, 1),
    ]
    assert rollout.response == f"{CALL} <result>\n1+1\n</result>{ANSWER}"
    assert (rollout.stop, rollout.answer) == (StopReason.ANSWER, "2")
    [call] = rollout.tool_calls
    assert (call.name, dict(call.arguments), call.text, call.turn) == ("python", {"text": "1+1"}, "1+1", 0)


def test_what_the_engine_is_asked_to_continue_is_what_the_segments_hold(play: Play) -> None:
    played = play(one_call, group_size=1)
    [rollout] = played.rollouts
    first, second = played.engine.requests
    assert list(first.token_ids) == list(rollout.segments[0].token_ids)
    assert list(second.token_ids) == [i for s in rollout.segments[:3] for i in s.token_ids]
    assert first.cache_key == second.cache_key == "train/3/t/0"
    assert [read_request_id(r.id)[1] for r in (first, second)] == [0, 1]
    assert first.seed != second.seed


def test_only_sampled_segments_carry_what_training_needs(play: Play) -> None:
    [rollout] = play(lambda *_: Reply(text=ANSWER, entropies=(0.5, 2.0)), group_size=1).rollouts
    prompt, turn = rollout.segments
    assert (prompt.logprobs, prompt.entropies, prompt.policy_version) == (None, None, None)
    assert len(turn.logprobs) == len(turn.entropies) == len(turn.token_ids)
    assert list(turn.entropies[:3]) == [0.5, 2.0, 0.5]
    assert turn.policy_version == 0


def test_an_end_of_sequence_is_a_token_but_no_text(play: Play, encoder: Encoder) -> None:
    [rollout] = play(lambda *_: "I give up", group_size=1).rollouts
    assert rollout.stop is StopReason.END
    assert rollout.segments[-1].token_ids[-1] == encoder.eos_id
    assert rollout.reply == "I give up"


def test_groups_come_back_in_order_and_are_told_as_they_finish(play: Play, make_task: Any) -> None:
    def script(task: str, path: str, turn: int) -> Reply:
        return Reply(text=ANSWER, rest_s=0.05 if task == "slow" else 0.0)

    told = []
    tasks = [make_task("slow"), make_task("quick")]
    played = play(script, tasks=tasks, group_size=2, on_group=lambda group: told.append(group.task.id))
    assert [g.task.id for g in played.groups] == ["slow", "quick"]
    assert told == ["quick", "slow"]


def test_a_task_that_stands_twice_in_a_batch_is_sampled_twice(play: Play, make_task: Any) -> None:
    played = play(one_call, tasks=[make_task(), make_task()], group_size=1)
    assert len({request.seed for request in played.engine.requests}) == 4
    assert len({request.cache_key for request in played.engine.requests}) == 2


def test_seeds_depend_on_run_step_salt_and_path_alone(play: Play) -> None:
    def seeds(**options: Any) -> list[int]:
        return sorted(r.seed for r in play(one_call, group_size=2, **options).engine.requests)

    assert seeds() == seeds()
    assert not set(seeds()) & set(seeds(seed=2))
    assert not set(seeds()) & set(seeds(plan=RolloutPlan(salt="valid")))


def test_some_rollouts_of_a_group_can_be_played_again_with_the_seeds_that_they_had(play: Play) -> None:
    whole = play(one_call, group_size=4, plan=RolloutPlan(branch=False, salt="eval"))
    part = play(one_call, group_size=4, plan=RolloutPlan(branch=False, salt="eval", roots=(1, 3)))
    assert [rollout.id for rollout in part.rollouts] == ["1", "3"]
    seeds = {read_request_id(r.id): r.seed for r in whole.engine.requests}
    assert {read_request_id(r.id): r.seed for r in part.engine.requests}.items() < seeds.items()


def test_the_plan_overrides_the_configuration(play: Play) -> None:
    plan = RolloutPlan(group_size=3, temperature=0.0, top_p=0.5, top_k=7, salt="eval")
    played = play(one_call, plan=plan, group_size=8)
    assert len(played.rollouts) == 3
    sampling = played.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.5, 7)


@pytest.mark.parametrize(
    ("rule", "own", "expected"),
    [
        (SystemPrompt.AUTO, False, "step"),
        (SystemPrompt.AUTO, True, "own"),
        (SystemPrompt.ALWAYS, True, "step"),
        (SystemPrompt.NEVER, True, "own"),
        (SystemPrompt.NEVER, False, "none"),
    ],
)
def test_the_system_prompt_follows_its_rule(play: Play, rule: SystemPrompt, own: bool, expected: str) -> None:
    brought = (Message(role="system", content="BROUGHT ALONG"),) if own else ()
    task = Task(id="t", prompt=(*brought, Message(role="user", content="hi")))
    text = play(one_call, tasks=[task], system_prompt=rule, group_size=1).rollouts[0].segments[0].text
    assert ("BROUGHT ALONG" in text) == (expected == "own")
    assert ("<python>" in text) == (expected == "step")


def test_an_invented_search_and_its_result_are_cut_told_of_and_the_rollout_goes_on(play: Play) -> None:
    said = ["<search>gold</search> <result>\nmade up\n</result><answer>42</answer>", "<answer>1</answer>"]
    told = Message(role="system", content="Search with <search> </search>; read <result> </result>.")
    task = Task(id="t", prompt=(told, Message(role="user", content="hi")))
    (rollout,) = play(lambda task, path, turn: said[turn], tasks=[task], group_size=1).rollouts
    told_text = " <result>\nThere is no tool search. Tools: python.\n</result>"
    assert [(s.text, s.is_sampled) for s in rollout.segments[1:]] == [
        ("<search>gold</search>", True), (told_text, False), ("<answer>1</answer>", True),
    ]  # fmt: skip
    assert (rollout.valid, rollout.answer) == (True, "1")
    assert [(call.name, call.status) for call in rollout.tool_calls] == [("search", CallStatus.ERROR)]


def test_a_task_restricts_its_tools(play: Play, make_task: Any) -> None:
    tools = {name: (echo_tool(name), ToolConfig()) for name in ("python", "search")}
    played = play(one_call, tasks=[make_task(tools=("search",))], tools=tools, group_size=1)
    assert played.engine.requests[0].sampling.stop == ("</search>", "</answer>", "<result>")
    assert played.rollouts[0].stop is StopReason.END


def test_a_tool_that_a_task_names_and_nobody_configured_stops_the_run(play: Play, make_task: Any) -> None:
    with pytest.raises(ConfigError, match="'browser', which is not configured; configured: python"):
        play(one_call, tasks=[make_task(tools=("browser",))])


def test_a_call_limit_forces_an_end_that_is_not_trained(play: Play, encoder: Encoder) -> None:
    [rollout] = play(lambda *_: CALL, group_size=1, max_tool_calls=2).rollouts
    assert rollout.stop is StopReason.CALL_LIMIT
    assert len(rollout.tool_calls) == 2
    forced = rollout.segments[-1]
    assert (forced.kind, forced.origin, list(forced.token_ids)) == (
        SegmentKind.FORCED,
        Origin.INSERTED,
        [encoder.eos_id],
    )


def test_turns_are_limited(play: Play) -> None:
    [rollout] = play(lambda *_: CALL, group_size=1, max_turns=3).rollouts
    assert rollout.stop is StopReason.TURN_LIMIT
    assert rollout.segments[-1].turn == 2


def test_a_response_never_exceeds_its_limit_results_included(play: Play) -> None:
    for limit in range(1, 60):
        [rollout] = play(lambda *_: CALL, group_size=1, max_response_tokens=limit).rollouts
        assert rollout.stop is StopReason.LENGTH
        assert rollout.n_response_tokens <= limit


def test_a_result_that_does_not_fit_ends_the_rollout_with_its_record_kept(play: Play) -> None:
    tools = {"python": (echo_tool(size=500), ToolConfig())}
    [rollout] = play(one_call, group_size=1, max_response_tokens=300, tools=tools).rollouts
    assert rollout.stop is StopReason.LENGTH
    assert rollout.segments[-1].kind is SegmentKind.TURN
    assert len(rollout.tool_calls) == 1


def test_a_prompt_that_leaves_the_engine_no_room_is_refused_before_anything_runs(play: Play, encoder: Encoder) -> None:
    engine = ScriptedEngine(one_call, encoder, max_tokens=5)
    with pytest.raises(ConfigError, match="the prompt of task 't' has"):
        play(None, engine=engine)
    assert engine.requests == []


def test_at_most_max_concurrent_rollouts_are_under_way(play: Play, make_task: Any) -> None:
    tasks = [make_task(f"t{i}") for i in range(6)]
    played = play(lambda *_: Reply(text=ANSWER, rest_s=0.01), tasks=tasks, group_size=3, max_concurrent=7)
    assert played.engine.most_running <= 7
    assert len(played.rollouts) == 18


def test_a_group_that_can_never_be_admitted_is_refused(play: Play) -> None:
    with pytest.raises(ConfigError, match=r"rollout.group_size: 9 .* rollout.max_concurrent, 4"):
        play(one_call, group_size=9, max_concurrent=4)


def test_every_prefix_is_released_exactly_once(play: Play, make_task: Any) -> None:
    played = play(one_call, tasks=[make_task("a"), make_task("b")], group_size=4)
    assert sorted(played.engine.released) == sorted({r.cache_key for r in played.engine.requests})


def test_a_determined_run_needs_an_engine_that_can(play: Play, encoder: Encoder) -> None:
    with pytest.raises(ConfigError, match="deterministic"):
        engine = ScriptedEngine(one_call, encoder)
        object.__setattr__(engine.info, "capabilities", frozenset())
        play(None, engine=engine, deterministic=True)


class BadStep:
    """A rollout step that breaks the contract in one way."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def system_prompt(self, tools: Any) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        result: StepResult = await self.act(state, ctx)
        return result


async def _generates_twice(state: RolloutState, ctx: StepContext) -> StepResult:
    await ctx.generate()
    await ctx.generate()
    return StepResult(stop=StopReason.END)


async def _returns_none(state: RolloutState, ctx: StepContext) -> None:
    await ctx.generate()


def _gives(**members: Any) -> Any:
    async def act(state: RolloutState, ctx: StepContext) -> StepResult:
        return StepResult(**members)

    return act


async def _claims_a_fault(state: RolloutState, ctx: StepContext) -> StepResult:
    return StepResult(stop=StopReason.FAULT)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (_returns_none, "returned NoneType: return a StepResult"),
        (_claims_a_fault, "stop is StopReason.FAULT: let the InfraError pass instead"),
        (_gives(insert="text"), "insert has 'text': use Markup and Untrusted"),
        (_gives(insert=("text",)), "insert has ('text',): use Markup and Untrusted"),
        (_gives(stop="end"), "stop is 'end': use a StopReason"),
        (_gives(stop=StopReason.END, answer=5), "answer is 5: give a string"),
    ],
)
def test_a_step_that_breaks_the_contract_stops_the_run_and_is_named(play: Play, act: Any, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        play(one_call, step=BadStep(act))
    line = f"core/tests/rollout/test_worker.py:{BadStep.__call__.__code__.co_firstlineno}"
    assert str(caught.value) == f"rollout step {BadStep.__module__}.BadStep: {message} ({line})"


def test_a_step_that_generates_twice_stops_the_run_and_is_named(play: Play) -> None:
    with pytest.raises(PluginError, match=r"BadStep called generate twice in one turn; allowed: once"):
        play(one_call, step=BadStep(_generates_twice))


async def _stops_at_a_text(state: RolloutState, ctx: StepContext) -> StepResult:
    await ctx.generate(stop="</a>")
    return StepResult(stop=StopReason.END)


def test_a_step_that_stops_at_a_text_instead_of_a_list_is_named(play: Play) -> None:
    """Its characters would be taken, and each would end the turn."""
    with pytest.raises(PluginError, match=r"BadStep.* calls generate with stop='</a>': give a list of texts"):
        play(one_call, step=BadStep(_stops_at_a_text))


async def _needs_a_key(state: RolloutState, ctx: StepContext) -> StepResult:
    raise ConfigError("no key")


def test_a_configuration_error_of_a_step_carries_its_name(play: Play) -> None:
    with pytest.raises(ConfigError) as caught:
        play(one_call, step=BadStep(_needs_a_key))
    line = f"core/tests/rollout/test_worker.py:{_needs_a_key.__code__.co_firstlineno + 1}"
    assert str(caught.value) == f"rollout step {BadStep.__module__}.BadStep: no key ({line})"


async def _crashes(state: RolloutState, ctx: StepContext) -> StepResult:
    raise KeyError("lost")


def test_a_step_that_raises_masks_its_rollouts_and_names_the_line(play: Play) -> None:
    played = play(one_call, step=BadStep(_crashes), group_size=1)
    line = f"core/tests/rollout/test_worker.py:{_crashes.__code__.co_firstlineno + 1}"
    (fault,) = [rollout.fault for rollout in played.rollouts]
    said = f"rollout step {BadStep.__module__}.BadStep raised KeyError: 'lost' ({line})"
    assert (fault.where, fault.message) == ("plugin:step", said)


async def _is_refused(state: RolloutState, ctx: StepContext) -> StepResult:
    raise ConnectionRefusedError(111, "Connection refused")


def test_a_step_whose_service_is_gone_is_no_defect(play: Play) -> None:
    (rollout,) = play(one_call, step=BadStep(_is_refused), group_size=1).rollouts
    assert rollout.fault is not None and rollout.fault.where == "step"


def test_metrics_tell_what_was_played(play: Play, make_task: Any) -> None:
    metrics = play(one_call, tasks=[make_task("a"), make_task("b")], group_size=2).metrics
    assert metrics["rollout/rollouts"] == 4
    assert metrics["rollout/tool_calls_mean"] == 1
    assert metrics["rollout/turns_mean"] == 2
    assert metrics["rollout/stop/answer"] == 1
    assert metrics["rollout/stop/fault"] == metrics["rollout/retokenization_drift"] == 0
    assert metrics["rollout/logical_tool_calls"] == metrics["tool/python/calls"] == 4


def test_sampled_ids_that_their_text_would_not_give_are_kept_and_counted(play: Play, encoder: Encoder) -> None:
    class Drifting(ScriptedEngine):
        def _completion(self, request: Any, reply: Any) -> Any:
            done = super()._completion(request, reply)
            done.token_ids[:] = encoder.untrusted("<answer>") + encoder.markup("2</answer>")
            for values in (done.logprobs, done.entropies, done.policy_versions):
                values[:] = values[:1] * len(done.token_ids)
            return done

    played = play(None, engine=Drifting(lambda *_: ANSWER, encoder), group_size=6)
    assert played.metrics["rollout/retokenization_drift"] == 2  # every fourth rollout is looked at: 0 and 4
    kept = encoder.untrusted("<answer>") + encoder.markup("2</answer>")
    assert all(list(r.segments[1].token_ids) == list(kept) for r in played.rollouts)


def test_the_loop_itself_costs_little(play: Play, make_task: Any) -> None:
    tasks = [make_task(f"t{i}") for i in range(16)]
    started = time.process_time()
    play(one_call, tasks=tasks, group_size=8)
    assert (time.process_time() - started) / 128 < 0.02  # a guard against accidents; `bench/` measures


def test_groups_enter_in_order_and_a_large_one_is_not_overtaken() -> None:
    async def main() -> list[str]:
        admission, entered = Admission(4), []

        async def group(name: str, n: int) -> None:
            await admission.enter(n)
            entered.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name, n in (("first", 3), ("large", 4), ("small", 1)):
                tasks.create_task(group(name, n))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert entered == ["first"]
            admission.leave(3)
            await asyncio.sleep(0)
            assert entered == ["first", "large"]
            admission.leave(4)
        return entered

    assert asyncio.run(main()) == ["first", "large", "small"]


def test_a_group_that_stops_waiting_holds_up_nobody() -> None:
    async def main() -> int:
        admission = Admission(2)
        await admission.enter(2)
        gone = asyncio.create_task(admission.enter(2))
        waits = asyncio.create_task(admission.enter(1))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        admission.leave(2)
        await waits
        return admission.free

    assert asyncio.run(main()) == 1


def test_a_group_cancelled_in_the_moment_of_its_admission_gives_its_places_back() -> None:
    async def main() -> int:
        admission = Admission(2)
        await admission.enter(2)
        waits = asyncio.create_task(admission.enter(2))
        await asyncio.sleep(0)
        admission.leave(2)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        return admission.free

    assert asyncio.run(main()) == 2
