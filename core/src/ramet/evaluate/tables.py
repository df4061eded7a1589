"""Results and comparisons as tables: for the terminal (rich) and as Markdown, from the same cells."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.measure import Measurement
from rich.table import Table

from ramet.evaluate.compare import FEWEST, PairedComparison, TaskPair
from ramet.evaluate.header import SELECTION
from ramet.evaluate.setting_differences import SettingDifference
from ramet.io.json_values import visible
from ramet.tracking.console import PipeConsole

WIDE = 1000  # characters: more than a table has
SHOWN = 10  # tasks that are listed as won or lost
RESULT_COLUMNS = ("benchmark", "metric", "avg@k", "pass@k", "maj@k", "tool use", "answered", "cut", "scored")
CAPTION = "± 95 % interval, clustered by task"
SAME_SCORES = "; ± 0 where all tasks have the same score"
BOUNDS = "; [avg@k if rollouts without a score were wrong, if they were right]"
COMPARISON_COLUMNS = ("benchmark", "metric", "A", "B", "B - A", "95 % interval", "tasks", "won", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """One table. `title` and `caption` may be empty."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""

    def rich(self) -> Table:
        table = Table(title=visible(self.title) or None, caption=visible(self.caption) or None)
        for column in self.columns:
            table.add_column(visible(column), overflow="fold")  # names are never cut
        for row in self.rows:
            table.add_row(*map(visible, row))
        return table

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        table = "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)
        parts = (f"**{self.title}**" if self.title else "", table, self.caption)
        return "\n\n".join(part for part in parts if part)


def print_tables(tables: Iterable[TextTable]) -> None:
    """Print the tables on stdout."""
    console = PipeConsole(file=sys.stdout, highlight=False, markup=False, emoji=False)
    for table in (cells.rich() for cells in tables):
        if Measurement.get(console, console.options.update(max_width=WIDE), table).maximum > console.width:
            table.padding = 0  # else the names of columns are cut where a terminal has 80 characters
        console.print(table)


def results_cells(body: Mapping[str, Any]) -> TextTable:
    """One row per benchmark and metric of a results file: avg@k with its interval, pass@k, maj@k, tools, scored."""
    return TextTable(
        columns=RESULT_COLUMNS,
        rows=[_result_row(result, metric) for result in body["results"] for metric in result["metrics"]],
        title=f"{body['model']}, k = {body['k']}",
        caption="\n".join([_caption(body["results"]), *without_answers(body["results"]), *_chosen_here(body)]),
    )


def sweep_cells(
    points: Sequence[tuple[str, Mapping[str, Any]]], *, title: str | None = None, first: str = "point"
) -> TextTable:
    """Results files side by side, each with its name: the rows of `results_cells` by benchmark.

    `title`: for results that are not points of a sweep; `first`: the title of the first column.
    """
    rows = [
        (result["name"], [name, *_result_row(result, metric)])
        for name, body in points
        for result in body["results"]
        for metric in result["metrics"]
    ]
    order = list(dict.fromkeys(name for name, _ in rows))
    rows.sort(key=lambda row: order.index(row[0]))  # stable: within a benchmark by point
    return TextTable(
        columns=(first, *RESULT_COLUMNS),
        rows=[cells for _, cells in rows],
        title=f"{len(points)} points of the sweep" if title is None else title,
        caption=_caption([result for _, body in points for result in body["results"]]),
    )


def tool_cells(body: Mapping[str, Any]) -> TextTable:
    """One row per benchmark and tool: calls, success, seconds, and calls of right and wrong rollouts."""
    rows = []
    for result in body["results"]:
        tools = result["tools"]
        for name, calls in tools["calls"].items():
            success, mean_s = tools.get("success", {}).get(name), tools.get("mean_s", {}).get(name)
            numbers = [number(tools.get(key), 2) for key in ("calls_if_right", "calls_if_wrong")]
            rows.append([result["name"], name, str(calls), number(success, 3), number(mean_s, 3), *numbers])
    columns = ("benchmark", "tool", "calls", "success", "mean s", "calls if right", "calls if wrong")
    caption = "the last two columns are of all tools together"
    return TextTable(columns=columns, rows=rows, title="tools", caption=caption)


def comparison_cells(comparisons: Sequence[PairedComparison], before: str, after: str, *, n: int = 1) -> TextTable:
    """`n`: comparisons that are shown together, of several benchmarks, metrics and results."""
    several = f"; {n} comparisons: of equal models one in 20 has a *, so choose the one that decides in advance"
    return TextTable(
        columns=COMPARISON_COLUMNS,
        rows=[_comparison_row(comparison) for comparison in comparisons],
        title=f"A: {before}, B: {after}",
        caption=f"paired by task; interval of the mean difference, * leaves 0 out; none for fewer than {FEWEST} tasks "
        f"or equal differences{several if n > 1 else ''}",
    )


def setting_cells(
    differences: Sequence[SettingDifference],
    *,
    columns: tuple[str, str] = ("A", "B"),
    title: str = "measured differently",
    caption: str = "B - A is not only a difference of the models",
) -> TextTable:
    """Settings that differ, without rows if nothing was. `columns`: the titles of the two sides."""
    return TextTable(
        columns=("setting", *columns),
        rows=[[difference.setting, difference.before, difference.after] for difference in differences],
        title=title,
        caption=caption,
    )


def pair_cells(comparison: PairedComparison) -> TextTable:
    """Tasks that were won and lost, side by side."""
    most = max(len(comparison.won), len(comparison.lost))
    n = min(SHOWN, most)
    rows = [[*_pair(comparison.won, i), *_pair(comparison.lost, i)] for i in range(n)]
    return TextTable(
        columns=("won", "A", "B", "lost", "A", "B"),
        rows=rows,
        title=f"{comparison.benchmark}, {comparison.metric}: {len(comparison.won)} won, {len(comparison.lost)} lost",
        caption=f"the {SHOWN} largest differences of each; --format json lists all" if n < most else "",
    )


def number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _pair(pairs: Sequence[TaskPair], index: int) -> list[str]:
    if index >= len(pairs):
        return ["", "", ""]
    pair = pairs[index]
    return [pair.task, number(pair.before), number(pair.after)]


def _comparison_row(comparison: PairedComparison) -> list[str]:
    interval = (
        "-"
        if comparison.low is None
        else f"{comparison.low:+.3f} to {comparison.high:+.3f}{' *' if comparison.is_clear else ''}"
    )
    tasks = f"{comparison.n_tasks}" + (f" ({comparison.left_out} left out)" if comparison.left_out else "")
    numbers = [number(comparison.before), number(comparison.after), f"{comparison.difference:+.3f}", interval, tasks]
    return [comparison.benchmark, comparison.metric, *numbers, str(len(comparison.won)), str(len(comparison.lost))]


def _result_row(result: Mapping[str, Any], metric: Mapping[str, Any]) -> list[str]:
    avg, use, bounds = metric["avg"], result["tools"]["share_using"], metric.get("bounds")
    margin = "" if avg["half_width"] is None else f" ± {avg['half_width']:.3f}"
    margin += "" if bounds is None else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"
    passes = "  ".join(f"@{p['k']} {number(p['estimate']['mean'])}" for p in metric["passes"])
    maj = metric.get("maj") or {}
    cells = [result["name"], metric["metric"], number(avg["mean"]) + margin, passes, number(maj.get("mean"))]
    scored = f"{metric['n_judged']} of {metric['n_rollouts']}{' judged' if _is_of_judge(metric) else ''}"
    return [*cells, "-" if use is None else f"{use:.0%}", *end_shares(result), scored]


def end_shares(result: Mapping[str, Any]) -> list[str]:
    """Shares of rollouts with an answer, and of those without one that the limit of tokens cut."""
    ends = result.get("ends") or {}  # results of earlier versions lack it
    n = sum(ends.values())
    return [f"{ends[name] / n:.0%}" for name in ("answered", "cut")] if n else ["-", "-"]


def without_answers(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each benchmark most of whose rollouts have no answer, which explains a low score."""
    for result in results:
        ends = result.get("ends") or {}
        n, without = sum(ends.values()), sum(ends.get(name, 0) for name in ("cut", "unanswered"))
        if without > n / 2:
            cut = f", {ends['cut']} of them cut by the limit of tokens" if ends["cut"] else ""
            yield f"{result['name']}: {without} of {n} rollouts ended without an answer{cut}"


def _chosen_here(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each benchmark on whose tasks a validation chose the model."""
    selection = body.get("settings", {}).get(SELECTION) or {}
    for name in selection.get("benchmarks", ()):
        how = f"{selection['metric']} chose this checkpoint (step {selection['step']}) on these tasks"
        yield f"{name}: {how}, so its score here is too high by chance"


def _caption(results: Sequence[Mapping[str, Any]]) -> str:
    missing = any(metric.get("bounds") is not None for result in results for metric in result["metrics"])
    return CAPTION + (SAME_SCORES if any(map(_without_spread, results)) else "") + (BOUNDS if missing else "")


def _is_of_judge(metric: Mapping[str, Any]) -> bool:
    """Check whether a metric was written by `ramet judge`."""
    return str(metric["metric"]).startswith("judge-")


def _without_spread(result: Mapping[str, Any]) -> bool:
    """Whether all tasks have the same mean score in a metric of this benchmark."""
    return any(metric["avg"]["half_width"] == 0 for metric in result["metrics"])
