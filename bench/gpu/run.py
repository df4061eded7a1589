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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import first
import torch
from engine import run_engine
from harness import print_table, write_results
from packing import Difference, check_packing, check_sharing
from sharded import Pass, run_sharded
from sizes import CPU, GPU, Size, Sizes, make_model
from transformers.utils.import_utils import is_flash_attn_2_available
from transformers.utils.logging import disable_progress_bar
from update import run_update

from ramet.config.schema import Attention, ModelConfig
from ramet.models.varlen import has_varlen

LIMIT_S = 460
WITH_VLLM_S = 120  # more, where it is installed
UPDATES = (  # (checkpointing, compile, attention), the expected seconds
    ((True, False, Attention.AUTO), 20),
    ((False, False, Attention.AUTO), 20),
    ((False, True, Attention.VARLEN), 45),
    ((False, True, Attention.AUTO), 45),
)
BLOCKS = (  # most important first
    (Pass(attention=Attention.VARLEN, checkpointing=False), 20),
    (Pass(attention=Attention.VARLEN), 15),
    (Pass(attention=Attention.VARLEN, groups=True), 15),
    (Pass(attention=Attention.VARLEN, groups=True, share=True), 15),
    (Pass(attention=Attention.FLEX, groups=True, share=True), 30),
    (Pass(attention=Attention.SDPA), 15),
    (Pass(attention=Attention.FLASH), 15),
    (Pass(attention=Attention.SDPA, groups=True, share=True), 15),
    (Pass(attention=Attention.VARLEN, checkpointing=False, compiled=True), 45),
)
REHEARSED = tuple(
    (Pass(attention=Attention.SDPA, groups=groups, share=share), 1)
    for groups, share in ((False, False), (True, False), (True, True))
)
GIB = 2**30
Cells = dict[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """What fills one row or more."""

    size: Size
    name: str
    seconds: float  # that it is expected to take on an H200, guessed
    measure: Callable[[], None]
    attention: Attention = Attention.AUTO


class Bench:
    """Runs part after part as long as there is time. `cells[row][column]` is the table."""

    def __init__(self, sizes: Sizes, folder: Path, *, cuda: bool, limit_s: float, rows: Path | None = None) -> None:
        """Models are made in `folder`. A part that would not be done after `limit_s` does not begin. `rows`: a file to
        which each row is added as soon as it is there.
        """
        self._limit_s = limit_s
        self.cuda = cuda
        self.sizes = sizes
        self._folder = folder
        self._rows = rows
        self._models: dict[str, ModelConfig] = {}
        self.cells: dict[str, Cells] = {}
        self.raw: list[dict[str, Any]] = []
        self._started = time.monotonic()

    def run(self, only: str = "") -> None:
        """All parts, or those whose names begin with one of `only`, a list with commas."""
        for part in (*self._first(), *self._vllm(), *self._exact(), *self._blocks(), *self._updates()):
            if part.name.startswith(tuple(only.split(","))):
                self._part(part)

    def _first(self) -> Iterator[Part]:
        """What reading found to be in doubt, with the smallest model."""
        size = self.sizes.small
        on_cuda = (Attention.SDPA, Attention.FLASH, Attention.VARLEN, Attention.FLEX)
        attentions = on_cuda if self.cuda else (Attention.SDPA,)
        for attention in attentions:
            name, start = f"a rank, attention {attention}", partial(first.start_and_reserve, size=size)
            check = partial(self._check, size, name, partial(start, attention=attention))
            yield Part(size, name, 12, check, attention)
        checks: dict[str, tuple[float, Callable[[ModelConfig], str]]] = {
            "memory of another process": (15, first.exported),
            "the recorder of an engine": (5, first.recorder),
            "micro-batches of an update": (10, first.update),
            "weights to engines": (8, first.transports),
            "offload and staging": (8, first.host_copies),
            "drawing tokens": (3, first.draws),
            "pinned memory": (2, first.pinned),
            "a checkpoint": (6, first.checkpoint),
        }
        for name, (seconds, measure) in checks.items():
            yield Part(size, name, seconds, partial(self._check, size, name, measure))

    def _vllm(self) -> Iterator[Part]:
        """A rank and an engine that share the GPU."""
        size = self.sizes.small
        for name, seconds, sync_check in (("vllm", 100, False), ("vllm, waits for the GPU", 80, True)):
            yield Part(size, name, seconds, partial(self._with_vllm, size, name, sync_check=sync_check))

    def _with_vllm(self, size: Size, name: str, *, sync_check: bool) -> None:
        if find_spec("vllm") is None:
            self._write(size, name, "vLLM is not installed", {})
            return
        if sync_check and not self.cuda:
            self._write(size, name, "needs a GPU", {})
            return
        from with_vllm import check_vllm

        def write(row: str, text: str) -> None:
            self._write(size, row, text, {})

        check_vllm(size, self._model(size), write, sync_check=sync_check)

    def _blocks(self) -> Iterator[Part]:
        """A rank among several of a model that needs them: attention, checkpointing, prefixes computed once."""
        size = self.sizes.blocks
        for how, seconds in BLOCKS if self.cuda else REHEARSED:
            name = f"blocks, {_words(how)}"
            yield Part(size, name, seconds, partial(self._sharded, size, name, how), how.attention)

    def _exact(self) -> Iterator[Part]:
        for name, check in (("packed", self._packing), ("prefixes once", self._sharing)):
            yield Part(self.sizes.small, f"{name} against alone", 20, partial(check, self.sizes.small))
        yield Part(self.sizes.middle, "engine torch", 45, partial(self._engine, self.sizes.middle))

    def _updates(self) -> Iterator[Part]:
        size = self.sizes.middle
        for (checkpointing, compiled, attention), seconds in UPDATES if self.cuda else UPDATES[1:2]:
            name = f"update{' with checkpointing' * checkpointing}{' compiled' * compiled}, attention {attention}"
            yield Part(size, name, seconds, partial(self._update, size, attention, checkpointing, compiled), attention)
        for compiled in (False, True) if self.cuda else (False,):
            name = "FSDP, one rank, with checkpointing" + " compiled" * compiled
            how = Pass(compiled=compiled, compare=True)
            yield Part(size, name, 50 if compiled else 25, partial(self._sharded, size, name, how))

    def _model(self, size: Size) -> ModelConfig:
        if size.name not in self._models:
            folder = self._folder / str(len(self._models))
            folder.mkdir()
            self._models[size.name] = make_model(size, folder, torch.device("cuda" if self.cuda else "cpu"))
        return self._models[size.name]

    def _check(self, size: Size, name: str, check: Callable[[ModelConfig], str]) -> None:
        self._write(size, name, check(self._model(size)), {})

    def _packing(self, size: Size) -> None:
        lengths, vocab = [700, 60, 300, 5] if self.cuda else [9, 3, 12, 5], size.shape["vocab_size"]
        found = check_packing(self._model(size), cuda=self.cuda, lengths=lengths, vocab=vocab)
        self._differences(size, "packed", found)

    def _sharing(self, size: Size) -> None:
        response, vocab = 600 if self.cuda else 12, size.shape["vocab_size"]
        found = check_sharing(self._model(size), cuda=self.cuda, response=response, vocab=vocab)
        self._differences(size, "prefixes once", found)

    def _differences(self, size: Size, what: str, found: list[Difference]) -> None:
        for one in found:
            self._write(size, f"{what} against alone, {one.attention}, {one.dtype}", str(one), asdict(one))

    def _engine(self, size: Size) -> None:
        found = run_engine(size, self._model(size))
        self._write(size, f"engine torch, {size.slots} slots", f"{found.tokens_per_s:,.0f} tokens/s", asdict(found))
        gap = f"mean {found.gap_mean:.1e}, p99 {found.gap_p99:.1e} nats"
        self._write(size, "engine against trainer", gap, {})

    def _update(self, size: Size, attention: Attention, checkpointing: bool, compiled: bool) -> None:
        model = replace(self._model(size), attention=attention)
        done = run_update(size, model, checkpointing=checkpointing, compiled=compiled)
        if done is None:
            return
        speed = f"{_speed(done.tokens_per_s, done.utilisation)}, {done.budget} a micro-batch"
        self._write(size, f"update, {done.options}", speed, asdict(done))
        self._write(size, f"peak memory, {done.options}", _peak(done.peak, done.planned), {})

    def _sharded(self, size: Size, name: str, how: Pass) -> None:
        done = run_sharded(size, self._model(size), how)
        texts = [_speed(done.tokens_per_s, done.utilisation)]
        texts += [f"{100 * done.unique_share:.0f} % unique"] if how.groups else []
        texts += [] if done.gap_p99 is None else [f"p99 gap {done.gap_p99:.1e} nats"]
        self._write(size, name, ", ".join([*texts, _peak(done.peak, done.planned)]), asdict(done))

    def _part(self, part: Part) -> None:
        """A part that fails leaves its error in the table, and the others go on."""
        size, what = part.size, part.name
        if lacking := _lacking(part.attention):
            self._write(size, what, lacking, {})
            return
        if time.monotonic() - self._started + part.seconds > self._limit_s:
            self._write(size, what, "no time was left", {})
            return
        logging.info("%s: %s", size.name, what)
        try:
            part.measure()
        except Exception as error:  # Triton's errors and FSDP's assertions among them
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


def _lacking(attention: Attention) -> str:
    """Why this image has no such attention, which is nothing wrong."""
    if attention is Attention.FLASH and not is_flash_attn_2_available():
        return "flash-attn is not installed"
    if attention is Attention.FLEX and not find_spec("triton"):
        return "Triton is not installed"
    return "this torch has no such kernel" if attention is Attention.VARLEN and not has_varlen() else ""


def _peak(peak: int | None, planned: int) -> str:
    if peak is None:
        return "peak not measured on a CPU"
    return f"peak {peak / GIB:.1f} GiB, plan {planned / GIB:.1f} (ratio {planned / peak:.2f})"


def _words(how: Pass) -> str:
    """A row's name."""
    rows = (", groups, prefixes once" if how.share else ", groups, every token") if how.groups else ""
    return f"{how.attention}{', checkpointing' * how.checkpointing}{', compiled' * how.compiled}{rows}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu-rehearsal", action="store_true", help="tiny shapes on a CPU, to try the script")
    parser.add_argument("--only", default="", metavar="NAME", help="only parts whose names begin so, as vllm,blocks")
    limit_s = LIMIT_S + (WITH_VLLM_S if find_spec("vllm") else 0)
    parser.add_argument("--limit-s", type=float, default=limit_s, metavar="S", help="(default: %(default)s)")
    given = parser.parse_args()
    rehearsal = given.cpu_rehearsal
    disable_progress_bar()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    sizes = CPU if rehearsal else GPU
    out = os.environ.get("OUT")
    with tempfile.TemporaryDirectory(prefix="ramet-gpu-") as folder:
        rows = None if out is None else Path(out) / "rows.jsonl"
        if rows is not None:
            rows.parent.mkdir(parents=True, exist_ok=True)
        bench = Bench(sizes, Path(folder), cuda=not rehearsal, limit_s=given.limit_s, rows=rows)
        bench.run(given.only)
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
