"""Everything before the training: checks, all reported together, then the encoded examples."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from transformers import PreTrainedTokenizerBase

from ramet.components.build import Components
from ramet.components.prompts import check_prompts, task_prompts
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.checks import check
from ramet.config.resolved import Resolved
from ramet.config.schema import Config, Malformed
from ramet.data.row_problems import RowProblem, grouped, rows_in_words
from ramet.errors import ConfigError, MissingHere, collected, raise_all, set_aside_missing
from ramet.models.attention import check_attention
from ramet.models.check import check_model, read_config
from ramet.models.encoder import Encoder
from ramet.models.loading import device_kind, load_tokenizer
from ramet.planning.placement import Machine
from ramet.sft.conversations import read_data
from ramet.sft.encode import Example, TraceEncoder
from ramet.sft.exchanges import Conversation
from ramet.sft.output import may_replace
from ramet.sft.strategies import check_strategy
from ramet.sft.traces import TraceReport, check_traces
from ramet.sft.world import launched_world
from ramet.tracking.trackers import check_trackers
from ramet.types import RolloutStep, TemplateFormat, TraceReader

logger = logging.getLogger(__name__)
MAX_SHOWN = 20  # reasons that one message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Rows of the data."""

    trained: int
    too_long: int  # left out
    malformed: int  # left out or, with sft.malformed=keep, among those that are trained on
    unread: int  # trained on although a tool's result in them seems to be unmasked


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSft:
    """What the training needs, and what the summary says about the data."""

    examples: list[Example]
    counts: RowCounts
    fingerprint: str  # of the data files
    tokenizer: PreTrainedTokenizerBase

    @property
    def trained_tokens(self) -> int:
        """Count of trained tokens in one pass over the examples."""
        return sum(sum(example.trained) for example in self.examples)


@runtime_checkable
class _ReadsText(RolloutStep, TraceReader, Protocol):
    """A rollout step that reads calls and results in an assistant's text."""


@runtime_checkable
class _ReadsMessages(RolloutStep, TemplateFormat, Protocol):
    """A rollout step whose results are messages of their own."""


_Readable: TypeAlias = _ReadsText | _ReadsMessages


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSft:
    """What is encoded, and how, once all options of `ramet sft` were checked."""

    conversations: list[Conversation]  # that are trained on, if they are not too long
    report: TraceReport
    fingerprint: str  # of the data files
    step: _Readable
    tools: ToolNames
    missing: Sequence[MissingHere] = ()  # of a plan for another machine: what this one lacks


def prepare(resolved: Resolved) -> PreparedSft:
    """Check all options of `ramet sft`, then encode. Raises `ConfigErrors` with every problem found."""
    return encode_checked(resolved.config, check_sft(resolved))


def check_sft(resolved: Resolved, elsewhere: Machine | None = None) -> CheckedSft:
    """Check everything but whether the rows can be encoded. `elsewhere`: a plan for this other machine, for which this
    one may lack weights, tokenizer and packages. Raises `ConfigErrors` with every problem found.
    """
    config = resolved.config
    problems = [*check_model(config.model), *check_strategy(config, launched_world(), elsewhere)]
    problems += check_attention(config.model, device=device_kind(config.model), described=read_config(config.model))
    problems += [*check_trackers(config, resolved.set_by_user), *check_out(config)]
    missing = set_aside_missing(problems) if elsewhere is not None else []
    return replace(check_data(resolved, problems), missing=missing)


def check_data(resolved: Resolved, problems: Sequence[str]) -> CheckedSft:
    """Check the configuration, the data and what reads it. Raises `ConfigErrors` with `problems` and all others."""
    config = resolved.config
    data = read_data(config.sft.data)
    all_problems = [*check(resolved, "sft"), *problems, *data.problems]
    step, tools = _parts(config, all_problems)
    tags = [*tools.schemas, *config.sft.mask_tags]
    report = TraceReport(rows=data.rows, unreadable=data.bad) if step is None else check_traces(data, step, tags)
    all_problems += _malformed(report, config.sft.malformed)
    all_problems += [] if all_problems or step is None else check_prompts(step, config, tools)
    raise_all(all_problems)
    assert step is not None
    _warn_of_traces(report, config)
    kept = report.conversations if config.sft.malformed is Malformed.KEEP else report.sound
    return CheckedSft(conversations=kept, report=report, fingerprint=data.fingerprint, step=step, tools=tools)


def trace_encoder(config: Config, checked: CheckedSft, tokenizer: PreTrainedTokenizerBase) -> TraceEncoder:
    return TraceEncoder(
        Encoder(tokenizer, template_kwargs=config.model.chat_template_kwargs),
        checked.step,
        tools=[*checked.tools.schemas, *config.sft.mask_tags],
        prompt=task_prompts(checked.step, config, checked.tools),
    )


def _malformed(report: TraceReport, rule: Malformed) -> list[str]:
    """The rows that keep the training from starting, those of one reason in one line."""
    refused = {Malformed.ERROR: report.problems, Malformed.SKIP: [], Malformed.KEEP: report.unreadable}[rule]
    if not refused:
        every = rule is Malformed.SKIP and report.bad_rows == report.rows > 0
        return [f"sft.data: all {report.rows} rows are malformed; the first is {report.problems[0]}"] if every else []
    rows = len({(problem.file, problem.row) for problem in refused})
    keep = ", or sft.malformed=keep to train on those that can be read as they are" if report.malformed else ""
    return [
        *_first(grouped(refused)),
        f"sft.data: {rows} of {report.rows} rows are malformed; fix them, or set sft.malformed=skip to leave them out"
        + (keep if rule is Malformed.ERROR else ""),
    ]


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - MAX_SHOWN
    return [*lines[:MAX_SHOWN], f"and rows of {more} more reasons"] if more > 0 else lines


def _warn_of_traces(report: TraceReport, config: Config) -> None:
    if report.problems:
        done = "trained on" if config.sft.malformed is Malformed.KEEP else "left out"
        logger.warning("%d of %d rows are malformed and %s:", report.bad_rows, report.rows, done)
        for line in _first(grouped(report.problems)):
            logger.warning("  %s", line)
    for warning in report.warnings():
        logger.warning("%s", warning)
    unused = [tag for tag in config.sft.mask_tags if tag not in report.calls]
    if unused and report.checked:
        logger.warning("sft.mask_tags: no trace has a result after %s", ", ".join(f"</{tag}>" for tag in unused))


def check_out(config: Config) -> list[str]:
    """Problems with `run.out`: it may replace a model that `ramet sft` has written, and nothing else."""
    if config.run.out is None:
        return []
    out = Path(config.run.out)
    if not may_replace(out):
        return [f"run.out: {str(out)!r} is there already, and not written by `ramet sft`; give a new folder"]
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        return [f"run.out: {str(out)!r} cannot be made, because {str(parent)!r} is not a folder that can be written to"]
    return []


def _parts(config: Config, problems: list[str]) -> tuple[_Readable | None, ToolNames]:
    """The rollout step and the tools; what keeps them from being built is added to `problems`."""
    step: _Readable | None = None
    tools = ToolNames()
    with collected(problems):
        built = Components(config).step
        step = built if isinstance(built, _ReadsText | _ReadsMessages) else None
        if step is None:
            problems.append(
                f"rollout_step: {config.rollout_step.name!r} cannot read traces (it has no `read` and `result`), so "
                "what the policy writes cannot be separated from what is inserted; choose a step with both, as 'tags'"
            )
    with collected(problems):
        tools = tool_names(config)
    return step, tools


def encode_checked(config: Config, checked: CheckedSft) -> PreparedSft:
    """Encode the data with the model's tokenizer. A row stays out as a whole if one of its examples is too long.

    Raises `ConfigError`.
    """
    tokenizer = load_tokenizer(config.model)
    encoder = trace_encoder(config, checked, tokenizer)
    max_tokens = config.sft.max_tokens
    examples: list[Example] = []
    kept: list[Conversation] = []
    too_long: list[RowProblem] = []
    longest = 0
    for conversation in checked.conversations:
        encoded = encode(encoder, conversation)
        length = max(map(len, encoded))
        longest = max(longest, length)
        if length > max_tokens:
            too_long.append(RowProblem(file=conversation.file, row=conversation.row, reason="too long"))
            continue
        kept.append(conversation)
        examples += encoded
    rows = len(checked.conversations)
    if not kept:
        raise ConfigError(f"sft.data: all {rows} rows are longer than sft.max_tokens={max_tokens}; longest: {longest}")
    if too_long:
        logger.warning(
            "left out %d of %d rows longer than sft.max_tokens=%d (%s); longest: %d",
            len(too_long),
            rows,
            max_tokens,
            rows_in_words(too_long),
            longest,
        )
    return PreparedSft(
        examples=examples,
        counts=RowCounts(
            trained=len(kept),
            too_long=len(too_long),
            malformed=checked.report.bad_rows,
            unread=_unread(encoder, kept, checked.report),
        ),
        fingerprint=checked.fingerprint,
        tokenizer=tokenizer,
    )


def encode(encoder: TraceEncoder, conversation: Conversation) -> list[Example]:
    """One example for each exchange. Raises `ConfigError` with file and row if the chat template refuses a role."""
    try:
        return list(encoder.examples(conversation))
    except ConfigError as error:
        raise ConfigError(f"{conversation.where}: {error}") from error


def _unread(encoder: TraceEncoder, conversations: Sequence[Conversation], report: TraceReport) -> int:
    unread = [conversation.where for conversation in conversations if encoder.unread_results(conversation)]
    if unread and not report.unmasked:
        logger.warning(
            "%d rows hold tool results that are trained on as if the policy had written them; the first is %s. Name "
            "their tools in `tools`, their tags in sft.mask_tags, or correct the rows",
            len(unread),
            unread[0],
        )
    return len(unread)
