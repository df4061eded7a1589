"""Measures one GPU and prints one table; how it is started and what it needs is in `run.sh`."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import first
import torch
from engine import run_engine
from harness import print_table, write_results
from packing import check_packing
from sharded import run_sharded
from sizes import CPU, GPU, Size, make_model
from transformers.utils.logging import disable_progress_bar
from update import run_update

from ramet.config.schema import Attention, ModelConfig
from ramet.errors import RametError

LIMIT_S = 420  # after it no further part begins
UPDATES = (  # (checkpointing, compile, attention)
    (False, False, Attention.AUTO),
    (False, True, Attention.AUTO),
    (False, True, Attention.VARLEN),
    (True, False, Attention.AUTO),
    (True, True, Attention.AUTO),
)
GIB = 2**30
Cells = dict[str, str]


class Bench:
    """Runs part after part as long as there is time. `cells[row][column]` is the table."""

    def __init__(self, *, cuda: bool, rows: Path | None = None) -> None:
        """`rows`: a file to which each row is added as soon as it is there."""
        self.cuda = cuda
        self._rows = rows
        self.cells: dict[str, Cells] = {}
        self.raw: list[dict[str, Any]] = []
        self._started = time.monotonic()

    def measure(self, size: Size) -> None:
        device = torch.device("cuda" if self.cuda else "cpu")
        with tempfile.TemporaryDirectory(prefix="ramet-gpu-") as folder:
            model = make_model(size, Path(folder), device)
            if not self.cells:
                self._first(size, model)
            self._part(size, "packing", lambda: self._packing(size, model))
            self._part(size, "engine torch", lambda: self._engine(size, model))
            for checkpointing, compiled, attention in UPDATES if self.cuda else UPDATES[:1]:
                name = f"update{' with checkpointing' * checkpointing}{' compiled' * compiled}, attention {attention}"
                own = replace(model, attention=attention)
                self._part(size, name, partial(self._update, size, own, checkpointing, compiled))
            for compiled in (False, True) if self.cuda else (False,):
                name = "FSDP, one rank, with checkpointing" + " compiled" * compiled
                self._part(size, name, partial(self._sharded, size, model, name, compiled))

    def _first(self, size: Size, model: ModelConfig) -> None:
        """What reading found to be in doubt, with the smallest model."""
        on_cuda = (Attention.SDPA, Attention.FLASH, Attention.VARLEN, Attention.FLEX)
        attentions = on_cuda if self.cuda else (Attention.SDPA,)
        parts: dict[str, Callable[[], str]] = {
            f"a rank, attention {attention}": partial(first.start_and_reserve, model, size, attention)
            for attention in attentions
        }
        parts["weights to engines"] = partial(first.transports, model)
        parts["drawing tokens"] = partial(first.draws, model)
        parts["pinned memory"] = partial(first.pinned, model)
        parts["a checkpoint"] = partial(first.checkpoint, model)
        for name, check in parts.items():
            self._part(size, name, lambda name=name, check=check: self._write(size, name, check(), {}))  # type: ignore[misc]

    def _packing(self, size: Size, model: ModelConfig) -> None:
        lengths = [700, 60, 300, 5] if self.cuda else [9, 3, 12, 5]
        for one in check_packing(model, cuda=self.cuda, lengths=lengths, vocab=size.shape["vocab_size"]):
            self._write(size, f"packed against alone, {one.attention}, {one.dtype}", str(one), asdict(one))

    def _engine(self, size: Size, model: ModelConfig) -> None:
        found = run_engine(size, model)
        self._write(size, f"engine torch, {size.slots} slots", f"{found.tokens_per_s:,.0f} tokens/s", asdict(found))
        gap = f"mean {found.gap_mean:.1e}, p99 {found.gap_p99:.1e} nats"
        self._write(size, "engine against trainer", gap, {})

    def _update(self, size: Size, model: ModelConfig, checkpointing: bool, compiled: bool) -> None:
        done = run_update(size, model, checkpointing=checkpointing, compiled=compiled)
        if done is None:
            return
        speed = f"{_speed(done.tokens_per_s, done.utilisation)}, {done.budget} a micro-batch"
        self._write(size, f"update, {done.options}", speed, asdict(done))
        peak = "not measured on a CPU"
        if done.peak is not None:
            peak = f"{done.peak / GIB:.1f} GiB, plan {done.planned / GIB:.1f} (ratio {done.planned / done.peak:.2f})"
        self._write(size, f"peak memory, {done.options}", peak, {})

    def _sharded(self, size: Size, model: ModelConfig, name: str, compiled: bool) -> None:
        done = run_sharded(size, model, compiled=compiled)
        text = f"{_speed(done.tokens_per_s, done.utilisation)}, p99 gap {done.gap_p99:.1e} nats"
        self._write(size, name, text, asdict(done))

    def _part(self, size: Size, what: str, measure: Callable[[], None]) -> None:
        """A part that fails leaves its error in the table, and the others go on."""
        if time.monotonic() - self._started > LIMIT_S:
            self._write(size, what, "no time was left", {})
            return
        logging.info("%s: %s", size.name, what)
        try:
            measure()
        except (RuntimeError, ValueError, OSError, ImportError, RametError) as error:
            logging.exception("%s: %s failed", size.name, what)
            self._write(size, what, f"FAILED: {type(error).__name__}: {str(error)[:80]}", {})
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def _write(self, size: Size, row: str, text: str, raw: dict[str, Any]) -> None:
        self.cells.setdefault(row, {})[size.name] = text
        if self._rows is not None:
            with self._rows.open("a", encoding="utf-8") as file:  # a run that is cut off leaves what it had
                file.write(json.dumps({"size": size.name, "row": row, "text": text}) + "\n")
        if raw:
            self.raw.append({"size": size.name, "part": row, **raw})


def _speed(tokens_per_s: float, utilisation: float | None) -> str:
    busy = "" if utilisation is None else f" = {100 * utilisation:.1f} % of 989 TFLOP/s"
    return f"{tokens_per_s:,.0f} tokens/s{busy}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu-rehearsal", action="store_true", help="tiny shapes on a CPU, to try the script")
    rehearsal = parser.parse_args().cpu_rehearsal
    disable_progress_bar()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    sizes = CPU if rehearsal else GPU
    folder = os.environ.get("OUT")
    bench = Bench(cuda=not rehearsal, rows=None if folder is None else Path(folder) / "rows.jsonl")
    for size in sizes:
        bench.measure(size)
    where = "a CPU (rehearsal: tiny shapes, no measurement)" if rehearsal else torch.cuda.get_device_name()
    print(f"{where}, torch {torch.__version__}")
    names = [size.name for size in sizes]
    print_table(["", *names], [[row, *(cells.get(name, "-") for name in names)] for row, cells in bench.cells.items()])
    if not rehearsal:
        write_results("gpu", {"device": where, "sizes": [asdict(size) for size in sizes]}, bench.raw, bench.cells)
    wrong = [
        row for row, cells in bench.cells.items() for text in cells.values() if "FAILED" in text or "LEAKS" in text
    ]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
