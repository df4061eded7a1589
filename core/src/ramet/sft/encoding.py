"""All rows as token ids: of many rows in several processes, and kept for the next run that has the same ones.

The file lies in the assets cache of `huggingface_hub`, next to models and data of the hub. Its name is a hash of the
rows and of all that decides their tokens, and some of the rows are encoded again before it is taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import time
import warnings
import zipfile
from array import array
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ramet.config.schema import Config
from ramet.errors import ConfigError, InfraError
from ramet.io.atomic import open_atomic
from ramet.io.os_errors import os_error_text
from ramet.plugins.plugin_code import code_hash
from ramet.processes import when_ended
from ramet.runs.manifest import PACKAGES, version_of
from ramet.sft.encode import Example, TraceEncoder
from ramet.sft.exchanges import Conversation

logger = logging.getLogger(__name__)
MANY = 2000  # rows: fewer are encoded in this process within seconds, and not kept
CHUNK = 64  # rows that a process is given at a time
KEPT = 16  # sets of rows: those that were written or taken last
PROBED = 8  # rows that are encoded again before kept ones are taken
NAMESPACE = "sft-tokens"  # of the cache
_SHARED: list[tuple[TraceEncoder, Sequence[Conversation]]] = []  # what a forked process works on
Rows = list[list[Example]]


def encode(encoder: TraceEncoder, conversation: Conversation) -> list[Example]:
    """One example for each exchange. Raises `ConfigError` with file and row if the chat template refuses a role."""
    try:
        return list(encoder.examples(conversation))
    except ConfigError as error:
        raise ConfigError(f"{conversation.where}: {error}") from error


def encode_rows(encoder: TraceEncoder, conversations: Sequence[Conversation], identity: str | None) -> Rows:
    """The examples of each row. `identity`: all that decides tokens in addition to the rows; None: nothing is read or
    kept.

    Raises as `encode`, and `InfraError` if a process that encodes is killed.
    """
    if len(conversations) < MANY:
        return [encode(encoder, conversation) for conversation in conversations]
    file = None if identity is None else _file(conversations, identity)
    if file is not None and (kept := _kept(file, encoder, conversations)) is not None:
        logger.info("the tokens of %d rows are taken from %s", len(conversations), file)
        _remove_oldest(file)
        return kept
    began, workers = time.monotonic(), _workers()
    logger.info("encoding %d rows in %d process%s", len(conversations), workers, "es" if workers > 1 else "")
    rows = _in_processes(encoder, conversations, workers)
    logger.info("encoded %d rows in %.0f s", len(conversations), time.monotonic() - began)
    if file is not None and os.environ.get("LOCAL_RANK", "0") == "0":  # of workers that encode the same rows
        _keep(file, rows)
        _remove_oldest(file)
    return rows


def identity_of(config: Config, tokenizer: PreTrainedTokenizerBase, *decides: Any) -> str | None:
    """All that decides the tokens of a row: tokenizer, template, rollout step, the code of Ramet, and `decides`, whose
    representations are complete.

    Returns None for a tokenizer without a form that can be compared.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    parts = (
        [version_of(package) for package in PACKAGES],
        backend.to_str(),
        tokenizer.chat_template,
        tokenizer.special_tokens_map,
        config.model.chat_template_kwargs,
        config.rollout_step,
        code_hash("ramet"),
        decides,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _file(conversations: Sequence[Conversation], identity: str) -> Path:
    from huggingface_hub import cached_assets_path

    digest = hashlib.sha256(identity.encode())
    for conversation in conversations:
        digest.update(repr(conversation).encode())
    return cached_assets_path("ramet", namespace=NAMESPACE) / f"{digest.hexdigest()}.npz"


def _workers() -> int:
    """Processes that encode: the cores of this one, shared with the processes that a launcher started next to it."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _in_processes(encoder: TraceEncoder, conversations: Sequence[Conversation], workers: int) -> Rows:
    """Encode in forked processes: tokenizer and step need not be sent, which a step of a plugin may not allow."""
    if workers == 1:
        return [encode(encoder, conversation) for conversation in conversations]
    chunks = [range(start, min(start + CHUNK, len(conversations))) for start in range(0, len(conversations), CHUNK)]
    _SHARED.append((encoder, conversations))
    try:
        with (
            warnings.catch_warnings(action="ignore", category=DeprecationWarning),  # of a fork while threads run
            ProcessPoolExecutor(
                workers, mp_context=multiprocessing.get_context("fork"), initializer=_begin, initargs=(os.getpid(),)
            ) as pool,
        ):
            try:
                return [row for rows in pool.map(_encoded, chunks) for row in rows]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        raise InfraError("sft: a process that encodes rows was killed, as where memory runs out (see dmesg)") from error
    finally:
        _SHARED.pop()


def _begin(parent: int) -> None:
    """Set up a forked process: it ends with its parent, which Ctrl-C and SIGTERM are meant for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    when_ended(parent, lambda: os.kill(os.getpid(), signal.SIGKILL))


def _encoded(chunk: range) -> Rows:
    encoder, conversations = _SHARED[-1]
    return [encode(encoder, conversations[index]) for index in chunk]


def _kept(file: Path, encoder: TraceEncoder, conversations: Sequence[Conversation]) -> Rows | None:
    """The examples that an earlier run kept; None without any, or if the encoder makes another row now."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            rows = _unpacked({name: stored[name] for name in stored.files})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("%s: cannot be read, and the rows are encoded again: %s", file, error)
        return None
    probed = range(0, len(conversations), max(1, len(conversations) // PROBED))
    if len(rows) == len(conversations) and all(rows[i] == encode(encoder, conversations[i]) for i in probed):
        return rows
    logger.warning("%s: contains other tokens than these rows have now, and is written again", file)
    return None


def _keep(file: Path, rows: Rows) -> None:
    """Write all rows or none. A cache that cannot be written is only warned of."""
    examples = [example for row in rows for example in row]
    where = json.dumps([example.where for example in examples]).encode()
    try:
        with open_atomic(file) as opened:
            np.savez(
                opened,
                rows=np.array([len(row) for row in rows], np.int64),
                lengths=np.array([len(example) for example in examples], np.int64),
                ids=np.frombuffer(b"".join(example.token_ids.tobytes() for example in examples), np.int32),
                trained=np.frombuffer(b"".join(example.trained.tobytes() for example in examples), np.int8),
                where=np.frombuffer(where, np.uint8),
            )
    except OSError as error:
        logger.warning("the tokens of the rows are not kept: %s", os_error_text(error))


def _remove_oldest(used: Path) -> None:
    """Delete files that were used long ago, and leftovers of killed processes.

    Another process may be doing the same.
    """
    with contextlib.suppress(OSError):
        os.utime(used)
        for old in sorted(used.parent.iterdir(), key=lambda file: file.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)


def _unpacked(stored: dict[str, Any]) -> Rows:
    """The inverse of what `_keep` writes. Raises `ValueError` or `KeyError` for other content."""
    places = json.loads(stored["where"].tobytes())
    ends = np.cumsum(stored["lengths"])
    if len(places) != len(ends) or int(stored["rows"].sum()) != len(ends):
        raise ValueError("its counts contradict each other")
    ids, trained = np.split(stored["ids"], ends)[:-1], np.split(stored["trained"], ends)[:-1]
    examples = iter(
        [
            Example(token_ids=array("i", one.tobytes()), trained=array("b", mask.tobytes()), where=place)
            for one, mask, place in zip(ids, trained, places, strict=True)
        ]
    )
    return [[next(examples) for _ in range(count)] for count in stored["rows"].tolist()]
