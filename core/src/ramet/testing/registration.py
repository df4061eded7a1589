"""`registered`: a component under a name for a while, without a package that offers it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ramet.errors import ConfigError
from ramet.plugins import load_plugins
from ramet.plugins.registry import Entry, Registry


@contextlib.contextmanager
def registered(
    kind: str,
    name: str,
    factory: Callable[..., Any] | str,
    *,
    config: type[Any] | None = None,
    distribution: str = "test",
) -> Iterator[None]:
    """Offer what `factory` makes as the `name` of this kind until the block ends.

    `kind` is as `ramet plugins` prints it ("tools", "branch_policy"); `factory` and `config` are what a hook's
    `register` takes; messages name the package `distribution`. A component that is installed under this name is
    replaced for the time of the block. Raises `ConfigError` for an unknown kind, `PluginError` for what `register`
    refuses.
    """
    kinds: dict[str, Registry[Any]] = {registry.group: registry for _, registry in load_plugins().registries}
    if kind not in kinds:
        raise ConfigError(f"kind: {kind!r}; allowed: {', '.join(kinds)}")
    registry = kinds[kind]
    entry: Entry[Any] = Entry(
        kind=registry.kind, name=name, factory=factory, config=config, plugin="test", distribution=distribution
    )
    registry.check(entry)
    before = registry._entries.get(name)
    registry._entries[name] = entry
    try:
        yield
    finally:
        if before is None:
            del registry._entries[name]
        else:
            registry._entries[name] = before
