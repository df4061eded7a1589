"""`ramet compare` and `ramet judge`: evaluations or trainings compared, and evaluations judged once more."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ramet.cli.terminal import Parser, run_folder, say
from ramet.config.sections import without_model
from ramet.errors import ConfigError, InfraError
from ramet.evaluate.agreement import Verdicts, agreement, judge_files, read_judge, with_verdicts
from ramet.evaluate.compare import PairedComparison, compare
from ramet.evaluate.files import load_results
from ramet.evaluate.setting_differences import SettingDifference, setting_differences
from ramet.evaluate.tables import (
    TextTable,
    comparison_cells,
    number,
    pair_cells,
    print_tables,
    results_cells,
    setting_cells,
    tool_cells,
)
from ramet.history.summary import TRAININGS
from ramet.history.tables import difference_cells, training_cells, validation_cells
from ramet.history.training import Training, kind_of, training_differences
from ramet.io.json_values import without_nan
from ramet.runs.manifest import MANIFEST

FORMATS = ("table", "markdown", "json")


def run_compare(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet compare",
        add_help=False,
        usage="ramet compare A [B …] [--format table|markdown|json]",
        description="Of evaluations: the difference by task, with its interval, the tasks won and lost, and which "
        "settings but the model differ. Of trainings: reward or loss of the last steps with interval, validation "
        "by step, time, and what was set differently. Of one: its tables. Of more than two: each against the first.",
        epilog="A, B: the directory or name of a run, or a results file. All are of one kind: evaluations, runs of "
        "`ramet train`, or runs of `ramet sft`. What `ramet judge` wrote next to them is compared too, as the metric "
        "judge-NAME.",
    )
    parser.add_argument("results", nargs="*", type=Path, metavar="A")
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    options = parser.read(arguments)
    if options is None:
        return 0
    if not options.results:
        raise ConfigError("compare: give one or more runs, as in `ramet compare runs/before runs/after`")
    if _kind(options.results) in TRAININGS:
        _compare_trainings(options.results, options.format)
        return 0
    loaded = [(file, with_verdicts(file, body)) for file, body in map(load_results, options.results)]
    first, body = loaded[0]
    if len(loaded) == 1:
        _print([results_cells(body), tool_cells(body)], options.format, body)
        return 0
    pairs = [(str(file), compare(body, other), setting_differences(body, other)) for file, other in loaded[1:]]
    n = sum(len(compared) for _, compared, _ in pairs)
    tables = [table for file, compared, settings in pairs for table in _tables(compared, settings, str(first), file, n)]
    objects = [
        {
            "a": str(first),
            "b": file,
            "metrics": _json(compared),
            "settings": [asdict(difference) for difference in settings],
        }
        for file, compared, settings in pairs
    ]
    _print(tables, options.format, objects)
    return 0


def _kind(paths: Sequence[Path]) -> str:
    """The job whose runs these are: `train`, `sft` or `eval`.

    Raises `ConfigError` for what is not a run, and for runs of several jobs.
    """
    kinds = {path: "eval" if path.is_file() else kind_of(run_folder(path)) for path in paths}
    if empty := [str(path) for path, kind in kinds.items() if not kind]:
        raise ConfigError(f"compare: {', '.join(empty)}: no {MANIFEST} of a run and no results.json there")
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{path} is of `ramet {kind}`" for path, kind in kinds.items())
        raise ConfigError(f"compare: runs of one kind can be compared: {listed}")
    return kinds[paths[0]]


def _compare_trainings(runs: Sequence[Path], form: str) -> None:
    trainings = [Training.read(run_folder(run), str(run)) for run in runs]
    first, *others = trainings
    settings = [training_differences(first, training) for training in others]
    tables = [training_cells(trainings), *([difference_cells(trainings)] if others else [])]
    tables.append(validation_cells(trainings))
    for training, differences in zip(others, settings, strict=True):
        names = first.summary.name, training.summary.name
        tables.append(setting_cells(differences, columns=names, title="set differently", caption=""))
    body = [
        {**training.body(), "settings": [asdict(difference) for difference in differences]}
        for training, differences in zip(trainings, [[], *settings], strict=True)
    ]
    _print(tables, form, body)


def _tables(
    compared: Sequence[PairedComparison], settings: Sequence[SettingDifference], before: str, after: str, n: int
) -> list[TextTable]:
    changed = [comparison for comparison in compared if comparison.won or comparison.lost]
    return [comparison_cells(compared, before, after, n=n), setting_cells(settings), *map(pair_cells, changed)]


def _json(compared: Sequence[PairedComparison]) -> list[dict[str, Any]]:
    return [{**asdict(comparison), "difference": comparison.difference} for comparison in compared]


def _print(tables: Sequence[TextTable], form: str, body: Any) -> None:
    shown = [table for table in tables if table.rows]
    if form == "json":
        say(json.dumps(without_nan(body), indent=1))
    elif form == "markdown":
        say("\n\n".join(table.markdown() for table in shown))
    else:
        print_tables(shown)


def run_judge(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet judge",
        add_help=False,
        usage="ramet judge RESULT rewards=[NAME] [rewards.NAME.…=value] [--format table|markdown] [--config-dir DIR]",
        description="Judge the stored rollouts of an evaluation with one or more rewards, an LLM judge mostly. No "
        "rollout is run; the same command again asks only for what is missing.",
        epilog="RESULT is a results file, or the directory or name of a run that holds one. Another judge needs a name "
        "of its own: rewards=[llm_judge] rewards.strict.use=llm_judge. Ends with exit code 1 for mistakes, 2 if "
        "verdicts failed (what is judged is kept), else 0.",
    )
    parser.add_argument("result", nargs="?", type=Path, metavar="RESULT")
    parser.add_argument("overrides", nargs="*", help="rewards and their options, as for `ramet train`")
    parser.add_argument("--format", choices=FORMATS[:2], default="table", help="default: table")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.result is None or "=" in str(options.result):
        raise ConfigError("judge: give a result first, as in `ramet judge runs/measured rewards=[llm_judge]`")
    from ramet.config.compose import compose
    from ramet.evaluate.judge_pass import run

    resolved = compose(without_model(options.overrides), job="judge", config_dir=options.config_dir)
    judged = run(options.result, resolved)
    file, body = load_results(options.result)
    results = [result.body() for each in judged for result in each.results]
    said = map(read_judge, judge_files(file))
    named = {"rules": Verdicts.of_results(body), **{header["judge"]: verdicts for header, verdicts in said}}
    _print([results_cells({**body, "results": results}), _agreement_cells(named)], options.format, None)
    for each in judged:
        say(f"{each.name}: {each.n_judged} of {each.n_rollouts} judged, in {each.file}")
    failed = [f"rewards.{each.name}: {each.n_failed} verdicts failed" for each in judged if each.n_failed]
    if failed:
        raise InfraError(
            f"{'; '.join(failed)}. The scores are of the rest, which may be a biased subset. What is judged is "
            "kept: remove the cause and start the same command again, which asks only for what is missing"
        )
    return 0


def _agreement_cells(named: Mapping[str, Verdicts]) -> TextTable:
    """Return a table with a row for every two judges; `rules` is the main metric of the evaluation itself."""
    rows = []
    for name, other in itertools.combinations(named, 2):
        agreed = agreement(named[name], named[other])
        numbers = [str(agreed.n), number(agreed.share), number(agreed.kappa), str(agreed.first_alone)]
        rows.append([name, other, *numbers, str(agreed.second_alone)])
    columns = ("A", "B", "both judged", "same verdict", "kappa", "right only for A", "right only for B")
    caption = "`rules`: the benchmarks' own scores"
    return TextTable(columns=columns, rows=rows, title="agreement of judges", caption=caption)
