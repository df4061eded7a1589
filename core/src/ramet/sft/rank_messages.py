"""Messages between `ramet sft` and the ranks that it starts: the task, and why a rank failed."""

from __future__ import annotations

import json
import logging
import os
import pickle
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from torch.distributed.distributed_c10d import Store

from ramet.config.schema import Config
from ramet.errors import ConfigError, ConfigErrors
from ramet.io.os_errors import naming
from ramet.models.loading import load_tokenizer
from ramet.sft.encode import Example
from ramet.sft.prepare import PreparedSft, RowCounts

READY, FAILURE, FAILURES = "ready/{}", "failure/{}", "failures"  # keys of the store; {}: the rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInputs:
    """The task of every rank: the data as the first process encoded it, and the sections that a training reads."""

    config: Config
    run: Path
    log_level: int
    examples: list[Example]
    valid: list[Example]
    counts: RowCounts
    fingerprint: str

    @classmethod
    def of(cls, config: Config, prepared: PreparedSft, run: Path) -> RankInputs:
        return cls(
            config=Config(
                run=config.run,
                model=config.model,
                sft=config.sft,
                cluster=config.cluster,
                trackers=config.trackers,
                wandb=config.wandb,
            ),
            run=run,
            log_level=logging.getLogger("ramet").getEffectiveLevel(),
            examples=prepared.examples,
            valid=prepared.valid,
            counts=prepared.counts,
            fingerprint=prepared.fingerprint,
        )

    def save(self, file: Path) -> None:
        """A pickle runs code where it is read: the file is new, not a link, and no other user may read or write it."""
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with naming(file), open(handle, "wb") as opened:
            pickle.dump(self, opened)

    @staticmethod
    def load(file: Path) -> RankInputs:
        """Load a file that the process that started this one has written, and no other: it is unpickled."""
        with file.open("rb") as opened:
            task = pickle.load(opened)
        assert isinstance(task, RankInputs)
        return task

    def prepared(self) -> PreparedSft:
        return PreparedSft(
            examples=self.examples,
            valid=self.valid,
            counts=self.counts,
            fingerprint=self.fingerprint,
            tokenizer=load_tokenizer(self.config.model),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The error of a rank. Ranks that lose another one fail too, hence the order."""

    order: int  # 1: the first that was reported
    text: str
    trace: str
    problems: list[str] | None  # of a mistake of the user
    of_system: tuple[int, str, str | None] | None = None  # number, text and path of an `OSError`

    @classmethod
    def report(cls, store: Store, rank: int, error: BaseException) -> None:
        problems = None
        if isinstance(error, ConfigError):
            problems = error.problems if isinstance(error, ConfigErrors) else [str(error)]
        failure = cls(
            order=store.add(FAILURES, 1),
            text=f"{type(error).__name__}: {error}",
            trace="".join(traceback.format_exception(error)),
            problems=problems,
            of_system=_of_system(error),
        )
        store.set(FAILURE.format(rank), json.dumps(asdict(failure)))

    @classmethod
    def read(cls, store: Store, rank: int) -> RankFailure | None:
        """Read this rank's failure; None if it has reported none, as one that was killed."""
        key = FAILURE.format(rank)
        return cls(**json.loads(store.get(key))) if store.check([key]) else None

    @property
    def os_error(self) -> OSError | None:
        """The `OSError` that the rank raised, None if it was another error."""
        return None if self.of_system is None else OSError(*self.of_system)


def _of_system(error: BaseException) -> tuple[int, str, str | None] | None:
    if not isinstance(error, OSError) or error.errno is None:
        return None
    return error.errno, error.strerror or os.strerror(error.errno), error.filename and os.fsdecode(error.filename)
