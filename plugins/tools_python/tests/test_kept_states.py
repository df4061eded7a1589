"""Variables that are kept between the calls of a rollout."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ramet import ConfigError, InfraError, ToolCall
from ramet.testing.tool import check_tool
from ramet_tools_python import KeepingPythonTool, PythonConfig, PythonTool

LEVELS = ("0", "auto")  # with and without questions about forks


def play(steps: Callable[[KeepingPythonTool], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with KeepingPythonTool(PythonConfig(state="rollout", preload=[], **options)) as tool:
            return await steps(tool)

    return asyncio.run(run())


@pytest.mark.parametrize("isolation", LEVELS)
def test_variables_functions_and_imports_are_there_in_the_next_call(isolation: str) -> None:
    async def steps(tool: KeepingPythonTool) -> list[str]:
        state = await tool.open()
        programs = ["import math\ndef half(x): return x / 2\nn = 10", "n += 1\nhalf(n)", "math.floor(half(n)), n"]
        return [(await tool.run(program, state)).text for program in programs]

    assert play(steps, isolation=isolation) == ["(no output)", "5.5", "(5, 11)"]


@pytest.mark.parametrize("isolation", LEVELS)
def test_a_fork_begins_with_its_parents_variables_and_neither_sees_the_other(isolation: str) -> None:
    async def steps(tool: KeepingPythonTool) -> list[str]:
        parent = await tool.open()
        await tool.run("seen = ['root']", parent)
        first, second = await tool.fork(parent), await tool.fork(parent)
        await asyncio.gather(
            *(tool.run(f"seen.append({name!r})", of) for name, of in (("p", parent), ("1", first), ("2", second)))
        )
        grandchild = await tool.fork(first)
        await tool.close(first)
        await tool.run("seen.append('later')", parent)
        return [(await tool.run("seen", of)).text for of in (parent, second, grandchild)]

    assert play(steps, isolation=isolation, slots=2) == [
        "['root', 'p', 'later']", "['root', '2']", "['root', '1']"
    ]  # fmt: skip


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("n = 2\nprint('so far')\nwhile True: pass", "so far\n[stopped: the time limit was reached]"),
        ("n = 2\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "[the program was killed]"),
        ("n = 2\nimport os\nos._exit(9)", "[the program ended with exit code 9]"),
        ("n = 2\nimport ctypes\nctypes.string_at(0)", "[the program crashed]"),
        ("n = 2\nimport os\n_ = os.closerange(3, 64)", "[the program was killed]"),
    ],
    ids=["time", "kill", "exit", "crash", "closes our socket"],
)
def test_a_program_that_dies_leaves_the_variables_as_they_were(isolation: str, program: str, told: str) -> None:
    async def steps(tool: KeepingPythonTool) -> list[str]:
        state = await tool.open()
        return [(await tool.run(code, state)).text for code in ("n = 1", program, "n")]

    kept = "[the variables are as they were before this program]"
    assert play(steps, isolation=isolation, timeout_s=0.5) == ["(no output)", f"{told}\n{kept}", "1"]


def test_an_error_and_an_exit_keep_what_was_set_before_them() -> None:
    async def steps(tool: KeepingPythonTool) -> list[str]:
        state = await tool.open()
        programs = ["n = 1\n1 / 0", "n += 1\nimport sys; sys.exit(3)", "n"]
        return [(await tool.run(code, state)).text.splitlines()[-1] for code in programs]

    error, ended, n = play(steps)
    assert (error, n) == ("ZeroDivisionError: division by zero", "2") and ended.endswith("exit code 3]")


def test_errors_in_functions_of_earlier_programs_show_their_lines() -> None:
    async def steps(tool: KeepingPythonTool) -> str:
        state = await tool.open()
        await tool.run("def f(x):\n    return 1 / x", state)
        return (await tool.run("f(0)", state)).text

    text = play(steps)
    assert 'File "<python 2>", line 1, in <module>\n    f(0)' in text
    assert 'File "<python>", line 2, in f\n    return 1 / x' in text


def test_a_program_cannot_fork_by_itself_although_it_is_copied_by_a_fork() -> None:
    async def steps(tool: KeepingPythonTool) -> list[str]:
        if (await tool.isolation()).level < 1:
            pytest.skip("this host does not allow level 1")
        state = await tool.open()
        forks = "import os\ntry: os.fork()\nexcept PermissionError: print('no')"
        signals = "import os\ntry: os.kill(os.getppid(), 0)\nexcept PermissionError: print('no')"
        return [(await tool.run(code, state)).text for code in (forks, forks, signals)]

    assert play(steps) == ["no", "no", "no"]


FORKS_WHEN_COPIED = """
import os, time
copied = []
def linger():
    copied.append(1)
    if len(copied) == 1 and os.fork() == 0:
        os.setsid()
        os.closerange(3, 64)
        while True: open("stray", "w").close(); time.sleep(0.005)
os.register_at_fork(after_in_child=linger)
"""


@pytest.mark.parametrize("isolation", ["2", "auto"])
@pytest.mark.parametrize("copies", ["by a call", "by a fork"])
def test_what_a_process_forks_while_it_is_copied_does_not_survive(bench: Any, isolation: str, copies: str) -> None:
    async def steps(tool: KeepingPythonTool) -> tuple[str, int]:
        if (await tool.isolation()).level < 2:
            pytest.skip("this host does not allow level 2")
        zygote = (await tool._pool.get().slots.zygote()).process.pid
        hostile, other = await tool.open(), await tool.open()
        await tool.run("n = 1", other)
        await tool.run(FORKS_WHEN_COPIED, hostile)
        await asyncio.sleep(0.3)  # for the process of the next program
        before = len(bench.descendants(zygote))
        if copies == "by a call":
            await tool.run("pass", hostile)
        else:
            await tool.close(await tool.fork(hostile))
        seen = (await tool.run("import os, time\ntime.sleep(0.1)\nos.listdir()", other)).text
        await asyncio.sleep(0.3)
        return seen, len(bench.descendants(zygote)) - before

    seen, more = play(steps, isolation=isolation, slots=1)
    assert seen == "[]" and more <= 0


@pytest.mark.parametrize(
    "ends",
    ["", "while True: os.write(3, bytes(1 << 20))", "while True: os.write(3, b' '); time.sleep(0.2)"],
    ids=["waits", "floods", "drips"],
)
def test_a_program_that_writes_to_its_slot_is_killed_and_costs_no_other_state(ends: str) -> None:
    forged = f"import os, struct, time\nos.write(3, struct.pack('!I', 3 << 30))\n{ends}\ntime.sleep(60)"

    async def steps(tool: KeepingPythonTool) -> list[str]:
        state, other = await tool.open(), await tool.open()
        await tool.run("n = 1", other)
        return [str((await tool.run(forged, state)).status), (await tool.run("n", other)).text]

    assert play(steps, slots=1, timeout_s=0.5) == ["killed", "1"]


def test_a_fork_whose_caller_is_cancelled_leaves_no_process(bench: Any) -> None:
    async def steps(tool: KeepingPythonTool) -> int:
        pool = tool._pool.get()
        zygote = (await pool.slots.zygote()).process.pid
        state = await tool.open()
        await tool.run("n = 1", state)
        await asyncio.sleep(0.3)  # for the process of the next program
        before = len(bench.descendants(zygote))
        running = asyncio.create_task(tool.run("import time; time.sleep(0.3)", state))
        await asyncio.sleep(0.1)
        fork = asyncio.create_task(tool.fork(state))
        await asyncio.sleep(0.05)
        fork.cancel()
        await asyncio.gather(running, fork, return_exceptions=True)
        await tool.run("n", state)
        while pool._running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert [host.states for host in pool._hosts] == [1]
        return len(bench.descendants(zygote)) - before

    assert play(steps, slots=1) == 0


def test_a_state_is_dropped_however_many_calls_wait_for_its_slot(bench: Any) -> None:
    async def steps(tool: KeepingPythonTool) -> int:
        pool = tool._pool.get()
        zygote = (await pool.slots.zygote()).process.pid
        state, other = await tool.open(), await tool.open()
        await tool.run("n = 1", other)
        await asyncio.sleep(0.3)
        before = len(bench.descendants(zygote))
        await tool.run("n = 1", state)
        running = asyncio.create_task(tool.run("import time; time.sleep(0.5)", other))
        await asyncio.sleep(0.1)
        await tool.close(state)
        await running
        await asyncio.sleep(0.3)
        return len(bench.descendants(zygote)) - before

    assert play(steps, slots=1, queue_timeout_s=0.2) == 0


def test_files_and_threads_are_not_kept() -> None:
    async def steps(tool: KeepingPythonTool) -> list[str]:
        state = await tool.open()
        starts = (
            "import threading, time, os\nopen('f', 'w').close()\nticks = []\n"
            "def tick():\n    while True: ticks.append(0); time.sleep(0.01)\n"
            "threading.Thread(target=tick, daemon=True).start()\nos.listdir()"
        )
        looks = "n = len(ticks); time.sleep(0.1); len(ticks) - n, os.listdir()"
        return [(await tool.run(code, state)).text for code in (starts, looks)]

    assert play(steps) == ["['f']", "(0, [])"]


@pytest.mark.parametrize("isolation", LEVELS)
def test_a_folder_that_a_state_holds_on_to_shows_no_files_of_others(isolation: str) -> None:
    async def steps(tool: KeepingPythonTool) -> list[str]:
        state, other = await tool.open(), await tool.open()
        await tool.run("import os\nheld = os.open('.', os.O_RDONLY)\nnumber = tuple(os.fstat(held))[1:3]", state)
        fork = await tool.fork(state)
        looks = (
            "open('answer_is_391', 'w').close()\nimport os\n"
            "print(tuple(os.stat('.'))[1:3], os.listdir(held) if 'held' in globals() else [])"
        )
        others = [(await tool.run(looks, of)).text for of in (other, fork)]
        mine = (await tool.run("print(number, os.listdir(held))", state)).text
        return [mine, *others]

    mine, *others = play(steps, isolation=isolation, slots=1)
    assert mine not in others and all(one.endswith("[]") for one in (mine, *others))


def test_closed_states_leave_no_process(bench: Any) -> None:
    async def steps(tool: KeepingPythonTool) -> list[int]:
        pool = tool._pool.get()
        zygote = (await pool.slots.zygote()).process.pid
        sizes = []
        for _ in range(2):
            states = [await tool.open() for _ in range(2)]
            for state in list(states):
                await tool.run("n = 1", state)
                states.append(await tool.fork(state))
            sizes.append(len(bench.descendants(zygote)))
            for state in states:
                await tool.close(state)
            await asyncio.sleep(0.3)  # for the process of the next program
            sizes.append(len(bench.descendants(zygote)))
        return sizes

    full, empty, full_again, empty_again = play(steps, slots=1)
    assert full_again == full and empty_again == empty and empty <= full - 4 + 1


def test_lost_states_are_an_infrastructure_failure_and_new_ones_work() -> None:
    async def steps(tool: KeepingPythonTool) -> str:
        state = await tool.open()
        await tool.run("n = 1", state)
        zygote = (await tool._pool.get().slots.zygote()).process
        os.kill(zygote.pid, signal.SIGKILL)
        zygote.wait()
        with pytest.raises(InfraError):
            await tool.run("n", state)
        with pytest.raises(InfraError):
            await tool.fork(state)
        await tool.close(state)
        fresh = await tool.open()
        return (await tool.run("'n' in globals()", fresh)).text

    assert play(steps, slots=1) == "False"


def test_a_cancelled_caller_does_not_disturb_other_states_of_its_slot() -> None:
    async def steps(tool: KeepingPythonTool) -> str:
        state, other = await tool.open(), await tool.open()
        await tool.run("n = 1", other)
        call = asyncio.create_task(tool.run("import time; time.sleep(0.5)", state))
        await asyncio.sleep(0.2)
        call.cancel()
        return (await tool.run("n", other)).text

    assert play(steps, slots=1) == "1"


def test_it_keeps_the_contract_of_tools_with_states() -> None:
    tool = KeepingPythonTool(PythonConfig(state="rollout", preload=[]))
    check_tool(tool, name="python", examples=[{"code": "n = globals().get('n', 0) + 1\nn"}, {"code": "1/0"}])


def test_a_call_outside_a_rollout_has_variables_of_its_own() -> None:
    async def steps(tool: KeepingPythonTool) -> list[str]:
        calls = ["n = 1\nn", "'n' in globals()"]
        return [(await tool(ToolCall(name="python", arguments={"code": code}))).text for code in calls]

    assert play(steps) == ["1", "False"]


def test_a_closed_state_is_not_run_or_forked() -> None:
    async def steps(tool: KeepingPythonTool) -> None:
        state = await tool.open()
        for _ in range(2):
            await tool.close(state)
        for use in (tool.run("1", state), tool.fork(state)):
            with pytest.raises(RuntimeError) as caught:
                await use
            message = "this state is closed: nothing can be run in it or forked from it; open another"
            assert str(caught.value) == message

    play(steps)


def test_options_of_the_other_tool_are_refused() -> None:
    for tool, state, said in (
        (PythonTool, "rollout", "allowed for PythonTool: call; KeepingPythonTool is the class for rollout"),
        (KeepingPythonTool, "call", "allowed for KeepingPythonTool: rollout; PythonTool is the class for call"),
    ):
        with pytest.raises(ConfigError) as caught:
            tool(PythonConfig(state=state))
        assert str(caught.value) == f"tools.python.params.state is {state!r}; {said}"
