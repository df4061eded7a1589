"""The columns of the console's tables: which metrics they show, how, and which of them fit a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

GAP = 2  # spaces between columns
UNITS = ("B", "kB", "MB", "GB", "TB")
SOURCE, SOURCE_REWARD = "source/", "/reward"  # around the name of a data source
SOURCE_RANK = 45
WIDEST_SOURCE = 10  # longer names are cut


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def small(value: float) -> str:
    return f"{value:.1e}" if value != 0 and abs(value) < 0.001 else f"{value:.3f}"


def count(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:.1f}M"
    return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.0f}"


def rate(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def per_group(value: float) -> str:
    return f"{value:.1f}"


def seconds(value: float) -> str:
    if value < 90:
        return f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}m{rest:02d}" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}"


def amount(size: float) -> str:
    """Return bytes with a unit: `13.1 MB`."""
    for unit in UNITS[:-1]:
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} {UNITS[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One metric: the key it is read from, its heading and how it is written."""

    key: str
    title: str
    show: Callable[[float], str]
    rank: int  # where a terminal is too narrow, columns of higher rank are left out first
    width: int = 8
    per: str | None = None  # a metric in seconds that the value is divided by

    def cell(self, metrics: Mapping[str, float]) -> str | None:
        value = self._value(metrics)
        return None if value is None else self.show(value) if math.isfinite(value) else str(value)

    def _value(self, metrics: Mapping[str, float]) -> float | None:
        if self.key not in metrics or (self.per is not None and not metrics.get(self.per)):
            return None
        return metrics[self.key] / (metrics[self.per] if self.per is not None else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The table of one kind of training. A call of `log` without `main` is not a step of it."""

    main: str  # the metric that is in every step
    higher_is_better: bool
    columns: tuple[Column, ...]  # in the order in which they are shown; the first is `main`'s


RL = Layout(
    main="reward/roots_mean",
    higher_is_better=True,
    columns=(
        Column(key="reward/roots_mean", title="reward", show=small, rank=10, width=7),
        Column(key="rollout/tool_use", title="tool use", show=percent, rank=60),
        Column(key="rollout/forks_per_group", title="forks", show=per_group, rank=40, width=5),
        Column(key="rollout/sampled_tokens_mean", title="length", show=count, rank=20, width=6),
        Column(key="rollout/stop/length", title="cut", show=percent, rank=30, width=4),
        Column(key="rollout/masked_share", title="masked", show=percent, rank=50, width=6),
        Column(
            key="rollout/executed_sampled_tokens",
            per="rollout/seconds",
            title="tok/s",
            show=count,
            rank=70,
            width=6,
        ),
        Column(key="train/approx_kl", title="KL", show=small, rank=90),
        Column(key="train/engine_gap_mean", title="logp gap", show=small, rank=100),
        Column(key="train/entropy", title="entropy", show=small, rank=80, width=7),
        Column(key="time/step_s", title="time", show=seconds, rank=25, width=6),
    ),
)
SFT = Layout(
    main="sft/loss",
    higher_is_better=False,
    columns=(
        Column(key="sft/loss", title="loss", show=small, rank=10, width=7),
        Column(key="sft/epoch", title="epoch", show=lambda epoch: f"{epoch:.2f}", rank=20, width=6),
        Column(key="sft/lr", title="lr", show=lambda rate: f"{rate:.1e}", rank=30, width=7),
        Column(key="sft/grad_norm", title="grad norm", show=small, rank=40, width=9),
        Column(key="sft/steps_per_s", title="steps/s", show=rate, rank=50, width=7),
        Column(key="sft/tokens_per_s", title="tokens/s", show=lambda rate: f"{rate:,.0f}", rank=60, width=9),
    ),
)


def layout_of(metrics: Mapping[str, float]) -> Layout | None:
    """Return the layout of the training whose step these are; None where there is only a validation."""
    return next((layout for layout in (RL, SFT) if layout.main in metrics), None)


def source_columns(names: Iterable[str]) -> list[Column]:
    """The rewards of data sources, where there are several of them."""
    sources = sorted(name for name in names if name.startswith(SOURCE) and name.endswith(SOURCE_REWARD))
    if len(sources) < 2:
        return []
    titles = {name: name[len(SOURCE) : -len(SOURCE_REWARD)] for name in sources}
    return [
        Column(
            key=name,
            title=title[:WIDEST_SOURCE],
            show=small,
            rank=SOURCE_RANK,
            width=max(6, min(len(title), WIDEST_SOURCE)),
        )
        for name, title in titles.items()
    ]


def with_sources(columns: Sequence[Column], sources: Sequence[Column]) -> list[Column]:
    """Insert the columns of sources after the first column, the reward over all."""
    return [*columns[:1], *sources, *columns[1:]]


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns that fit `width` characters, in their order: taken by rank, as long as there is room."""
    kept: set[str] = set()
    for column in sorted(columns, key=lambda column: column.rank):
        width -= GAP + column.width
        if width < 0:
            break
        kept.add(column.key)
    return [column for column in columns if column.key in kept]
