"""Whatever dies is replaced, and nothing outlives its client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet import InfraError
from ramet_tools_python import slots as slots_module
from ramet_tools_python.tool import PythonTool


def _zygote(tool: PythonTool) -> int:
    zygote = tool._pool.get().slots._zygote
    assert zygote is not None
    return zygote.process.pid


def test_the_next_call_works_when_the_zygote_was_killed(bench: Any, tmp_path: Path) -> None:
    async def steps(tool: PythonTool) -> list[Any]:
        first = await bench.call(tool, "1")
        killed = _zygote(tool)
        os.kill(killed, signal.SIGKILL)
        bench.eventually(lambda: not bench.exists(killed))
        second = await bench.call(tool, "2")
        return [first.text, second.text, killed != _zygote(tool)]

    assert bench.session(steps, slots=1, scratch=str(tmp_path)) == ["1", "2", True]
    assert bench.eventually(lambda: list(tmp_path.iterdir()) == [])


def test_the_next_calls_work_when_all_slots_were_killed(bench: Any) -> None:
    async def steps(tool: PythonTool) -> list[str]:
        await asyncio.gather(*(bench.call(tool, "1") for _ in range(4)))
        killed = bench.descendants(_zygote(tool))
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):  # it ended with the first process of its namespace
                os.kill(pid, signal.SIGKILL)
        bench.eventually(lambda: not any(map(bench.exists, killed)))
        return [result.text for result in await asyncio.gather(*(bench.call(tool, "2") for _ in range(4)))]

    assert bench.session(steps, slots=4) == ["2"] * 4


def test_a_call_whose_zygote_dies_is_tried_again(bench: Any) -> None:
    async def steps(tool: PythonTool) -> str:
        await bench.call(tool, "1")
        call = asyncio.create_task(bench.call(tool, "import time; time.sleep(1); print('done')"))
        await asyncio.sleep(0.3)
        slot = min(bench.descendants(_zygote(tool)))
        for pid in (slot, _zygote(tool)):
            os.kill(pid, signal.SIGKILL)
        return str((await call).text)

    assert bench.session(steps, slots=1) == "done"


def test_a_program_that_kills_its_slot_is_an_infrastructure_error_and_harms_no_later_call(bench: Any) -> None:
    async def steps(tool: PythonTool) -> str:
        with pytest.raises(InfraError, match="failed 2 times"):
            await bench.call(tool, "import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(9)")
        return str((await bench.call(tool, "'alive'")).text)

    assert bench.session(steps, slots=2, isolation="0") == "alive"


def test_a_slot_that_hangs_is_replaced_after_the_second_deadline(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "GRACE_S", 0.3)
    seen: list[int] = []

    async def steps(tool: PythonTool) -> str:
        await bench.call(tool, "1")
        seen.append(_zygote(tool))
        with pytest.raises(InfraError, match="did not answer"):
            await bench.call(tool, "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(9)")
        return str((await bench.call(tool, "'alive'")).text)

    assert bench.session(steps, slots=1, timeout_s=0.3, isolation="0") == "alive"
    assert not bench.exists(seen[0])


def test_a_cancelled_call_ends_its_program_and_frees_its_place(bench: Any) -> None:
    async def steps(tool: PythonTool) -> tuple[str, bool]:
        await bench.call(tool, "1")
        call = asyncio.create_task(bench.call(tool, "import time; time.sleep(30)"))
        await asyncio.sleep(0.3)
        before = bench.descendants(_zygote(tool))
        call.cancel()
        text = (await bench.call(tool, "2")).text
        gone = await asyncio.to_thread(bench.eventually, lambda: not any(map(bench.exists, before)))
        return text, gone

    assert bench.session(steps, slots=1, timeout_s=30.0) == ("2", True)


def test_closing_leaves_no_process_and_no_folder(bench: Any, tmp_path: Path) -> None:
    seen: list[int] = []

    async def steps(tool: PythonTool) -> None:
        await asyncio.gather(*(bench.call(tool, "1") for _ in range(3)))
        seen.extend([_zygote(tool), *bench.descendants(_zygote(tool))])

    bench.session(steps, slots=3, scratch=str(tmp_path))
    assert len(seen) >= 2 and not any(map(bench.exists, seen))
    assert list(tmp_path.iterdir()) == []


def test_a_tool_serves_again_after_it_was_closed(bench: Any) -> None:
    async def steps(tool: PythonTool) -> str:
        await bench.call(tool, "1")
        await tool.aclose()
        return str((await bench.call(tool, "2")).text)

    assert bench.session(steps) == "2"


CLIENT = """
import asyncio, sys
from ramet import ToolCall
from ramet_tools_python.config import PythonConfig
from ramet_tools_python.tool import PythonTool

async def main():
    tool = PythonTool(PythonConfig(timeout_s=60, slots=2, scratch=sys.argv[1], isolation="0"))
    call = lambda code: tool(ToolCall(name="python", arguments={"code": code}))
    await call("1")
    print(tool._pool.get().slots._zygote.process.pid, flush=True)
    await call("import subprocess; subprocess.run(['sleep', '300'], start_new_session=True)")

asyncio.run(main())
"""


def test_a_killed_client_takes_everything_with_it(bench: Any, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CLIENT, str(tmp_path)], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        zygote = int(client.stdout.readline())
        assert bench.eventually(lambda: len(bench.descendants(zygote)) >= 4)  # two slots, the program, sleep
        processes = {zygote, *bench.descendants(zygote)}
        client.kill()
    assert bench.eventually(lambda: not any(map(bench.exists, processes)))
    assert bench.eventually(lambda: list(tmp_path.iterdir()) == [])


def test_the_level_of_isolation_is_logged_once(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ramet.tools.python"):
        bench.results("1", "2", isolation="0")
    assert sum("isolation level 0" in record.getMessage() for record in caplog.records) == 1


def resident(pid: int) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def test_hundreds_of_calls_leave_processes_memory_and_files_as_they_were(bench: Any) -> None:
    """Of processes that outlive a call: the zygote and its slots. After 2,000 calls one of five had grown by 4 KiB."""

    async def steps(tool: PythonTool) -> None:
        def state() -> tuple[dict[int, int], int]:
            sizes = {pid: resident(pid) for pid in bench.descendants(os.getpid())}
            return sizes, len(os.listdir("/proc/self/fd"))

        async def call(n: int) -> None:
            found = await asyncio.gather(*(bench.call(tool, f"[{i}] * 1000; {i}") for i in range(n)))
            assert [result.text for result in found] == [str(i) for i in range(n)]

        async def at_rest() -> tuple[dict[int, int], int]:
            """Once no process begins or ends: spares are forked, and what was called is gone."""
            for _ in range(100):
                before = state()
                await asyncio.sleep(0.2)
                if state()[0].keys() == before[0].keys():
                    return before
            raise AssertionError("processes begin and end for 20 s without a call")

        await call(50)
        sizes, files = await at_rest()
        await call(300)
        later, files_later = await at_rest()
        assert len(later) <= len(sizes) + 1
        outlived = sizes.keys() & later.keys()
        assert len(outlived) >= 1 + tool.config.slots and files_later == files
        assert {pid: later[pid] - sizes[pid] for pid in outlived if later[pid] > sizes[pid] + (1 << 20)} == {}

    bench.session(steps, slots=2)
