"""Everything before the training: checks, all reported together, then the encoded examples."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from transformers import PreTrainedTokenizerBase

from ramet.components.build import Components
from ramet.components.prompts import check_prompts, task_prompts
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.checks import check
from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.errors import ConfigError, MissingHere, RametError, raise_all, set_aside_missing
from ramet.models.check import check_model
from ramet.models.encoder import Encoder
from ramet.models.loading import load_tokenizer
from ramet.planning.placement import Machine
from ramet.sft.conversations import Conversation, SftData, read_data
from ramet.sft.encode import Example, TraceEncoder
from ramet.sft.output import may_replace
from ramet.sft.strategies import check_strategy
from ramet.sft.world import launched_world
from ramet.tracking.trackers import check_trackers
from ramet.types import RolloutStep, TraceReader

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSft:
    """What the training needs, and what the summary tells about the data."""

    examples: list[Example]
    rows: int  # trained on
    too_long: int  # rows left out
    unread: int  # rows kept in which a tool result seems to be trained on
    fingerprint: str  # of the data files
    tokenizer: PreTrainedTokenizerBase

    @property
    def trained_tokens(self) -> int:
        """In one pass over the examples."""
        return sum(sum(example.trained) for example in self.examples)


@runtime_checkable
class _Readable(RolloutStep, TraceReader, Protocol):
    """A rollout step whose written traces SFT can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSft:
    """What is encoded, and how, once everything that `ramet sft` is told was checked."""

    data: SftData
    step: _Readable
    tools: ToolNames
    missing: Sequence[MissingHere] = ()  # of a plan for another machine: what this one lacks


def prepare(resolved: Resolved) -> PreparedSft:
    """Check everything that `ramet sft` is told, then encode. Raises `ConfigErrors` with every problem found."""
    return encode_checked(resolved.config, check_sft(resolved))


def check_sft(resolved: Resolved, elsewhere: Machine | None = None) -> CheckedSft:
    """Check everything but whether the rows can be encoded. `elsewhere`: a plan for this other machine, for which this
    one may lack weights, tokenizer and packages. Raises `ConfigErrors` with every problem found.
    """
    config = resolved.config
    data = read_data(config.sft.data)
    problems = [*check(resolved, "sft"), *check_model(config.model), *data.problems]
    problems += [
        *check_strategy(config, launched_world(), elsewhere),
        *check_trackers(config.trackers),
        *check_out(config),
    ]
    missing = set_aside_missing(problems) if elsewhere is not None else []
    step, tools = _parts(config, problems)
    problems += [] if problems or step is None else check_prompts(step, config, tools)
    raise_all(problems)
    assert step is not None
    return CheckedSft(data=data, step=step, tools=tools, missing=missing)


def encode_checked(config: Config, checked: CheckedSft) -> PreparedSft:
    """With the model's tokenizer. Raises `ConfigError`."""
    step, tools = checked.step, checked.tools
    tokenizer = load_tokenizer(config.model)
    encoder = TraceEncoder(
        Encoder(tokenizer, template_kwargs=config.model.chat_template_kwargs),
        step,
        tools=list(tools.schemas),
        prompt=task_prompts(step, config, tools),
    )
    return _encoded(encoder, checked.data, config.sft.max_tokens, tokenizer)


def check_out(config: Config) -> list[str]:
    """Problems with `sft.out`: it may replace a model that `ramet sft` has written, and nothing else."""
    if config.sft.out is None:
        return []
    out = Path(config.sft.out)
    if not may_replace(out):
        return [f"sft.out: {str(out)!r} is there already, and not written by `ramet sft`; give a new folder"]
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        return [f"sft.out: {str(out)!r} cannot be made, because {str(parent)!r} is no folder that can be written to"]
    return []


def _parts(config: Config, problems: list[str]) -> tuple[_Readable | None, ToolNames]:
    """The rollout step and the tools; what keeps them from being built is added to `problems`."""
    step: _Readable | None = None
    tools = ToolNames()
    try:
        built = Components(config).step
        step = built if isinstance(built, _Readable) else None
        if step is None:
            problems.append(
                f"rollout_step: {config.rollout_step.name!r} cannot read traces (it has no `read` and `result`), so "
                "what the policy writes cannot be told from what is inserted; choose a step that can, such as 'tags'"
            )
    except RametError as error:
        problems.append(str(error))
    try:
        tools = tool_names(config)
    except RametError as error:
        problems.append(str(error))
    return step, tools


def _encoded(encoder: TraceEncoder, data: SftData, max_tokens: int, tokenizer: PreTrainedTokenizerBase) -> PreparedSft:
    """A row stays out as a whole if one of its examples is too long."""
    examples: list[Example] = []
    kept: list[Conversation] = []
    longest = 0
    for conversation in data.conversations:
        try:
            found = list(encoder.examples(conversation))
        except ConfigError as error:  # the chat template may refuse a role, such as system
            raise ConfigError(f"{conversation.where}: {error}") from error
        longest = max(longest, *map(len, found))
        if max(map(len, found)) <= max_tokens:
            kept.append(conversation)
            examples += found
    rows = len(data.conversations)
    if not kept:
        raise ConfigError(f"sft.data: all {rows} rows are longer than sft.max_tokens={max_tokens}; longest: {longest}")
    if len(kept) < rows:
        out = rows - len(kept)
        logger.warning(
            "left out %d of %d rows longer than sft.max_tokens=%d; longest: %d", out, rows, max_tokens, longest
        )
    return PreparedSft(
        examples=examples,
        rows=len(kept),
        too_long=rows - len(kept),
        unread=_unread(encoder, kept),
        fingerprint=data.fingerprint,
        tokenizer=tokenizer,
    )


def _unread(encoder: TraceEncoder, conversations: Sequence[Conversation]) -> int:
    unread = [conversation.where for conversation in conversations if encoder.unread_results(conversation)]
    if unread:
        logger.warning(
            "%d rows hold tool results that are trained on as if the policy had written them; the first is %s. Name "
            "their tools in `tools`, or correct the rows",
            len(unread),
            unread[0],
        )
    return len(unread)
