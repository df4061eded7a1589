"""One RL step of SmolLM2-135M on two CPU cores, beside TRL, and its generation beside transformers and vLLM alone.

    python bench/real_model/run.py [--rounds 3] [--precisions float32 bfloat16] [--work FOLDER] [--model FOLDER]

4 questions of 158 tokens x 6 rollouts x 64 sampled tokens, one optimiser step; without a tool call, and with one of
0 s and of 0.2 s in the middle of each rollout. Each side is a process of its own, started in each round: its first
step is not counted, then one step of each kind. Sides take turns. `--smoke` is the same with sizes that say nothing.

The first run fetches the model (scripts/quickstart/smollm2.py) and makes TRL's environments, in the work folder.
`--trl` and `--trl-vllm` name a Python that has TRL, and one that has TRL and vLLM, instead.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import print_table, shown, spread, write_results
from processes import SideProcess
from shape import Settings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SIDES = {
    "trl": "trl_side.py",
    "trl-vllm": "trl_side.py",
    "ramet-torch": "ramet_side.py",
    "ramet-torch-lora": "ramet_side.py",
    "ramet-vllm": "ramet_side.py",
    "transformers": "generate_side.py",
    "vllm": "generate_side.py",
    "vllm-compiled": "generate_side.py",
}
ALONE = [side for side, file in SIDES.items() if file == "generate_side.py"]
TRL = ("trl", "trl-vllm")
TOOLS = (None, 0.0, 0.2)  # seconds of the tool call
HEAD = ("step", "side", "step s", "generation s", "tokens/s", "CPU s", "peak GB", "times faster", "of vllm")
GOALS = {"step, times faster than the faster of TRL's": 5.0, "generation, of vllm's": 0.9,
         "memory, GB": 5.0, "memory with LoRA, GB": 4.0}  # fmt: skip


def trl_python(work: Path, side: str) -> str:
    """The interpreter of TRL's environment, which is made if it is not there."""
    name = side.replace("-", "_")
    folder = work / f"{name}_env"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"making the environment of {side}")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        requirements = HERE / f"requirements-{side}.txt"
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(requirements)]
        subprocess.run(pip, check=True, cwd=ROOT)  # paths in it are those of the repository
        (folder / "ready").touch()
    return str(python)


def interpreters(options: argparse.Namespace) -> dict[str, str]:
    """The Python of each side that runs."""
    named = {"trl": options.trl, "trl-vllm": options.trl_vllm}
    return {
        side: (named[side] or trl_python(options.work, side)) if side in TRL else sys.executable
        for side in options.sides
    }


def run_side(options: argparse.Namespace, python: str, settings: Settings) -> list[dict[str, Any]]:
    """Steps of one process: one that is not counted, and one of each kind."""
    log = options.work / f"{settings.side}.log"
    process = SideProcess([python, str(HERE / SIDES[settings.side])], settings, log)
    try:
        warm_up = process.step(None)["wall_s"]
        tools = (None,) if settings.side in ALONE else TOOLS
        steps = [{"tool_s": tool, "load": os.getloadavg()[0], **process.step(tool)} for tool in tools]
    finally:
        process.close()
    return [{**step, "warm_up_s": warm_up, "versions": process.versions} for step in steps]


def run_round(options: argparse.Namespace, model: str, pythons: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Each side in turn. A side that fails is left out, and says so."""
    shape = {key: getattr(options, key) for key in ("threads", "questions", "rollouts", "tokens")}
    for precision in options.precisions:
        for side in options.sides:
            settings = Settings(side=side, model=model, work=str(options.work), precision=precision, **shape)
            same = {"side": side, "precision": precision}
            try:
                steps = run_side(options, pythons[side], settings)
            except RuntimeError as error:
                print(f"{precision}, {side}: {error}", flush=True)
                yield same | {"failed": str(error)}
                continue
            seconds = ", ".join(f"{step['wall_s']:.1f}" for step in steps)
            print(f"{precision}, {side}: {seconds} s", flush=True)
            yield from (same | step for step in steps)


def check_work(runs: list[dict[str, Any]]) -> None:
    """Raise `AssertionError` unless all sides did the same in steps of the same kind, and training changed weights."""
    first: dict[tuple[Any, str], tuple[str, int]] = {}
    for run in runs:
        for key, amount in run.get("work", {}).items():
            side, expected = first.setdefault((run["tool_s"], key), (run["side"], amount))
            assert amount == expected, f"{key}, tool {run['tool_s']}: {side} {expected}, {run['side']} {amount}"
        assert run.get("largest_weight_change", 1.0) > 0, f"{run['side']}: the optimiser step changed nothing"


def summarise(runs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[list[str]]]:
    summary: dict[str, Any] = {"goals": GOALS}
    rows: list[list[str]] = []
    done = [run for run in runs if "failed" not in run]
    for precision, tool in dict.fromkeys((run["precision"], run["tool_s"]) for run in done):
        own: dict[str, list[dict[str, Any]]] = {}
        for run in done:
            if (run["precision"], run["tool_s"]) == (precision, tool):
                own.setdefault(run["side"], []).append(run)
        kind = f"{precision}, {'no tool' if tool is None else f'tool {tool} s'}"
        for side in own:
            summary[f"{kind}, {side}"], row = summarise_side(side, own)
            rows.append([kind, *row])
    return summary, rows


def summarise_side(side: str, own: dict[str, list[dict[str, Any]]]) -> tuple[dict[str, Any], list[str]]:
    """Numbers of a side's steps of one kind, and its row in the table."""
    steps, is_ramet = own[side], side.startswith("ramet")
    times = {key: [step[key] for step in steps] for key in ("wall_s", "generation_s", "cpu_s", "peak_gb")}
    rates = [step["work"]["sampled_tokens"] / step["generation_s"] for step in steps]
    trl, vllm = fastest(TRL, own, "wall_s"), fastest(("vllm", "vllm-compiled"), own, "generation_s")
    faster = ratios(own, trl, side, "wall_s") if is_ramet else []
    share = ratios(own, vllm, side, "generation_s") if is_ramet else []
    numbers = {key: spread(values) for key, values in times.items()} | {
        "work": steps[0]["work"],
        "times faster": {"than": trl, **spread(faster)} if faster else None,
        "generation's speed": {"of": vllm, **spread(share)} if share else None,
    }
    return numbers, [
        side, "" if side in ALONE else shown(times["wall_s"], 1), shown(times["generation_s"], 1),
        f"{statistics.median(rates):.0f}", f"{statistics.median(times['cpu_s']):.1f}", f"{max(times['peak_gb']):.1f}",
        shown(faster, 2) if faster else "", shown(share, 2) if share else "",
    ]  # fmt: skip


def fastest(sides: Sequence[str], own: dict[str, list[dict[str, Any]]], key: str) -> str | None:
    """The side with the lowest median; None if there is none of them."""
    return min(
        (side for side in sides if side in own),
        key=lambda side: statistics.median(step[key] for step in own[side]),
        default=None,
    )


def ratios(own: dict[str, list[dict[str, Any]]], other: str | None, side: str, key: str) -> list[float]:
    """Of the other side's seconds to this side's, in each round that both finished."""
    if other is None:
        return []
    theirs = {step["round"]: step[key] for step in own[other]}
    return [theirs[step["round"]] / step[key] for step in own[side] if step["round"] in theirs]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precisions", nargs="+", default=["float32"], choices=("float32", "bfloat16"))
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--model", type=Path, help="a folder; else SmolLM2 is fetched into the work folder")
    parser.add_argument("--trl", help="an interpreter that has trl; else an environment is made")
    parser.add_argument("--trl-vllm", help="an interpreter that has trl and vllm; else an environment is made")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--rollouts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--smoke", action="store_true", help="2 x 2 rollouts of 8 tokens, one round, nothing written")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.questions, options.rollouts, options.tokens = 1, 2, 2, 8
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    return options


def fetched_model(work: Path) -> Path:
    """SmolLM2 in the work folder, as `make quickstart MODEL=smollm2` gets it."""
    sys.path.insert(0, str(ROOT / "scripts" / "quickstart"))
    folder: Path = importlib.import_module("smollm2").model_folder(work)
    return folder


def main() -> None:
    options = read_options()
    model = options.model or fetched_model(options.work)
    runs: list[dict[str, Any]] = []
    pythons = interpreters(options)
    for number in range(options.rounds):
        for run in run_round(options, str(model.resolve()), pythons):
            runs.append({"round": number, **run})
            check_work(runs)
        summary, rows = summarise(runs)
        if not options.smoke:  # after each round: what is measured is kept
            shape = {key: getattr(options, key) for key in ("rounds", "threads", "questions", "rollouts", "tokens")}
            write_results("real_model", shape, runs, summary)
    print_table(HEAD, rows)


if __name__ == "__main__":
    main()
