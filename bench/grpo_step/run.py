"""A full GRPO step with a tool in Ramet and in TRL 1.16: rollouts, rewards, update; a tiny real model, one CPU thread.

    python bench/grpo_step/run.py [--rounds 5] [--work FOLDER] [--trl-python PYTHON]

32 rollouts with one tool call each. The first run makes TRL's environment (or takes the Python that is named) and fits
both models, which takes some minutes; both are kept in the work folder. Then both trainers run as one process each and
take turns, step by step; the first round is not counted. A step counts only if both did the same work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import print_table, shown, spread, write_results
from protocol import PREFIX
from task import Lengths, longest

HERE = Path(__file__).resolve().parent
LATENCIES = (0.0, 0.2)
GOALS = {"0.2": 5.0, "0.0": 2.0}  # how many times faster than TRL, at least


def environment() -> dict[str, str]:
    """One thread each, and no network."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def trl_python(work: Path) -> str:
    """The interpreter of TRL's environment, which is made if it is not there."""
    python = work / "trl_env" / "bin" / "python"
    ready = work / "trl_env" / "ready"
    if not ready.exists():
        print("making TRL's environment")
        subprocess.run([sys.executable, "-m", "venv", str(work / "trl_env")], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(HERE / "requirements-trl.txt")], check=True)
        ready.touch()
    return str(python)


def prepare(work: Path, trl: str) -> None:
    """One tokenizer, texts of equal length on both sides, and two models that have memorised them."""
    if (work / "ready").exists():
        return
    call("ramet", "texts", work, trl)
    call("trl", "tokenizer", work, trl)
    for side in ("trl", "ramet"):
        call(side, "measure", work, trl)
    lengths = {side: Lengths.read(work / f"{side}_lengths.json") for side in ("trl", "ramet")}
    wanted = longest(*lengths.values())
    for side, own in lengths.items():
        (wanted - own).write(work / f"{side}_fill.json")
    for side in lengths:
        call(side, "fit", work, trl)
        if Lengths.read(work / f"{side}_filled.json") != wanted:
            raise AssertionError(f"{side}: filled to {Lengths.read(work / f'{side}_filled.json')}, wanted {wanted}")
    (work / "ready").touch()


def command(side: str, what: str, work: Path, trl: str) -> list[str]:
    return [trl if side == "trl" else sys.executable, str(HERE / f"{side}_side.py"), what, str(work)]


def call(side: str, what: str, work: Path, trl: str) -> None:
    subprocess.run(command(side, what, work, trl), check=True, env=environment())


class Side:
    """A trainer that waits for its next step."""

    def __init__(self, side: str, work: Path, trl: str) -> None:
        self.name = side
        self._log = (work / f"{side}.log").open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            command(side, "serve", work, trl),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(),
        )
        self.versions = self._read()

    def step(self, latency_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{latency_s}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(PREFIX):
                content: dict[str, Any] = json.loads(line.removeprefix(PREFIX))
                return content
        raise RuntimeError(f"{self.name} ended with code {self._process.wait()}; see {self._log.name}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._log.close()


def measure(sides: list[Side], rounds: int) -> list[dict[str, Any]]:
    runs = []
    for number in range(rounds + 1):
        for latency in LATENCIES:
            steps = [{"side": side.name, "load": os.getloadavg()[0], **side.step(latency)} for side in sides]
            if not number:
                continue
            same = all(step["work"] == steps[0]["work"] for step in steps)
            if not same:
                print(f"round {number} at {latency} s is not counted: {[step['work'] for step in steps]}")
            runs += [{"round": number, "latency_s": latency, "counts": same, **step} for step in steps]
    return runs


def summarise(runs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[list[str]]]:
    summary: dict[str, Any] = {"goals": GOALS, "work_per_step": runs[0]["work"]}
    rows = []
    for latency in LATENCIES:
        own = {
            side: [r for r in runs if r["side"] == side and r["latency_s"] == latency and r["counts"]]
            for side in ("trl", "ramet")
        }
        times = {(side, key): [r[key] for r in own[side]] for side in own for key in ("wall_s", "cpu_s")}
        faster = {key: [t / r for t, r in zip(times["trl", key], times["ramet", key], strict=True)]
                  for key in ("wall_s", "cpu_s")}  # fmt: skip
        summary[f"at {latency} s"] = {
            **{f"{side} {key}": spread(values) for (side, key), values in times.items()},
            "times faster, wall": spread(faster["wall_s"]),
            "times faster, cpu": spread(faster["cpu_s"]),
        }
        for side in own:
            ratio = shown(faster["wall_s"], 2) if side == "ramet" else ""
            tools = max(r["most_tools_at_once"] for r in own[side])
            row = [f"{latency} s", side, shown(times[side, "wall_s"]), shown(times[side, "cpu_s"]), str(tools), ratio]
            rows.append(row)
    return summary, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--trl-python", help="an interpreter that has trl; else an environment is made")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    trl = arguments.trl_python or trl_python(work)
    prepare(work, trl)
    sides = [Side(name, work, trl) for name in ("trl", "ramet")]
    runs = measure(sides, arguments.rounds)
    for side in sides:
        side.close()
    summary, rows = summarise(runs)
    print(f"work per step: {summary['work_per_step']}")
    print_table(("tool", "trainer", "wall s/step", "CPU s/step", "most tools at once", "times faster"), rows)
    versions = {side.name: side.versions for side in sides}
    path = write_results("grpo_step", {"rounds": arguments.rounds, "versions": versions}, runs, summary)
    print(f"\nraw numbers: {path.name}")


if __name__ == "__main__":
    main()
