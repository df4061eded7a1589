"""Everything before the training: checks, all reported together, then the encoded examples."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeAlias, runtime_checkable

from transformers import PreTrainedTokenizerBase

from ramet.components.build import Components
from ramet.components.prompts import check_prompts, prompt_record, task_prompts
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.checks import check
from ramet.config.resolved import Resolved
from ramet.config.schema import Config, Malformed, SftConfig
from ramet.data.row_problems import RowProblem, grouped, rows_in_words
from ramet.errors import ConfigError, MissingHere, collected, raise_all, set_aside_missing
from ramet.hub import cached_name
from ramet.models.attention import check_attention
from ramet.models.check import check_model, read_config
from ramet.models.encoder import Encoder
from ramet.models.loading import device_kind, load_tokenizer
from ramet.models.mixture import check_dense
from ramet.planning.placement import Machine
from ramet.plugins.component_checks import is_agent
from ramet.plugins.plugin_code import code_hash, object_hash
from ramet.rollout.config import HermesConfig
from ramet.rollout.steps.hermes import Hermes
from ramet.runs.manifest import DataRecord
from ramet.sft.conversations import read_data
from ramet.sft.encode import Example, TraceEncoder
from ramet.sft.encoding import encode_rows, identity_of
from ramet.sft.exchanges import Conversation
from ramet.sft.layouts import RowLayout, absent_columns
from ramet.sft.output import may_replace
from ramet.sft.strategies import check_strategy
from ramet.sft.traces import TraceReport, check_traces
from ramet.sft.world import launched_world
from ramet.tracking.trackers import check_trackers
from ramet.types import Message, RolloutStep, Task, TemplateFormat, TraceReader

logger = logging.getLogger(__name__)
MAX_SHOWN = 20  # reasons that one message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Rows of the data."""

    trained: int
    too_long: int  # left out
    cut: int = 0  # at sft.max_tokens, among those that are trained on
    held_out: int = 0  # whose loss is measured
    malformed: int  # left out or, with sft.malformed=keep, among those that are trained on
    unread: int  # trained on although a tool's result in them seems to be unmasked


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSft:
    """The inputs of the training, and the summary's numbers about the data."""

    examples: list[Example]
    counts: RowCounts
    fingerprint: str  # of the data files
    tokenizer: PreTrainedTokenizerBase
    valid: list[Example] = field(default_factory=list)  # held out
    valid_fingerprint: str = ""  # of the files in sft.valid
    prompt: dict[str, Any] | None = None  # of the first row, as the model is asked: for model cards

    def valid_record(self, resolved: Resolved) -> DataRecord | None:
        """The record of the files in `sft.valid`, if any."""
        files = [str(cached_name(path) or path) for path in resolved.config.sft.valid]
        record = DataRecord(files=files, fingerprint=self.valid_fingerprint, tasks=self.counts.held_out)
        return record if files else None

    @property
    def trained_tokens(self) -> int:
        """Count of trained tokens in one pass over the examples."""
        return sum(sum(example.trained) for example in self.examples)


@runtime_checkable
class _ReadsText(RolloutStep, TraceReader, Protocol):
    """A rollout step that reads calls and results in an assistant's text."""


@runtime_checkable
class _ReadsMessages(RolloutStep, TemplateFormat, Protocol):
    """A rollout step whose results are separate messages."""


_Readable: TypeAlias = _ReadsText | _ReadsMessages


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSft:
    """The inputs of encoding, once all options of `ramet sft` were checked."""

    conversations: list[Conversation]  # that are trained on, if they are not too long
    report: TraceReport
    fingerprint: str  # of the data files
    step: _Readable
    tools: ToolNames
    valid: Sequence[Conversation] = ()  # held out
    valid_fingerprint: str = ""  # of the files in sft.valid
    missing: Sequence[MissingHere] = ()  # of a plan for another machine: what this one lacks


def prepare(resolved: Resolved) -> PreparedSft:
    """Check all options of `ramet sft`, then encode. Raises `ConfigErrors` with every problem found."""
    return encode_checked(resolved.config, check_sft(resolved), keep=True)


def check_sft(resolved: Resolved, elsewhere: Machine | None = None) -> CheckedSft:
    """Check everything but whether the rows can be encoded. `elsewhere`: a plan for this other machine, for which this
    one may lack weights, tokenizer and packages. Raises `ConfigErrors` with every problem found.
    """
    config = resolved.config
    problems = [*check_model(config.model), *check_strategy(config, launched_world(), elsewhere)]
    described = read_config(config.model)
    problems += check_dense(described)
    problems += check_attention(config.model, device=device_kind(config.model), described=described)
    problems += [*check_trackers(config, resolved.set_by_user), *check_out(config), *_check_lora(config)]
    missing = set_aside_missing(problems) if elsewhere is not None else []
    return replace(check_data(resolved, problems), missing=missing)


def check_data(resolved: Resolved, problems: Sequence[str]) -> CheckedSft:
    """Check the configuration, the data and what reads it. Raises `ConfigErrors` with `problems` and all others."""
    config = resolved.config
    layout = RowLayout.of(config.sft)
    data = read_data(config.sft.data, layout, config.sft.mixing, config.run.seed, config.sft.max_samples)
    valid = read_data(config.sft.valid, layout, max_samples=config.sft.max_samples)
    all_problems = [*check(resolved, "sft"), *problems, *data.problems, *_of_valid(valid.problems)]
    if columns := data.columns | valid.columns:
        all_problems += [f"sft.columns.{problem}" for problem in absent_columns(config.sft.columns, columns)]
    step, tools, for_agent = _parts(config, all_problems)
    tags = [*tools.schemas, *config.sft.mask_tags]
    report, of_valid = (
        TraceReport(rows=read.rows, unreadable=read.bad) if step is None else check_traces(read, step, tags)
        for read in (data, valid)
    )
    all_problems += _malformed(report, config.sft.malformed) + _of_valid(_malformed(of_valid, config.sft.malformed))
    all_problems += [] if all_problems or step is None else check_prompts(step, config, tools, for_agent=for_agent)
    raise_all(all_problems)
    assert step is not None
    _warn_of_malformed(report, config.sft.malformed)
    _warn_of_malformed(of_valid, config.sft.malformed, " of sft.valid")
    _warn_of_traces(report, config)
    kept, held_out = (
        read.conversations if config.sft.malformed is Malformed.KEEP else read.sound for read in (report, of_valid)
    )
    if config.sft.valid_share:
        kept, held_out = _split(kept, config)
    else:
        _warn_of_copies(kept, held_out)
    return CheckedSft(
        conversations=kept,
        report=report,
        fingerprint=data.fingerprint,
        step=step,
        tools=tools,
        valid=held_out,
        valid_fingerprint=valid.fingerprint,
    )


def _of_valid(problems: Sequence[str]) -> list[str]:
    """Problems of data as problems of `sft.valid`."""
    return [problem.replace("sft.data: ", "sft.valid: ", 1) for problem in problems]


def _split(conversations: list[Conversation], config: Config) -> tuple[list[Conversation], list[Conversation]]:
    """Rows that are trained on and rows that are held out, each in their order. Rows of the same content are on the
    same side, whether data repeat them or `sft.mixing` does. Raises `ConfigError`.
    """
    share, contents = config.sft.valid_share, [_content(one) for one in conversations]
    different = list(dict.fromkeys(contents))
    count = max(1, round(share * len(different)))
    if count >= len(different):
        raise ConfigError(
            f"sft.valid_share={share:g}: leaves none of {len(different)} different rows to train on; lower it"
        )
    drawn = set(Random(config.run.seed).sample(different, count))
    sides: tuple[list[Conversation], list[Conversation]] = ([], [])
    for conversation, content in zip(conversations, contents, strict=True):
        sides[content in drawn].append(conversation)
    return sides


def _content(conversation: Conversation) -> str:
    """The same text for all copies of a row."""
    return repr(replace(conversation, file="", row=0))


def _warn_of_copies(trained: Sequence[Conversation], held_out: Sequence[Conversation]) -> None:
    contents = {_content(one) for one in trained} if held_out else ()
    if copies := sum(_content(one) in contents for one in held_out):
        logger.warning("%d of %d rows of sft.valid are trained on, too: leave them out of one", copies, len(held_out))


def _check_lora(config: Config) -> list[str]:
    """Why there cannot be an adapter, if there is to be one."""
    if not config.sft.lora_rank:
        return []
    from ramet.policy.lora import check_lora

    return check_lora("sft.lora_rank")


def trace_encoder(config: Config, checked: CheckedSft, tokenizer: PreTrainedTokenizerBase) -> TraceEncoder:
    return TraceEncoder(
        Encoder(tokenizer, template_kwargs=config.model.chat_template_kwargs),
        checked.step,
        tools=[*checked.tools.schemas, *config.sft.mask_tags],
        prompt=task_prompts(checked.step, config, checked.tools),
        mask_history=config.sft.mask_history,
    )


def _malformed(report: TraceReport, rule: Malformed) -> list[str]:
    """The rows that keep the training from starting, one line for each reason."""
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


def _warn_of_malformed(report: TraceReport, rule: Malformed, of: str = "") -> None:
    if report.problems:
        done = "left out" if rule is not Malformed.KEEP else "kept" if of else "trained on"
        logger.warning("%d of %d rows%s are malformed and %s:", report.bad_rows, report.rows, of, done)
        for line in _first(grouped(report.problems)):
            logger.warning("  %s", line)


def _warn_of_traces(report: TraceReport, config: Config) -> None:
    for warning in report.warnings():
        logger.warning("%s", warning)
    unused = [tag for tag in config.sft.mask_tags if tag not in report.calls]
    if unused and report.checked:
        logger.warning("sft.mask_tags: no trace has a result after %s", ", ".join(f"</{tag}>" for tag in unused))


def check_out(config: Config) -> list[str]:
    """Problems with `run.out`: it may replace only a model that `ramet sft` has written."""
    if config.run.out is None:
        return []
    out = Path(config.run.out)
    if not may_replace(out):
        return [f"run.out: {str(out)!r} is there already, and not written by `ramet sft`; give a new folder"]
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        return [f"run.out: {str(out)!r} cannot be made, because {str(parent)!r} is not a folder that can be written to"]
    return []


def _parts(config: Config, problems: list[str]) -> tuple[_Readable | None, ToolNames, bool]:
    """The rollout step, the tools, and whether the step reads an agent's traces; what keeps them from being built is
    added to `problems`.
    """
    step: _Readable | None = None
    tools, for_agent = ToolNames(), False
    with collected(problems):
        built = Components(config).step
        if for_agent := is_agent(built):  # its messages are the chat template's
            built = Hermes(HermesConfig())
        step = built if isinstance(built, _ReadsText | _ReadsMessages) else None
        if step is None:
            problems.append(
                f"rollout_step: {config.rollout_step.name!r} cannot read traces (it has no `read` and `result`), so "
                "what the policy writes cannot be separated from what is inserted; choose a step with both, as 'tags'"
            )
    with collected(problems):
        tools = tool_names(config)
    return step, tools, for_agent


@dataclass(slots=True, kw_only=True)
class _Encoded:
    """Rows as examples."""

    examples: list[Example] = field(default_factory=list)
    kept: list[Conversation] = field(default_factory=list)
    too_long: list[RowProblem] = field(default_factory=list)  # left out
    cut: int = 0  # rows
    longest: int = 0  # tokens of a sequence, before it was cut


def encode_checked(config: Config, checked: CheckedSft, *, keep: bool = False) -> PreparedSft:
    """Encode the data with the model's tokenizer. All of a row stays out if one of its examples is too long, unless
    `sft.truncate` cuts it. `keep`: the tokens are kept for the next run on these rows.

    Raises `ConfigError`.
    """
    tokenizer = load_tokenizer(config.model)
    encoder = trace_encoder(config, checked, tokenizer)
    code = (code_hash(type(checked.step).__module__), object_hash(checked.step))
    decides = (checked.tools.schemas, config.sft.mask_tags, config.sft.mask_history, code)
    identity = identity_of(config, tokenizer, *decides) if keep else None
    held_out = "sft.valid" if config.sft.valid else "sft.valid_share"
    trained, valid = (
        _encoded(encode_rows(encoder, rows, identity), rows, config.sft, key)
        for rows, key in ((checked.conversations, "sft.data"), (checked.valid, held_out))
    )
    return PreparedSft(
        examples=trained.examples,
        counts=RowCounts(
            trained=len(trained.kept),
            too_long=len(trained.too_long),
            cut=trained.cut,
            held_out=len(valid.kept),
            malformed=checked.report.bad_rows,
            unread=_unread(encoder, trained.kept, checked.report),
        ),
        fingerprint=checked.fingerprint,
        tokenizer=tokenizer,
        valid=valid.examples,
        valid_fingerprint=checked.valid_fingerprint,
        prompt=prompt_record(checked.step, config, checked.tools, _first_task(checked)),
    )


def _first_task(checked: CheckedSft) -> Task:
    first = checked.conversations[0]
    system = [] if first.system is None else [Message(role="system", content=first.system)]
    question = Message(role="user", content=first.exchanges[0].user)
    return Task(id=first.where, prompt=(*system, question), schemas=first.tools)


def _encoded(rows: list[list[Example]], conversations: Sequence[Conversation], sft: SftConfig, key: str) -> _Encoded:
    """Leave out or cut rows that are too long. Raises `ConfigError` if nothing is left."""
    encoded = _Encoded()
    for conversation, examples in zip(conversations, rows, strict=True):
        length = max(map(len, examples))
        encoded.longest = max(encoded.longest, length)
        if length > sft.max_tokens and sft.truncate:
            examples = [short for one in examples if any((short := cut(one, sft.max_tokens)).trained)]
            encoded.cut += bool(examples)
        elif length > sft.max_tokens:
            examples = []
        if examples:
            encoded.kept.append(conversation)
            encoded.examples += examples
        else:
            encoded.too_long.append(RowProblem(file=conversation.file, row=conversation.row, reason="too long"))
    if conversations and not encoded.kept:
        raise ConfigError(
            f"{key}: all {len(conversations)} rows are longer than sft.max_tokens={sft.max_tokens}"
            f"{', and nothing before that is trained' if sft.truncate else ''}; longest: {encoded.longest}"
        )
    _warn_of_lengths(encoded, len(conversations), sft, key)
    return encoded


def cut(example: Example, tokens: int) -> Example:
    """The first `tokens` tokens of an example."""
    return replace(example, token_ids=example.token_ids[:tokens], trained=example.trained[:tokens])


def _warn_of_lengths(encoded: _Encoded, rows: int, sft: SftConfig, key: str) -> None:
    limit, of = f"sft.max_tokens={sft.max_tokens}", "" if key == "sft.data" else f" of {key}"
    if encoded.cut:
        logger.warning("cut %d of %d rows%s to %s; longest: %d", encoded.cut, rows, of, limit, encoded.longest)
    if encoded.too_long:
        count, where = len(encoded.too_long), rows_in_words(encoded.too_long)
        logger.warning(
            "left out %d of %d rows%s longer than %s (%s); longest: %d", count, rows, of, limit, where, encoded.longest
        )


def _unread(encoder: TraceEncoder, conversations: Sequence[Conversation], report: TraceReport) -> int:
    unread = [conversation.where for conversation in conversations if encoder.unread_results(conversation)]
    if unread and not report.unmasked:
        logger.warning(
            "%d rows contain tool results that are trained on as if the policy had written them; the first is %s. Name "
            "their tools in `tools`, their tags in sft.mask_tags, or correct the rows",
            len(unread),
            unread[0],
        )
    return len(unread)
