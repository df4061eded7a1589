"""Keys in messages: a named instance (`rewards.second.use=llm_judge`) has the name that the user wrote.

A plugin says `rewards.llm_judge.params.server`, the key under which it is registered: it does not know the name of its
instance. Where the core builds or loads an instance it opens `instance_of`, which puts the instance's key in its place:
in every `ConfigError` of the block, and in the name of every `OpenAIClient` that is made there. Blocks may be nested: a
benchmark that has a judge builds a reward.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ramet.errors import ConfigError, ConfigErrors

_open: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("instances", default=())


@contextmanager
def instance_of(declared: str, key: str) -> Iterator[None]:
    """Name by `key` (`rewards.second`) what begins with the key `declared` (`rewards.llm_judge`), in the block.

    Raises what the block raises; the text of a `ConfigError` is changed, its type, cause and traceback are not.
    """
    if declared == key:
        yield
        return
    token = _open.set((*_open.get(), (declared, key)))
    try:
        yield
    except ConfigError as error:
        _rename(error, declared, key)
        raise
    finally:
        _open.reset(token)


def instance_key(declared: str) -> str:
    """Return the key of the component that is being built, for `declared`, a key as its plugin knows it."""
    for pair in reversed(_open.get()):
        declared = renamed(declared, *pair)
    return declared


def _rename(error: ConfigError, declared: str, key: str) -> None:
    if isinstance(error, ConfigErrors):
        error.problems = [renamed(problem, declared, key) for problem in error.problems]
    error.args = tuple(
        renamed(argument, declared, key) if isinstance(argument, str) else argument for argument in error.args
    )


def renamed(text: str, declared: str, key: str) -> str:
    """Return `text` with `key` wherever it has the key `declared`, or one that begins with it."""
    return re.sub(rf"(?<![\w.]){re.escape(declared)}(?![\w])", lambda _: key, text)
