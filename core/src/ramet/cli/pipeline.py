"""`ramet pipeline`: several jobs by one command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from ramet.cli.app import main
from ramet.cli.terminal import Parser, say
from ramet.errors import ConfigError

USAGE = "ramet pipeline NAME|FILE.yaml [key=value …] [STAGE:key=value …] [--dry-run [--on MACHINE]] [--config-dir DIR]"


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments)
    if options is None:
        return 0
    from ramet.pipeline.check import check_pipeline
    from ramet.pipeline.job import run_pipeline
    from ramet.pipeline.stages import pipelines, read_pipeline

    if options.name is None:
        names = ", ".join(sorted(pipelines(options.config_dir))) or "none"
        raise ConfigError(f"pipeline: which one? Pipelines: {names}; or the path of a file")
    if options.on is not None and not options.dry_run:
        raise ConfigError("--on: a machine is named for a dry run; add --dry-run")
    pipeline = read_pipeline(options.name, options.keys, options.config_dir)
    if options.dry_run:
        say("\n\n".join(check_pipeline(pipeline, dry_run=True, on=options.on).plans))
        return 0
    run_pipeline(pipeline, _command, arguments)
    from ramet.evaluate.tables import print_tables
    from ramet.pipeline.report import score_tables, write_pipeline_report

    page = write_pipeline_report(pipeline)
    print_tables(score_tables(pipeline))
    width = max(len(stage.name) for stage in pipeline.stages)
    for stage in pipeline.stages:
        say(f"{stage.name:{width}}  {stage.output}")
    say(f"report: {page}")
    return 0


def _command(words: list[str]) -> int:
    """Run `ramet WORDS` as the one thing that this process does."""
    debug = ["--debug"] if logging.getLogger("ramet").isEnabledFor(logging.DEBUG) else []
    sys.argv = ["ramet", *words, *debug]
    return main()


def _parser() -> Parser:
    parser = Parser(
        prog="ramet pipeline",
        add_help=False,
        usage=USAGE,
        description="Run several jobs one after the other, such as SFT, RL, export and evaluation, and write one "
        "report. The same command continues where it was stopped. All stages are checked before the first begins.",
        epilog="A pipeline is a file pipeline/NAME.yaml of ramet, of hydra_configs/ in the working directory or of "
        "DIR. Its stages are run directories below runs/NAME; run.name=… and run.root=… choose another folder. A key "
        "is for every stage that reads it, STAGE:key=value for one.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME|FILE.yaml", help="the pipeline")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="settings, which win over the file's")
    parser.add_argument("--dry-run", action="store_true", help="print the plan of every stage, and do nothing")
    parser.add_argument(
        "--on", metavar="[NODESx]DEVICESxMEMORY|GPU", help="with --dry-run: plan for GPUs that are elsewhere"
    )
    parser.add_argument("--config-dir", type=Path, help="a folder with more pipelines, presets and experiments")
    return parser
