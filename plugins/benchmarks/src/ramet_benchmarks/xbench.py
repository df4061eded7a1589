"""`xbench`: xbench-DeepSearch, Chinese questions for agents that search (Chen et al. 2025, arXiv 2506.13651). The
authors ask a judge; without `judge.ask`, `em` and `f1` are low bounds.
"""

from __future__ import annotations

import base64
import binascii

from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import short_answers
from ramet_benchmarks.published import Published, PublishedBenchmark
from ramet_benchmarks.rows import HubData, RowForm, Values


def decrypted(row: Values) -> Values:
    """The authors' files are enciphered with the row's `canary`; the published form is plain. Raises `ValueError`."""
    if not row.get("canary"):
        return row
    key = str(row["canary"]).encode()
    return {**row, **{name: _plain(str(row[name]), key) for name in ("prompt", "answer") if row.get(name)}}


def _plain(text: str, key: bytes) -> str:
    try:
        mixed = base64.b64decode(text, validate=True)
        return bytes(byte ^ key[i % len(key)] for i, byte in enumerate(mixed)).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be deciphered with its canary: {error}") from error


ABOUT = Published(
    name="xbench",
    description="100 Chinese questions that take broad and deep searching (xbench-DeepSearch); short answers",
    source="https://github.com/xbench-ai/xbench-evals (hub: xbench/DeepSearch), Chen et al. 2025",
    licence="see the source; its authors ask not to publish the plain text",
    n_tasks=100,
    contamination="enciphered by its authors, and replaced by newer questions from time to time: say which version was "
    "measured",
    hub=HubData(name="xbench/DeepSearch", splits={"test": "train"}),
    form=RowForm(question=("question", "prompt"), id=("id",), read=decrypted),
)


def make(config: PublishedConfig) -> PublishedBenchmark:
    return PublishedBenchmark(ABOUT, config, short_answers("xbench", normalisation="unicode"))
