"""`ramet export`: its arguments, and its report about the folder it wrote."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.terminal import Parser, run_folder, say
from ramet.config.schema import Dtype
from ramet.errors import ConfigError

if TYPE_CHECKING:
    from ramet.export.job import Exported

USAGE = """ramet export RUN DIR [--step N] [--dtype float32|bfloat16] [--model DIR]
       ramet export --adapter RUN DIR [--step N] [--model DIR]
       ramet export --from-verl SHARDS DIR [--dtype float32|bfloat16] [--model DIR]
       each also with [--trust-remote-code]"""


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments)
    if options is None:
        return 0
    if options.source is None or options.out is None:
        raise ConfigError("export: give a run and the folder to write, as in `ramet export runs/NAME model`")
    dtype = None if options.dtype is None else Dtype(options.dtype)
    job = importlib.import_module("ramet.export.job")
    if options.adapter and (options.from_verl or dtype is not None):
        other = "--from-verl" if options.from_verl else "--dtype"
        raise ConfigError(f"--adapter writes what a run has trained, in float32; leave {other} out")
    common = {"model": options.model, "trust_remote_code": options.trust_remote_code}
    if options.from_verl:
        if options.step is not None:
            raise ConfigError("--step chooses a checkpoint of a run; with --from-verl name the folder of its shards")
        exported = job.export_verl(options.source, options.out, dtype=dtype or Dtype.BFLOAT16, **common)
    elif options.adapter:
        exported = job.export_adapter(run_folder(options.source), options.out, step=options.step, **common)
    else:
        exported = job.export_run(run_folder(options.source), options.out, dtype=dtype, step=options.step, **common)
    say(report(exported))
    return 0


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
        "generation config. It is loaded again and compared before it is moved to DIR.",
    )
    parser.add_argument(
        "source", nargs="?", metavar="RUN", type=Path, help="the run's directory, or its name under runs/"
    )
    parser.add_argument("out", nargs="?", metavar="DIR", type=Path, help="the folder to write; must be new or empty")
    parser.add_argument("--step", type=int, help="after which step; default: the newest whole checkpoint")
    parser.add_argument(
        "--dtype", choices=[str(dtype) for dtype in Dtype], help="default: the run's model.dtype; --from-verl: bfloat16"
    )
    parser.add_argument("--model", type=Path, help="where configuration and tokenizer are, if not where expected")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="let Python code of the model's folder run; a run's configuration alone cannot allow it",
    )
    parser.add_argument(
        "--adapter", action="store_true", help="only the adapter of a run with policy.lora_rank, for peft"
    )
    parser.add_argument(
        "--from-verl", action="store_true", help="RUN is a folder of FSDP shards: model_world_size_W_rank_R.pt"
    )
    return parser
