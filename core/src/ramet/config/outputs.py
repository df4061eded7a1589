"""Check of a job's outputs against its inputs: an output that is an input, or a folder around one, is refused.

Files are not only compared by name: links are followed first, and a pattern means the files that it matches.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from ramet.config.schema import Config

REFUSED = "; nothing of yours is overwritten, so name another path"


def check_outputs(config: Config, job: str) -> list[str]:
    """Every output of `job` that equals or contains a model, a tokenizer, a chat template or data."""
    inputs = list(_inputs(config))
    problems: dict[tuple[str, str], str] = {}  # one for each pair of keys: a pattern may match many files
    for key, output in _outputs(config, job):
        for name, path in inputs:
            if (key, name) not in problems and (how := _touches(output, path)):
                problems[key, name] = f"{key}: {str(output)!r} {how} {name}={path}{REFUSED}"
    return [*problems.values(), *_around_the_run(config, job)]


def _outputs(config: Config, job: str) -> Iterator[tuple[str, Path]]:
    if config.run.name is not None:
        yield "run.root, run.name", Path(config.run.root) / config.run.name
    if job == "sft" and config.run.out is not None:
        yield "run.out", Path(config.run.out)
    if job == "eval" and config.run.out is not None:
        yield "run.out", Path(config.run.out)
        yield "run.out", Path(f"{config.run.out}.partial.jsonl")
        for suffix in (".tasks.jsonl", ".rollouts.jsonl.gz"):
            yield "run.out", Path(f"{config.run.out.removesuffix('.json')}{suffix}")


def _inputs(config: Config) -> Iterator[tuple[str, Path]]:
    model = config.model
    paths = {"model.path": model.path, "model.tokenizer": model.tokenizer, "model.chat_template": model.chat_template}
    paths["train.teacher"] = config.train.teacher
    for key, text in paths.items():
        if text and text != "???":
            yield key, Path(text)
    for key, patterns in (
        ("data.train", config.data.train),
        ("data.valid", config.data.valid),
        ("sft.data", config.sft.data),
        ("sft.valid", config.sft.valid),
    ):
        for pattern in (source for source in patterns if not source.startswith("benchmark:")):
            listed, named, _ = pattern.rpartition(".json:")  # a data set of a `dataset_info.json`
            pattern = f"{listed}.json" if named else pattern
            path = Path(os.path.expanduser(pattern))
            matches = [] if path.exists() else sorted(glob.glob(str(path), recursive=True))
            yield from ((key, Path(match)) for match in matches or [str(path)])


def _touches(output: Path, path: Path) -> str | None:
    """How `output` would replace `path`, or the link that `path` is; None if it would not."""
    outside = output.resolve()
    inputs = (path.resolve(), path.parent.resolve() / path.name)
    if any(_same(outside, input_path) for input_path in inputs):
        return "is"
    return "holds" if any(_same(outside, parent) for input_path in inputs for parent in input_path.parents) else None


def _same(first: Path, other: Path) -> bool:
    """Whether two paths are one file, also under names that a file system takes for the same, or mounted twice."""
    try:
        return first == other or first.samefile(other)
    except OSError:  # one of them is not there
        return False


def _around_the_run(config: Config, job: str) -> Iterator[str]:
    """A model folder is replaced completely when the training is done, and must not hold the run."""
    if job == "sft" and config.run.out is not None:
        run = Path(config.run.root) / (config.run.name or "NAME")
        if how := _touches(Path(config.run.out), run):
            yield f"run.out: {config.run.out!r} {how} the run directory {run}{REFUSED}"
