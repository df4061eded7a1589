"""What a program cannot do, and that nothing of it stays. What a level keeps it from at once is tried at level 0."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ramet_tools_python.tool import PythonTool


def test_a_program_over_time_is_stopped_in_time_and_its_output_kept(bench: Any) -> None:
    async def steps(tool: PythonTool) -> tuple[str, float]:
        await bench.call(tool, "1")
        started = time.monotonic()
        result = await bench.call(tool, "print('so far')\nwhile True: pass")
        return result.text, time.monotonic() - started

    text, seconds = bench.session(steps, timeout_s=1.0, slots=1)
    assert text == "so far\n[stopped: the time limit was reached]"
    assert 1.0 <= seconds <= 3.5  # on a busy machine, since only the time that the program had counts


def test_sleeping_counts_and_waiting_for_a_processor_does_not(bench: Any) -> None:
    async def steps(tool: PythonTool) -> tuple[Any, Any]:
        sleeps = await bench.call(tool, "import time; time.sleep(60)")
        busy = [bench.call(tool, "for _ in range(10**9): pass") for _ in range(6)]
        return sleeps, await asyncio.gather(*busy)

    sleeps, starved = bench.session(steps, timeout_s=0.6, slots=6)
    assert sleeps.metadata["status"] == "timeout" and sleeps.metadata["wall_ms"] < 1100
    assert {result.metadata["status"] for result in starved} == {"timeout"}
    waited = os.cpu_count() or 1
    if waited < 4:  # six on so few processors: each had its time or came to the backstop
        assert all(r.metadata["cpu_ms"] > 500 or r.metadata["wall_ms"] >= 1700 for r in starved)


def test_signals_cannot_hold_a_program_up(bench: Any) -> None:
    program = (
        "import signal, time\nfor s in (2, 14, 15, 24): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(1)"
    )
    assert bench.results(program, timeout_s=0.5)[0].metadata["status"] == "timeout"


def test_busy_loops_in_forked_processes_are_stopped_with_their_program(bench: Any) -> None:
    program = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    assert bench.results(program, timeout_s=0.5, isolation="0")[0].metadata["status"] in ("timeout", "cpu_limit")


def test_memory_is_limited_above_what_the_interpreter_needs(bench: Any) -> None:
    fits, burst = bench.results("len(bytearray(100 << 20))", "len(bytearray(400 << 20))", memory_mb=200)
    assert fits.text == str(100 << 20)
    assert burst.error and burst.text.endswith("MemoryError")


def test_output_is_cut_with_a_mark_and_a_flood_is_stopped(bench: Any) -> None:
    long, errors, flood = bench.results(
        "print('a' * 100_000)",
        "import sys; sys.stderr.write('e' * 100_000); sys.exit(1)",
        "while True: print('spam' * 1000)",
    )
    assert not long.error and long.text == "a" * 65536 + "\n[output truncated]"
    assert errors.text == "e" * 16384 + "\n[output truncated]"
    assert flood.metadata["status"] == "output_limit" and len(flood.text) < 66_000
    assert flood.text.endswith("[stopped: too much output]")


def test_a_file_cannot_grow_beyond_its_limit(bench: Any) -> None:
    result = bench.results("open('x', 'wb').write(bytes(3 << 20))", max_file_mb=2)[0]
    assert result.metadata["status"] == "file_limit" and result.text == "[stopped: a file became too large]"


def test_a_crash_is_told_from_a_kill(bench: Any) -> None:
    crash, kill = bench.results("import ctypes; ctypes.string_at(0)", "import os; os.kill(os.getpid(), 9)")
    assert (crash.metadata["status"], crash.text) == ("signal", "[the program crashed]")
    assert (kill.metadata["status"], kill.text) == ("killed", "[the program was killed]")


def test_secrets_of_the_environment_are_not_visible(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "SECRET-CANARY-123")
    texts = bench.results(
        "import os; dict(os.environ)",
        "open('/proc/self/environ').read()",
        "import os; open(f'/proc/{os.getppid()}/environ').read()",
        "import subprocess; subprocess.run(['env'], capture_output=True, text=True).stdout",
        "import gc; [o for o in gc.get_objects() if isinstance(o, dict) and 'MY_API_KEY' in o]",
        isolation="0",
    )
    assert texts[0].text == "{}"
    assert not any("SECRET" in result.text for result in texts)
    assert "PYTHONHASHSEED=0" in texts[1].text and texts[-1].text == "[]"


def test_privileges_are_gone_so_hard_limits_hold(bench: Any) -> None:
    text = bench.text("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))")
    assert text.endswith("ValueError: not allowed to raise maximum limit")


def test_only_standard_streams_are_open(bench: Any) -> None:
    listing = "import os\nsorted(int(n) for n in os.listdir('/proc/self/fd'))[:4]"
    assert bench.text(listing, isolation="0") == "[0, 1, 2, 3]"
    assert bench.text("import os\nos.fstat(3)").endswith("OSError: [Errno 9] Bad file descriptor")


def test_every_program_starts_in_an_empty_folder_that_goes_with_it(bench: Any, tmp_path: Path) -> None:
    fills = "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.chmod('a', 0)\nprint('filled')"
    looks = "import os\nprint(os.listdir())\nos.rmdir(os.getcwd())\nprint('removed')"
    results = bench.results(fills, looks, looks, scratch=str(tmp_path), slots=1, isolation="0")
    assert [result.text for result in results] == ["filled", "[]\nremoved", "[]\nremoved"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "program",
    [
        "import subprocess; subprocess.Popen(['sleep', '300']); print('left')",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(300)\n"
        "    os._exit(0)\nos.wait(); print('left')",
        "import subprocess\nprint('left', flush=True)\nsubprocess.run(['sleep', '300'], start_new_session=True)",
    ],
    ids=["child", "daemon", "over time"],
)
def test_no_process_of_a_program_survives_it(bench: Any, program: str) -> None:
    async def steps(tool: PythonTool) -> tuple[str, set[int]]:
        result = await bench.call(tool, program)
        sandbox = tool._pool.get()
        assert sandbox.slots._zygote is not None
        return result.text, bench.descendants(sandbox.slots._zygote.process.pid)

    text, processes = bench.session(steps, slots=1, timeout_s=1.0, isolation="0")
    assert text.startswith("left")
    assert len(processes) <= 3  # the slot, its nursery, and the process of the next program
