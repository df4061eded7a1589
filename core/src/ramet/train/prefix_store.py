"""The groups of a run from whose rollouts later steps may start (`Need.PREFIXES`).

The store keeps each task's newest group whose rewards differed: its rollouts show what leads where. A step sees the
groups of the steps before it. A step's own groups come in when it is done. So a checkpoint has what the next step sees,
and a resumed run continues exactly. All together have at most `MAX_TOKENS`; the oldest groups go first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from ramet.config.schema import Config
from ramet.errors import ConfigError, raise_all
from ramet.models.loading import load_tokenizer
from ramet.rollout.prefixes import n_stored_tokens, stored_group
from ramet.rollout.record import GroupRecord, read_records, write_records
from ramet.rollout.scoring import ScoredGroup
from ramet.types import Task

MAX_TOKENS = 4_000_000  # about 100 MB of records
GROUPS, ORIGIN = "prefixes.jsonl.gz", "prefixes.json"  # in a checkpoint


class PrefixStore:
    """`origin`: settings that the tokens of a prefix depend on, by key."""

    def __init__(self, max_tokens: int, origin: Mapping[str, str]) -> None:
        self._max_tokens = max_tokens
        self._origin = dict(origin)
        self._groups: dict[str, GroupRecord] = {}  # by task; oldest first
        self._sizes: dict[str, int] = {}
        self.n_tokens = 0

    def add(self, step: int, groups: Iterable[ScoredGroup]) -> None:
        """Keep those whose rewards differ, in the place of earlier groups of their tasks."""
        for group in groups:
            if (record := stored_group(step, group)) is not None:
                self._keep(record)

    def of(self, tasks: Iterable[Task]) -> dict[str, GroupRecord]:
        """The stored groups of these tasks, by their ids."""
        return {task.id: self._groups[task.id] for task in tasks if task.id in self._groups}

    def copy(self) -> PrefixStore:
        """Return a store with the groups of now. The groups themselves never change."""
        copied = PrefixStore(self._max_tokens, self._origin)
        copied._groups, copied._sizes, copied.n_tokens = dict(self._groups), dict(self._sizes), self.n_tokens
        return copied

    def metrics(self) -> dict[str, float]:
        return {
            "rollout/stored_groups": float(len(self._groups)),
            "rollout/stored_tokens": float(self.n_tokens),
        }

    def save(self, folder: Path) -> None:
        (folder / ORIGIN).write_text(json.dumps(self._origin, indent=1) + "\n", encoding="utf-8")
        write_records(folder / GROUPS, self._groups.values())

    def load(self, folder: Path) -> None:
        """Continue with the prefixes of a checkpoint; none if its run stored none.

        Raises `ConfigError` if it was written under another tokenizer or rollout step, or cannot be read.
        """
        if not (folder / ORIGIN).is_file():
            return
        try:
            written = dict(json.loads((folder / ORIGIN).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{folder / ORIGIN}: not written by a run with its stored prefixes: {error}") from error
        raise_all(_differences(folder / GROUPS, written, self._origin))
        for record in read_records(folder / GROUPS):
            self._keep(record)

    def _keep(self, record: GroupRecord) -> None:
        task = record.group.task.id
        self._drop(task)
        self._groups[task], self._sizes[task] = record, n_stored_tokens(record)
        self.n_tokens += self._sizes[task]
        while self.n_tokens > self._max_tokens:
            self._drop(next(iter(self._groups)))

    def _drop(self, task: str) -> None:
        if self._groups.pop(task, None) is not None:
            self.n_tokens -= self._sizes.pop(task)


def prefix_origin(config: Config) -> dict[str, str]:
    """Settings that a stored prefix must have been written under. The tokenizer must be one that can be loaded."""
    tokenizer, step = load_tokenizer(config.model), config.rollout_step
    vocabulary = json.dumps([sorted(tokenizer.get_vocab().items()), tokenizer.chat_template])
    options: Any = step.params
    if is_dataclass(options) and not isinstance(options, type):
        options = asdict(options)
    return {
        "model.tokenizer": f"sha256 {hashlib.sha256(vocabulary.encode()).hexdigest()[:12]}",
        "rollout_step": step.name,
        "rollout_step.params": json.dumps(options, default=str),
    }


def _differences(path: Path, written: Mapping[str, str], expected: Mapping[str, str]) -> Iterator[str]:
    for key, value in expected.items():
        if written.get(key) != value:
            yield (
                f"{path}: its prefixes were written with {key} {written.get(key)}, now it is {value}; a rollout cannot "
                "continue from them: undo the change, choose another run.name, or a branch policy that starts from none"
            )
