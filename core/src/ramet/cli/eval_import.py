"""`ramet eval import`: its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramet.cli.terminal import Parser, say
from ramet.config.sections import without_model
from ramet.errors import ConfigError
from ramet.evaluate.tables import print_tables, results_cells
from ramet.plugins import load_plugins


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments)
    if options is None:
        return 0
    places = [Path(word) for word in options.words if "=" not in word or Path(word).exists()]
    overrides = [word for word in options.words if Path(word) not in places]
    if not places or options.out is None:
        raise ConfigError("eval import: name outputs and a file, as in `ramet eval import outputs --out results.json`")
    if options.data is not None and not options.data.is_dir():
        raise ConfigError(f"--data={options.data}: no such folder (working directory: {Path.cwd()})")
    from ramet.config.compose import compose
    from ramet.config.hydra_adapter import override
    from ramet.evaluate.imported import import_outputs, read_outputs

    outputs = read_outputs(places)
    known = load_plugins().registries.benchmarks.names
    if unknown := [of.name for of in outputs if of.name not in known]:
        raise ConfigError(f"no benchmark {', '.join(unknown)}; installed: {', '.join(known) or 'none'}")
    chosen = [f"benchmarks=[{','.join(of.name for of in outputs)}]"]
    if options.data is not None:
        chosen += [override(f"benchmarks.{of.name}.params.path", options.data) for of in outputs]
    resolved = compose(without_model([*chosen, *overrides]), job="eval")
    results = import_outputs(
        outputs, resolved, options.out, model=options.model or str(places[0]), matched=options.data is not None
    )
    print_tables([results_cells(results.body())])
    say(f"results in {options.out}: {sum(len(of.records) for of in outputs)} tasks of {len(outputs)} benchmarks")
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="ramet eval import",
        add_help=False,
        usage="ramet eval import FOLDER|FILE … --out FILE [--data DIR] [--model NAME] [benchmarks.NAME.…=value]",
        description="Results of what ARPO's evaluation code has written (NAME_output_TURN.json), scored by the rules "
        "of the benchmarks here: `ramet compare` compares them with one's own, `ramet judge` judges them.",
        epilog="Samples that timed out or raised there, or that no server answered, are masked, not wrong. The outputs "
        "hold neither token ids nor times.",
    )
    parser.add_argument("words", nargs="*", metavar="FOLDER|FILE", help="outputs; each turn is a rollout of its task")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the results; nothing is ever overwritten")
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        help="the published tasks: ids and gold answers are then the tasks'",
    )
    parser.add_argument("--model", metavar="NAME", help="what the results call the model (default: the folder)")
    return parser
