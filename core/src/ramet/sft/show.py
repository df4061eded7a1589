"""`ramet sft --show N`: the first sequences as they would be trained, with trained and masked parts.

Colours separate the two on a terminal; elsewhere, or with NO_COLOR, marks do, as in `git diff --word-diff`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice

from rich.console import Console
from rich.text import Text

from ramet.config.resolved import Resolved
from ramet.config.schema import SftConfig
from ramet.errors import ConfigError
from ramet.io.json_values import visible
from ramet.models.encoder import Encoder
from ramet.models.loading import load_tokenizer
from ramet.sft.encode import Example
from ramet.sft.encoding import encode
from ramet.sft.prepare import check_data, cut, trace_encoder

TRAINED, MASKED = "bold green", "dim"
OPENING, CLOSING = "{+", "+}"


def show(resolved: Resolved, count: int, console: Console | None = None) -> None:
    """Check the configuration and the data, and print `count` sequences; nothing is trained and no weights are read.

    Raises `ConfigErrors` with every problem found.
    """
    config = resolved.config
    if count < 1:
        raise ConfigError(f"--show={count}: must be at least 1")
    checked = check_data(resolved, _tokenizer_problems(resolved))
    encoder = trace_encoder(config, checked, load_tokenizer(config.model))
    console = console or Console()
    coloured = console.is_terminal and console.color_system is not None and not console.no_color
    _print(console, _legend(coloured))
    examples = (example for conversation in checked.conversations for example in encode(encoder, conversation))
    for number, example in enumerate(islice(examples, count), start=1):
        _print(console, Text(""))
        _print(console, Text(visible(_heading(number, example, config.sft)), style="bold"))
        shown = cut(example, config.sft.max_tokens) if config.sft.truncate else example
        _print(console, _marked(shown, encoder.encoder, coloured))


def _tokenizer_problems(resolved: Resolved) -> list[str]:
    try:
        load_tokenizer(resolved.config.model)
    except ConfigError as error:
        return [str(error)]
    return []


def _legend(coloured: bool) -> Text:
    if coloured:
        return Text.assemble(("trained", TRAINED), "  ", ("masked: prompt and results", MASKED))
    return Text(f"{OPENING}trained{CLOSING}  masked: prompt and results, without marks")


def _heading(number: int, example: Example, sft: SftConfig) -> str:
    fate = "cut" if sft.truncate else "left out"
    too_long = f"; {fate}, longer than sft.max_tokens={sft.max_tokens}" if len(example) > sft.max_tokens else ""
    return f"{number}. {example.where}: {len(example)} tokens, {sum(example.trained)} trained{too_long}"


def _marked(example: Example, encoder: Encoder, coloured: bool) -> Text:
    text = Text()
    for trained, part in _runs(example, encoder):
        if coloured:
            text.append(part, style=TRAINED if trained else MASKED)
        else:
            text.append(f"{OPENING}{part}{CLOSING}" if trained else part)
    return text


def _runs(example: Example, encoder: Encoder) -> Iterator[tuple[bool, str]]:
    """The text of tokens that follow each other and are all trained, or all masked."""
    pairs = zip(example.trained, example.token_ids, strict=True)
    for trained, run in groupby(pairs, key=lambda pair: pair[0]):
        yield bool(trained), visible(encoder.decode(token for _, token in run))


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False)
