"""`ramet import`: its arguments, and what it says about the folder."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.terminal import Parser, say
from ramet.config.schema import Dtype
from ramet.errors import ConfigError

if TYPE_CHECKING:
    from ramet.export.gguf import Imported


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments)
    if options is None:
        return 0
    if options.source is None or options.out is None:
        raise ConfigError("import: give a file and the folder to write, as in `ramet import model.gguf models/mine`")
    job = importlib.import_module("ramet.export.gguf")
    dtype = Dtype(options.dtype)
    say(report(job.import_gguf(options.source, options.out, dtype=dtype, tokenizer=options.tokenizer)))
    return 0


def report(imported: Imported) -> str:
    words = f"{imported.n_tokens:,} tokens"
    cut = "of another folder" if imported.pre_tokenizer is None else f"text is cut as {imported.pre_tokenizer!r}"
    lines = [
        f"{imported.folder}: {imported.n_parameters:,} parameters in {imported.dtype}, from {imported.source} "
        f"({imported.architecture}; {imported.quantisation})",
        f"tokenizer: {words}, {cut}; read back, all weights are equal to the bit and the tokens are the same",
    ]
    if not imported.has_template:
        lines.append("warning: the file has no chat template; name a template file in model.chat_template")
    return "\n".join(lines)


def _parser() -> Parser:
    parser = Parser(
        prog="ramet import",
        add_help=False,
        usage="ramet import FILE.gguf DIR [--dtype float32|bfloat16] [--tokenizer DIR]",
        description="A Hugging Face folder of a GGUF file, for model.path: weights without quantisation, configuration,"
        " tokenizer with chat template, generation config. It is loaded again and compared before it is moved to "
        "DIR.",
        epilog="What quantisation has rounded stays rounded: numbers differ from the model as it was published.",
    )
    parser.add_argument("source", nargs="?", metavar="FILE.gguf", type=Path, help="the file")
    parser.add_argument("out", nargs="?", metavar="DIR", type=Path, help="the folder to write; must be new or empty")
    parser.add_argument("--dtype", choices=[str(dtype) for dtype in Dtype], default="float32", help="default: float32")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="take the tokenizer from this Hugging Face folder instead"
    )
    return parser
