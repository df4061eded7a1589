"""Tasks that describe their own tools: rows become tasks, the template shows the tools, and the row answers calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ramet.components.prompts import task_prompts
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.schema import Config, RolloutConfig, RolloutStepConfig, SystemPrompt, ToolConfig
from ramet.data.layout import Columns
from ramet.data.rows import BadRow, make_task
from ramet.data.tasks import fingerprint
from ramet.errors import ConfigError
from ramet.io.json_rows import DataRow
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import FromRowConfig, HermesConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.record import GroupRecord, record_line, record_of
from ramet.rollout.scoring import ScoredGroup
from ramet.rollout.stateful import ENVIRONMENT
from ramet.rollout.steps.hermes import Hermes
from ramet.rollout.tools.from_row import FromRow
from ramet.rollout.worker import RolloutWorker
from ramet.sft.conversations import read_row
from ramet.sft.encode import TraceEncoder
from ramet.testing.chat_templates import chat_encoder
from ramet.testing.doubles import ScriptedEngine, echo_tool
from ramet.types import CallStatus, Rollout, Task, user_prompt
from ramet.types.task import FROM_ROW

WEATHER = {
    "name": "weather",
    "description": "Weather of a city.",
    "parameters": {"type": "dict", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ROW = {"prompt": "Oslo?", "answer": [{"weather": {"city": ["Oslo"]}}], "tools": [WEATHER]}
ENCODER = chat_encoder("qwen2.5")


def task_of(**changes: Any) -> Task:
    return make_task(DataRow(number=1, values={**ROW, **changes}), "f", "f", Columns())


def written(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def played(task: Task, *turns: str, with_mock: bool = True) -> Rollout:
    async def play() -> Rollout:
        tools: dict[str, Any] = {"echo": (echo_tool("echo"), ToolConfig())}
        if with_mock:
            tools[FROM_ROW] = (FromRow(FromRowConfig()), ToolConfig())
        worker = RolloutWorker(
            engine=ScriptedEngine(lambda task, path, turn: turns[turn], ENCODER),
            encoder=ENCODER,
            step=Hermes(HermesConfig()),
            branch_policy=NoBranching(),
            tools=tools,
            config=RolloutConfig(),
            system_prompt=SystemPrompt.AUTO,
            seed=1,
            deterministic=False,
            tools_in_template=True,
        )
        (group,) = await worker.run(RolloutRequest(tasks=[task], step=0, plan=RolloutPlan(group_size=1)))
        await worker.close()
        return group.rollouts[0]

    return asyncio.run(play())


@pytest.mark.parametrize(
    "tools",
    [[WEATHER], json.dumps([WEATHER]), [json.dumps(WEATHER)], WEATHER, [{"type": "function", "function": WEATHER}]],
)
def test_a_row_brings_its_tools_and_its_gold_calls(tools: Any) -> None:
    task = task_of(tools=tools)
    assert task.tools is None and task.schemas is not None
    assert [schema.function["function"] for schema in task.schemas] == [WEATHER]
    assert [json.loads(answer) for answer in task.answer] == [ROW["answer"]]


def test_a_row_that_names_tools_is_as_it_was() -> None:
    plain = Task(id="f/0", prompt=user_prompt("q"), answer=("a",), data_source="f", tools=("echo",))
    assert task_of(prompt="q", answer="a", tools=["echo"]) == plain
    before_tasks_had_schemas = "942744b311c1f4e294a2496fc89d3dd5a1625781e45aa681f72e9666e01976a2"
    assert fingerprint([plain]) == before_tasks_had_schemas


def test_a_schema_that_cannot_be_read_is_a_bad_row() -> None:
    with pytest.raises(BadRow, match=r"column tools: tools\[0\]: expected a schema with a name"):
        task_of(tools=[{"description": "x"}])


def test_the_prompt_shows_the_rows_tools_and_no_configured_one() -> None:
    rollout = played(task_of(), "No idea.")
    shown = rollout.segments[0].text
    assert '"name": "weather"' in shown and '"name": "echo"' not in shown and FROM_ROW not in shown
    shown = played(Task(id="t", prompt=user_prompt("q")), "No idea.").segments[0].text
    assert '"name": "echo"' in shown and FROM_ROW not in shown


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (None, "ok"),
        ({"weather": "cold"}, "cold"),
        ([{"name": "weather", "arguments": {"city": "Oslo"}, "result": {"degrees": 2}}], '{"degrees": 2}'),
        ([{"name": "weather", "arguments": {"city": "Rome"}, "result": "warm"}], "ok"),
        (json.dumps({"weather": "cold"}), "cold"),
        ({"weather": None}, "ok"),
        ([{"name": "weather", "arguments": '{"city": "Oslo", "day": null}', "result": "cold"}], "cold"),
        ([{"name": "weather", "arguments": "Oslo", "result": "cold"}], "ok"),
    ],
)
def test_the_row_answers_a_call(results: Any, said: str) -> None:
    rollout = played(task_of(tool_results=results), written("weather", city="Oslo"), "Cold.")
    (call,) = rollout.tool_calls
    assert rollout.valid and rollout.answer == "Cold."
    assert (call.name, call.arguments, call.status, call.text) == ("weather", {"city": "Oslo"}, CallStatus.OK, said)


def test_a_null_within_the_arguments_of_a_result_counts_as_not_given() -> None:
    results = [{"name": "weather", "arguments": {"at": {"city": "Oslo", "day": None}}, "result": "cold"}]
    task = task_of(tools=[{"name": "weather", "parameters": {"at": {"type": "dict"}}}], tool_results=results)
    assert played(task, written("weather", at={"city": "Oslo"}), "Cold.").tool_calls[0].text == "cold"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (written("weather"), "weather: city is missing"),
        (written("weather", city=3), "weather: city must be of type string, got 3"),
        (written("echo", text="x"), "There is no tool echo. Tools: weather."),
    ],
)
def test_a_wrong_call_is_the_models_mistake(call: str, said: str) -> None:
    (record,) = played(task_of(), call, "Sorry.").tool_calls
    assert (record.status, record.text) == (CallStatus.ERROR, said)


@pytest.mark.parametrize(
    "parameters",
    [
        {"city": {"type": "str", "default": "Oslo"}},  # xLAM's
        {"properties": ["city"], "required": "city"},
        {"properties": {"city": "text"}, "required": True},
        {"properties": {"city": {"type": ["string", {}], "enum": "Oslo"}}},
        {"type": "object", "properties": None, "required": [1, None]},
    ],
)
def test_parameters_that_are_not_a_json_schema_allow_any_arguments(parameters: Any) -> None:
    task = task_of(tools=json.dumps([{"name": "weather", "parameters": parameters}]))
    (record,) = played(task, written("weather", city="Oslo"), "Cold.").tool_calls
    assert (record.status, record.text) == (CallStatus.OK, "ok")


def test_a_tool_of_the_row_is_the_rows_though_one_of_its_name_is_installed() -> None:
    for name in ("echo", ENVIRONMENT, FROM_ROW):
        task = task_of(tools=[{**WEATHER, "name": name}], answer="[]", tool_results={name: "of the row"})
        (record,) = played(task, written(name, city="Oslo"), "Cold.").tool_calls
        assert (record.name, record.text) == (name, "of the row")


def test_a_record_gives_back_the_tools_of_a_row() -> None:
    for task in (task_of(), task_of(tools="[]"), Task(id="t", prompt=user_prompt("q"))):
        group = ScoredGroup(task=task, rollouts=())
        line = record_line(GroupRecord(step=1, group=group))
        assert record_of(json.loads(line), "here").group.task == task
        assert (b'"schemas"' in line) == (task.schemas is not None)


def test_sft_trains_on_the_prompt_that_a_rollout_of_the_row_begins_with() -> None:
    turns = [{"role": "user", "content": "Oslo?"}, {"role": "assistant", "content": "Cold."}]
    found, _ = read_row({"messages": turns, "tools": [WEATHER]}, "f.jsonl", 1)
    assert found is not None
    step = Hermes(HermesConfig())
    names = ToolNames(schemas={FROM_ROW: FromRow.schema, "echo": echo_tool("echo").schema})
    prompt = task_prompts(step, Config(rollout_step=RolloutStepConfig(name="hermes")), names)
    (example,) = TraceEncoder(ENCODER, step, tools=(), prompt=prompt).examples(found)
    rollout = played(task_of(), "Cold.")
    assert list(example.token_ids) == [token for segment in rollout.segments for token in segment.token_ids]


def test_a_question_of_bfcl_is_its_one_turn_and_lists_of_calls_are_several_answers() -> None:
    asked = [[{"role": "user", "content": "Oslo?"}]]
    task = task_of(prompt=asked, answer=[[{"weather": {"city": ["Oslo"], "day": None}}], []])
    assert task.prompt == user_prompt("Oslo?")
    assert [json.loads(answer) for answer in task.answer] == [[{"weather": {"city": ["Oslo"]}}], []]


def test_rows_with_tools_and_nothing_that_answers_are_refused() -> None:
    with pytest.raises(ConfigError, match="may use 'from_row', which is not configured"):
        played(task_of(), "x", with_mock=False)
    (problem,) = ToolNames().unanswered([task_of(tools="[]"), task_of()])
    assert "task 'f/0' is the first" in problem and "tools=[from_row]" in problem
    assert ToolNames(schemas={FROM_ROW: FromRow.schema}).unanswered([task_of()]) == []


def test_a_column_of_results_that_no_row_has_and_another_name_of_the_tool_are_refused() -> None:
    def names(name: str, **params: str) -> ToolNames:
        return tool_names(Config(tools={name: ToolConfig(use=FROM_ROW, params=FromRowConfig(**params))}))

    assert names(FROM_ROW).unanswered([task_of()]) == []
    assert names(FROM_ROW, results="said").unanswered([task_of(), task_of(said={"weather": "cold"})]) == []
    (problem,) = names(FROM_ROW, results="siad").unanswered([task_of(said={"weather": "cold"})])
    assert problem == "tools.from_row.params.results=siad: no row that describes tools has this column"
    with pytest.raises(ConfigError, match=r"tools\.mock\.use=from_row: .* write tools=\[from_row\]"):
        names("mock")


def test_calls_that_no_tool_was_given_are_counted_for_rewards() -> None:
    sound, malformed = written("weather", city="Oslo"), "<tool_call>\n{\n</tool_call>"
    assert played(task_of(), f"{sound}\n{malformed}", "Cold.").infos == ({"calls_not_made": 1}, {})
    assert played(task_of(), sound, "Cold.").infos == ({}, {})
