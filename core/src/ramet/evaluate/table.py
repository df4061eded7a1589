"""The results of an evaluation as a table for people."""

from __future__ import annotations

from rich.table import Table

from ramet.evaluate.results import BenchmarkResult, Results
from ramet.evaluate.statistics import Estimate, MetricSummary


def results_table(results: Results) -> Table:
    """One row per benchmark and metric: avg@k with its 95 % interval, pass@k, tools, and how much was judged."""
    table = Table(title=f"{results.header.model}, k = {results.header.k}", caption="± 95 % interval, clustered by task")
    for column in ("benchmark", "metric", "avg@k", "pass@k", "tool use", "judged"):
        table.add_column(column)
    for benchmark in results.benchmarks:
        for metric in benchmark.metrics:
            table.add_row(*_row(benchmark, metric))
    return table


def _row(benchmark: BenchmarkResult, metric: MetricSummary) -> tuple[str, ...]:
    passes = "  ".join(f"@{p.k} {_mean(p.estimate)}" for p in metric.passes)
    use = benchmark.tools.share_using
    return (
        benchmark.name,
        metric.metric,
        _with_interval(metric.avg),
        passes,
        "-" if use is None else f"{use:.0%}",
        benchmark.judged,
    )


def _mean(estimate: Estimate) -> str:
    return "-" if estimate.mean is None else f"{estimate.mean:.3f}"


def _with_interval(estimate: Estimate) -> str:
    margin = "" if estimate.half_width is None else f" ± {estimate.half_width:.3f}"
    return _mean(estimate) + margin
