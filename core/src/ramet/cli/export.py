"""`ramet export`: its arguments, and its report about the folder it wrote."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.terminal import Parser, run_folder, say
from ramet.config.schema import Dtype
from ramet.errors import ConfigError, RametError
from ramet.export.folder import require_new
from ramet.hub import REPLACED, cached_name, make_repository, model_name, push
from ramet.runs.manifest import read_run

if TYPE_CHECKING:
    from ramet.export.job import Exported

USAGE = """ramet export RUN DIR [--step N] [--dtype float32|bfloat16] [--model DIR]
       ramet export --adapter RUN DIR [--step N] [--model DIR]
       ramet export --from-verl SHARDS DIR [--dtype float32|bfloat16] [--model DIR]
       each also with [--trust-remote-code] [--push OWNER/NAME]"""


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments)
    if options is None:
        return 0
    if options.source is None or options.out is None:
        raise ConfigError("export: give a run and the folder to write, as in `ramet export runs/NAME model`")
    if str(options.out).partition("/")[0].endswith(":"):  # a path has one slash of `hf://`
        raise ConfigError(f"export: {options.out} is not a folder; name one, and push it with --push OWNER/NAME")
    dtype = None if options.dtype is None else Dtype(options.dtype)
    if options.adapter and (options.from_verl or dtype is not None):
        other = "--from-verl" if options.from_verl else "--dtype"
        raise ConfigError(f"--adapter writes what a run has trained, in float32; leave {other} out")
    if options.from_verl and options.step is not None:
        raise ConfigError("--step chooses a checkpoint of a run; with --from-verl name the folder of its shards")
    if options.push is not None:
        _before_push(options)
    say(report(_exported(options, dtype)))
    if options.push is not None:
        say(f"pushed to {_push(options.out, options.push)}")
    return 0


def _exported(options: argparse.Namespace, dtype: Dtype | None) -> Exported:
    job = importlib.import_module("ramet.export.job")
    common = {"model": options.model, "trust_remote_code": options.trust_remote_code, "name": options.push}
    exported: Exported
    if options.from_verl:
        exported = job.export_verl(options.source, options.out, dtype=dtype or Dtype.BFLOAT16, **common)
    elif options.adapter:
        exported = job.export_adapter(run_folder(options.source), options.out, step=options.step, **common)
    else:
        exported = job.export_run(run_folder(options.source), options.out, dtype=dtype, step=options.step, **common)
    return exported


def _before_push(options: argparse.Namespace) -> None:
    """Raise for what is wrong here, then for what the hub refuses: after the export an hour may have passed."""
    require_new(options.out)
    if not options.from_verl:
        saved = read_run(run_folder(options.source))
        base = options.model or saved.model.path
        if options.adapter and cached_name(base) is None and model_name(base) is None:
            raise ConfigError(
                f"--push: the adapter is of no use without its base model, {base}, which is a folder of this machine; "
                "leave --adapter out, or push the base first and name it with --model OWNER/NAME"
            )
    try:
        make_repository(options.push)
    except ConfigError as error:
        raise ConfigError(f"--push: {error}") from error


def _push(folder: Path, id: str) -> str:
    """Return the page of the commit."""
    try:
        return push(folder, id)
    except RametError as error:
        deleted = " ".join(f"--delete {shlex.quote(pattern)}" for pattern in REPLACED)
        upload = f"hf upload {id} {shlex.quote(str(folder))} {deleted}"
        raise type(error)(f"--push: {error}. {folder} is complete, and this uploads it: {upload}") from error


def report(exported: Exported) -> str:
    compared = exported.comparison
    rounded = f", rounded to {exported.dtype}" if exported.dtype is Dtype.BFLOAT16 else ""
    where = "recorded sequences" if exported.recorded else "sequences of random tokens"
    return f"""{exported.folder}: {exported.n_parameters:,} parameters in {exported.dtype}, from {exported.source}
read back: all weights are equal to the bit to those in {exported.source}{rounded}
log-probabilities of {compared.n_tokens} tokens in {compared.n_sequences} {where}: largest difference \
{compared.largest:.3g}, mean {compared.mean:.3g} from the trained policy in float32; read back \
{compared.read_back:.3g} (allowed: {compared.threshold:g})"""


def _parser() -> Parser:
    parser = Parser(
        prog="ramet export",
        add_help=False,
        usage=USAGE,
        description="A Hugging Face folder of a trained policy: weights, configuration, tokenizer with chat template, "
        "generation config, model card. It is loaded again and compared before it is moved to DIR.",
    )
    parser.add_argument(
        "source", nargs="?", metavar="RUN", type=Path, help="the run's directory, or its name under runs/"
    )
    parser.add_argument("out", nargs="?", metavar="DIR", type=Path, help="the folder to write; must be new or empty")
    parser.add_argument("--step", type=int, help="after which step; default: the newest complete checkpoint")
    parser.add_argument(
        "--dtype", choices=[str(dtype) for dtype in Dtype], help="default: the run's model.dtype; --from-verl: bfloat16"
    )
    parser.add_argument(
        "--model", help="where configuration and tokenizer are, if not where expected: a folder, or OWNER/NAME"
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="let Python code of the model's folder run; a run's configuration cannot allow it",
    )
    parser.add_argument(
        "--push",
        metavar="OWNER/NAME",
        help="also upload DIR to the Hugging Face hub; a new repository there is private",
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="only the adapter of a run with policy.lora_rank or sft.lora_rank, for peft",
    )
    parser.add_argument(
        "--from-verl", action="store_true", help="RUN is a folder of FSDP shards: model_world_size_W_rank_R.pt"
    )
    return parser
