"""`ramet test RUN`: recorded rollouts as regression tests of an agent."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path

from ramet.cli.terminal import Parser, run_folder, say
from ramet.errors import ConfigError, raise_all

SAME, DIFFERENT, FAILED = 0, 1, 2  # exit codes
TOOLS, COMPARE = ("recorded", "run"), ("sample", "logprobs")


def test(arguments: Sequence[str]) -> int:
    """test an agent: run recorded rollouts again, and name what differs"""
    options = _parser().read(arguments)
    if options is None:
        return SAME
    if not options.words:
        raise ConfigError("test: name a run, as in `ramet test runs/mine`; see `ramet test --help`")
    folder, overrides = run_folder(Path(options.words[0])), list(options.words[1:])
    if options.model is not None:
        from ramet.config.hydra_adapter import override  # loads Hydra

        overrides.append(override("model.path", str(options.model)))
    job, junit = (importlib.import_module(f"ramet_replay.replay_test.{name}") for name in ("job", "junit"))
    raise_all(junit.check_junit(options.junit) if options.junit is not None else [])
    started = time.monotonic()
    result = job.run(
        folder,
        overrides,
        job.ReplayTestOptions(
            tools=job.ToolResults(options.tools),
            compare=None if options.compare is None else job.Compare(options.compare),
            samples=options.samples,
            step=options.step,
            limit=options.limit,
            one_model=any(text.startswith("model.path=") for text in overrides),
        ),
        config_dir=options.config_dir,
    )
    for line in job.describe(result):
        say(line)
    if options.junit is not None:
        junit.write_junit(options.junit, result, time.monotonic() - started)
    if any(outcome.difference is not None for outcome in result.outcomes):
        return DIFFERENT
    return FAILED if any(outcome.fault is not None for outcome in result.outcomes) else SAME


def _parser() -> Parser:
    parser = Parser(
        prog="ramet test",
        add_help=False,
        usage="ramet test RUN [--model FOLDER] [--tools recorded|run] [--compare sample|logprobs] [--samples N] "
        "[--step N] [--limit N] [--junit FILE] [--config-dir DIR] [--trust-recipe FILE] [key=value …]",
        description="Recorded rollouts as regression tests of an agent: they run again with the prompt, the template, "
        "the parser, the tools and the weights of today, and the first token that differs is reported for each, with "
        "the kind of change: prompt, sampled, call or tool. The run is not changed.",
        epilog="RUN is a directory, or a name under runs/, of `ramet train` or `ramet eval`. Keys change its "
        "configuration, as in rollout_step.instruction='Think first.'. A deterministic run with the torch engine is "
        "sampled again; of others the log-probabilities of the recorded tokens are compared. Ends with exit code 1 if "
        "a rollout differs, and with 2 if only infrastructure failed.",
    )
    parser.add_argument("words", nargs="*", metavar="RUN", help="the run, then keys that change its configuration")
    parser.add_argument("--model", type=Path, help="test these weights, instead of those that sampled each rollout")
    parser.add_argument(
        "--tools", choices=TOOLS, default="recorded", help="give recorded results (default), or run the tools"
    )
    parser.add_argument("--compare", choices=COMPARE, help="how sampled tokens are compared (default: as the run can)")
    parser.add_argument("--samples", type=int, default=0, help="continue each that differs so often, and score it")
    parser.add_argument("--step", type=int, help="only rollouts of this step (default: of all)")
    parser.add_argument("--limit", type=int, help="only the first so many tasks")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the outcomes as JUnit XML")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    return parser
