"""How the two sides are driven: one line in, one line out, one training step each. Standard library only.

Both processes stay alive and take turns, so a step of one and the next of the other run on the same machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

PREFIX = "BENCH "  # of a side's messages; what else it prints is ignored


@dataclass(slots=True)
class StepBarrier:
    """Blocks a trainer between two steps. `latency_s` is what the tool must take in the current step."""

    latency_s: float = 0.0
    calls: int = 0  # of the tool, in this step
    running: int = 0
    most_running: int = 0
    _wall: float = field(default=0.0)
    _cpu: float = field(default=0.0)

    def wait(self) -> None:
        """Until the next step is requested; the clock starts then. Ends the process at the end of the input."""
        line = sys.stdin.readline()
        if not line.strip():
            os._exit(0)  # trainers have no other way out between two steps
        self.latency_s = float(line)
        self.calls = self.most_running = 0
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def report(self, work: dict[str, float], phases: dict[str, float]) -> None:
        """Send the numbers of the step that is over."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        send(
            {
                "wall_s": wall,
                "cpu_s": cpu,
                "phases": phases,
                "work": {**work, "tool_calls": self.calls},
                "most_tools_at_once": self.most_running,
            }
        )

    def enter_tool(self) -> None:
        self.calls += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)

    def leave_tool(self) -> None:
        self.running -= 1


def send(content: dict[str, Any]) -> None:
    print(PREFIX + json.dumps(content), flush=True)
