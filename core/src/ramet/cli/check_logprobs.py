"""`ramet check-logprobs`: do engine and trainer agree?"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from ramet.cli.terminal import Parser
from ramet.config.compose import compose
from ramet.runs.hub_inputs import fetched


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet check-logprobs",
        add_help=False,
        usage="ramet check-logprobs [--tasks N] [--rollouts N] [--threshold NATS] [--config-dir DIR] [key=value …]",
        description="Do engine and trainer agree? Runs a few tasks and computes their log-probabilities with both, "
        "with the engines and policy ranks that `ramet train` would start. Writes nothing.",
        epilog="Keys are as for `ramet train`. Ends with exit code 1 if the two disagree.",
    )
    parser.add_argument("overrides", nargs="*", help="as for the run that is to be trained")
    parser.add_argument("--tasks", type=int, default=8, help="how many tasks of data.train (default: 8)")
    parser.add_argument("--rollouts", type=int, default=2, help="rollouts of each task (default: 2)")
    parser.add_argument(
        "--threshold", type=float, help="default: 1e-3 in float32, 0.1 in bfloat16; see docs/engines.md"
    )
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    parsed = parser.read(arguments)
    if parsed is None:
        return 0
    resolved = fetched(compose(parsed.overrides, job="train", config_dir=parsed.config_dir))
    job = importlib.import_module("ramet.check.logprobs")  # loads torch
    options = job.Options(tasks=parsed.tasks, rollouts=parsed.rollouts, threshold=parsed.threshold)
    code: int = job.run(resolved, options)
    return code
