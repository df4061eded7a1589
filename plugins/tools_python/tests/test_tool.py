"""The tool as the core sees it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import pickle
import time
from typing import Any

import pytest

from ramet import ConfigError, InfraError, ToolCall, ToolError
from ramet.testing.tool import check_tool
from ramet_tools_python.config import PythonConfig
from ramet_tools_python.tool import PythonTool, python_tool


def test_the_tool_keeps_the_contract() -> None:
    check_tool(PythonTool(PythonConfig()), name="python", examples=[{"code": "1+1"}, {"code": "1/0"}])


def test_another_system_than_linux_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet_tools_python.zygote.SYSTEM", "darwin")
    tool = PythonTool(PythonConfig())
    with pytest.raises(ConfigError, match="'darwin'; use WSL2 or a Linux container"):
        asyncio.run(tool.run("1+1"))


def test_its_one_parameter_takes_the_raw_text_of_a_tag() -> None:
    assert PythonTool.schema.text_parameter == "code"
    assert not PythonTool.schema.deterministic


@pytest.mark.parametrize("arguments", [{}, {"code": None}, {"code": 7}, {"code": "1", "more": 2}])
def test_wrong_arguments_are_the_models_mistake(bench: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="code"):
        bench.session(lambda tool: tool(ToolCall(name="python", arguments=arguments)))


def test_a_tool_made_before_the_loop_serves_one_loop_after_the_other() -> None:
    tool = PythonTool(PythonConfig(slots=1))

    async def once(code: str) -> str:
        return (await tool(ToolCall(name="python", arguments={"code": code}))).text

    async def last() -> str:
        text = await once("3")
        await tool.aclose()
        return text

    assert [asyncio.run(once("1")), asyncio.run(once("2")), asyncio.run(last())] == ["1", "2", "3"]


def test_a_running_tool_pickles_without_its_processes(bench: Any) -> None:
    async def steps(tool: PythonTool) -> tuple[str, PythonConfig]:
        await bench.call(tool, "1")
        copy = pickle.loads(pickle.dumps(tool))
        text = (await bench.call(copy, "2")).text
        await copy.aclose()
        return text, copy.config

    assert bench.session(steps, slots=1, memory_mb=300) == (
        "2",
        PythonConfig(slots=1, memory_mb=300, preload=[]),
    )


def test_slots_run_programs_at_the_same_time(bench: Any) -> None:
    async def steps(tool: PythonTool) -> float:
        await asyncio.gather(*(bench.call(tool, "1") for _ in range(4)))
        started = time.monotonic()
        await asyncio.gather(*(bench.call(tool, "import time; time.sleep(1)") for _ in range(4)))
        return time.monotonic() - started

    assert bench.session(steps, slots=4) < 2.5


def test_many_calls_share_few_slots_and_each_gets_its_own_answer(bench: Any) -> None:
    async def steps(tool: PythonTool) -> list[str]:
        results = await asyncio.gather(*(bench.call(tool, f"{i} * {i}") for i in range(40)))
        return [result.text for result in results]

    assert bench.session(steps, slots=2) == [str(i * i) for i in range(40)]


def test_a_call_that_waits_too_long_for_a_slot_is_our_failure(bench: Any) -> None:
    async def steps(tool: PythonTool) -> list[Any]:
        programs = ["import time; time.sleep(1)", "1"]
        return list(await asyncio.gather(*(bench.call(tool, p) for p in programs), return_exceptions=True))

    slow, refused = bench.session(steps, slots=1, queue_timeout_s=0.2)
    assert not slow.error
    assert isinstance(refused, InfraError) and "queue_timeout" in str(refused)


def test_preloaded_modules_are_there_without_an_import_of_their_own(bench: Any) -> None:
    program = "import sys; print('fractions' in sys.modules, 'fractions' in globals())"
    assert bench.text(program, preload=["fractions"]) == "True False"


def test_all_wrong_options_are_reported_together() -> None:
    config = PythonConfig(
        slots=0,
        isolation="9",
        require=["magic"],
        state="?",
        preload=["no_such_module"],
        python="/no/such/python",
        scratch="/no/such/folder",
    )
    with pytest.raises(ConfigError) as caught:
        python_tool(config)
    assert str(caught.value).splitlines() == [
        "tools.python.params.slots is 0; allowed: more than 0",
        "tools.python.params.state is '?'; allowed: call, rollout",
        "tools.python.params.isolation is '9'; allowed: auto, 0, 1, 2, 3",
        "tools.python.params.require names 'magic'; allowed: network_off, no_processes, file_write, file_read",
        "tools.python.params.python is '/no/such/python'; allowed: an executable file",
        "tools.python.params.scratch is '/no/such/folder'; allowed: a folder that can be written",
    ]
    with pytest.raises(ConfigError, match="preload names 'no_such_module'"):
        PythonTool(PythonConfig(preload=["no_such_module"]))


NUMBERS = [field.name for field in dataclasses.fields(PythonConfig) if type(field.default) in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(("value", "allowed"), [(math.nan, "more than 0"), (math.inf, "a finite number")])
def test_numbers_are_finite(name: str, value: float, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        python_tool(dataclasses.replace(PythonConfig(), **{name: value}))
    first = str(caught.value).splitlines()[0]
    at_least = "at least max_stdout_kb + max_stderr_kb = 80"
    assert first == f"tools.python.params.{name} is {value}; allowed: {at_least if 'output' in name else allowed}"


def test_the_result_says_how_the_program_ended(bench: Any) -> None:
    metadata = bench.results("1/0", isolation="0")[0].metadata
    assert (metadata["status"], metadata["rc"], metadata["level"]) == ("error", 1, 0)
    assert metadata["wall_ms"] > 0 and metadata["cpu_ms"] > 0
