"""The estimator `gae` compared with a Python loop over time, on one thread: how much does vectorising it save?

    python bench/gae/run.py [--repeats 25]

Two batches: rollouts without tools, and rollouts in which every fourth stretch of tokens is a tool result. Both sides
get the same rewards, values and mask, and must give the same advantages and returns. They take turns; the first round
is not counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gae.loop import gae_by_loop
from harness import measured, print_table, shown, spread, write_results

from ramet.algorithms.advantages.config import GaeConfig
from ramet.algorithms.advantages.gae import Gae
from ramet.types import AdvantageInputs, StopReason

SHAPES = ((128, 2048), (512, 4096))
STRETCH, TOOL_EVERY = 32, 4  # tokens; every fourth stretch is a tool result
GAMMA, LAM = 0.99, 0.95
GOAL = 10.0
SIDES = ("loop", "ramet")


def batch_of(shape: tuple[int, int], *, tools: bool, seed: int) -> AdvantageInputs:
    """Ragged rollouts whose reward is at the last sampled token."""
    n, length = shape
    generator = torch.Generator().manual_seed(seed)
    position = torch.arange(length)
    mask = position < torch.randint(length // 2, length + 1, (n, 1), generator=generator)
    if tools:
        mask &= position // STRETCH % TOOL_EVERY != TOOL_EVERY - 1
    zeros = torch.zeros(n, length)
    return AdvantageInputs(
        rewards=torch.rand(n, generator=generator),
        reward_parts={},
        mask=mask,
        group_ids=torch.arange(n),
        turn_ids=zeros.long(),
        thread_ids=zeros.long(),
        node_ids=torch.arange(n * length).view(n, length),
        parent=torch.full((n,), -1),
        fork_position=torch.zeros(n, dtype=torch.int64),
        stop=[StopReason.ANSWER] * n,
        n_tool_calls=torch.zeros(n, dtype=torch.int64),
        engine_logprobs=zeros,
        policy_versions=zeros.long(),
        values=torch.where(mask, torch.rand(n, length, generator=generator), 0.0),
    )


def by_loop(batch: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """The reward goes to its token inside the measured time: our side does that too."""
    assert batch.values is not None
    last = (batch.mask * torch.arange(batch.mask.shape[1])).argmax(1)
    rewards = torch.zeros(batch.mask.shape)
    rewards[torch.arange(len(last)), last] = batch.rewards
    return gae_by_loop(rewards, batch.values, batch.mask, GAMMA, LAM)


def by_ramet(batch: AdvantageInputs) -> tuple[Tensor, Tensor]:
    output = Gae(GaeConfig(gamma=GAMMA, lam=LAM))(batch)
    assert output.returns is not None
    return output.advantages, output.returns


def play(shape: tuple[int, int], *, tools: bool, repeats: int) -> list[dict[str, Any]]:
    """All rounds of one batch. Raises if the two sides do not agree."""
    runs = []
    for repeat in range(repeats + 1):
        batch = batch_of(shape, tools=tools, seed=repeat)
        results = {}
        for side, compute in zip(SIDES, (by_loop, by_ramet), strict=True):
            with measured() as one:
                results[side] = compute(batch)
            numbers = {"wall_s": one.wall_s, "cpu_s": one.cpu_s, "load": one.load}
            if repeat:
                runs.append({"shape": shape, "tools": tools, "side": side, "round": repeat, **numbers})
        for found, expected in zip(results["ramet"], results["loop"], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)  # the loop adds in float32
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    summary: dict[str, Any] = {}
    for shape in SHAPES:
        for tools in (False, True):
            own = play(shape, tools=tools, repeats=repeats)
            runs += own
            name = f"{shape[0]} x {shape[1]}, {'with' if tools else 'no'} tools"
            summary[name] = {}
            rows.append([name])
            for clock in ("cpu", "wall"):
                loop, ours = ([1000 * run[f"{clock}_s"] for run in own if run["side"] == side] for side in SIDES)
                times = [one / other for one, other in zip(loop, ours, strict=True)]
                numbers = {"loop_ms": spread(loop), "ramet_ms": spread(ours), "times": spread(times)}
                summary[name] |= {f"{clock}_{key}": value for key, value in numbers.items()}
                rows[-1] += [shown(loop, 1), shown(ours, 1), shown(times, 1)]
    print_table(("batch", "loop, CPU ms", "ramet", "times", "loop, wall ms", "ramet", "times"), rows)
    settings = {"repeats": repeats, "threads": 1, "gamma": GAMMA, "lam": LAM, "goal_times": GOAL}
    print(f"\nraw numbers: {write_results('gae', settings, runs, summary).name}")


if __name__ == "__main__":
    main()
