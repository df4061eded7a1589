"""Makes the recording of `ramet demo` from the run that `make quickstart MODEL=smollm2` leaves:

    .venv/bin/python scripts/record_demo.py runs/quickstart_smollm2 "2 cores of an AMD EPYC, no GPU"

and, with `--gallery`, those of the site's gallery from the runs of the other quickstarts:

    .venv/bin/python scripts/record_demo.py --gallery runs/quickstart_search

Copies what the table and the report read, without the names of the machine. The recording that is there is
replaced once the new one is complete and takes less than 1 MB, or 300 kB in the gallery.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ramet.report.data import stored_config
from ramet.report.tree import TOKEN_TEXTS, TOKENIZER, TokenizerSplitter
from ramet.rollout.record import read_records
from ramet.rollout.record_files import RecordedFile, recorded_files

OUT = Path(__file__).resolve().parents[1] / "core/src/ramet/demo/quickstart_smollm2"
COPIED = ("metrics.jsonl", "config.yaml", "overrides.txt")
SFT = "sft/metrics.jsonl"  # in the gallery only: the demo's run has three points
GALLERY = Path(__file__).resolve().parent / "docs/gallery"
MAX_BYTES, GALLERY_BYTES = 1_000_000, 300_000
GALLERY_STEPS = 6


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0] + ".")
    parser.add_argument("run", type=Path, help="the run's directory, finished")
    parser.add_argument("hardware", nargs="?", help="what it ran on, as the demo prints it")
    parser.add_argument("--gallery", action="store_true", help="record it for the site's gallery instead")
    options = parser.parse_args()
    run = options.run
    if not (run / "summary.json").is_file():
        parser.error(f"{run}: no summary.json; a finished quickstart leaves one")
    if not options.gallery and options.hardware is None:
        parser.error("name the hardware, which the demo prints")
    kept, most_bytes = (GALLERY / run.name, GALLERY_BYTES) if options.gallery else (OUT, MAX_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / kept.name
        for name in (*COPIED, SFT) if options.gallery else COPIED:
            if (run / name).is_file():
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run / name, out / name)
        files = recorded_files(run)
        copy_rollouts(run, out, spread(files, GALLERY_STEPS) if options.gallery else files)
        manifest = write_manifest(run, out)
        if options.gallery:
            shutil.copyfile(run / "summary.json", out / "summary.json")
        else:
            write_facts(json.loads((run / "summary.json").read_text()), manifest, options.hardware, out)
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        if size >= most_bytes:
            raise SystemExit(f"{run}: its recording has {size:,} bytes, {most_bytes:,} or more; {kept} stays as it was")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(out, kept)
    print(f"{kept}: {size:,} bytes")
    return 0


def spread(files: Sequence[RecordedFile], n: int) -> list[RecordedFile]:
    """The first, the last, and evenly spaced ones between: n of them at most."""
    if len(files) <= n:
        return list(files)
    return [files[round(i * (len(files) - 1) / (n - 1))] for i in range(n)]


def copy_rollouts(run: Path, out: Path, files: Iterable[RecordedFile]) -> None:
    """Pack the records closely, and write the text of each of their tokens, so that no tokenizer is needed."""
    split = TokenizerSplitter(run / "model" / TOKENIZER)
    texts: dict[int, str] = {}
    for file in files:
        packed = out / "rollouts" / file.path.name
        packed.parent.mkdir(exist_ok=True)
        packed.write_bytes(gzip.compress(gzip.decompress(file.path.read_bytes()), 9, mtime=0))
        for segment in sampled_segments(file.path):
            if pieces := split(segment):
                texts.update(zip(segment.token_ids, pieces, strict=True))
    write_json(out, "tokenizer/" + TOKEN_TEXTS, {str(token): texts[token] for token in sorted(texts)}, indent=0)


def sampled_segments(path: Path) -> Iterator[Any]:
    for record in read_records(path):
        for scored in record.group.rollouts:
            yield from (segment for segment in scored.rollout.segments if segment.is_sampled)


def write_manifest(run: Path, out: Path) -> dict[str, Any]:
    """Leave out what names the machine."""
    manifest: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    if manifest["git"] is None or manifest["git"]["dirty"]:
        raise SystemExit(f"{run}: recorded from no commit; commit first, so that the demo can name it")
    manifest["versions"]["platform"] = f"{sys.platform}"
    for attempt in manifest["attempts"]:
        attempt.update(host="", pid=0)
    write_json(out, "manifest.json", manifest)
    return manifest


def write_facts(summary: dict[str, Any], manifest: dict[str, Any], hardware: str, out: Path) -> None:
    """Write what `ramet demo` prints, and the table of the report."""
    before, after, difference = (summary[name]["held out"] for name in ("after_sft", "after_rl", "rl_minus_sft"))
    estimates = [
        [round(estimate["mean"], 4), round(estimate["half_width"], 4)]
        for estimate in (before["estimate"], after["estimate"], difference)
    ]
    steps = max(json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines())
    facts = {
        "model": f"SmolLM2-135M-Instruct ({stored_config(out).model.dtype})",
        "learns": "compute every step of a word problem with the Python tool",
        "algorithm": "ARPO",
        "hardware": hardware,
        "date": manifest["attempts"][0]["started"][:10],
        "commit": manifest["git"]["sha"],
        "steps": steps,
        "seconds": summary["seconds_by_phase"]["rl"],
        "problems": len(before["accuracy"]),
        "before": estimates[0],
        "after": estimates[1],
        "change": estimates[2],
    }
    write_json(out, "recording.json", facts)
    table = {"accuracy_before": estimates[0][0], "accuracy_after": estimates[1][0]}
    table |= {"half_of_95%_interval_before": estimates[0][1], "half_of_95%_interval_after": estimates[1][1]}
    for name in ("valid_tool_use", "calls"):
        table |= {f"{name}_before": round(before[name], 4), f"{name}_after": round(after[name], 4)}
    write_json(out, "summary.json", table)


def write_json(out: Path, name: str, body: object, indent: int = 1) -> None:
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text(json.dumps(body, indent=indent) + "\n")


if __name__ == "__main__":
    sys.exit(main())
