"""The optional `start` and `aclose` of components: both are bounded in time, and closing keeps no other from it."""

from __future__ import annotations

import asyncio
import logging

from ramet.errors import InfraError, PluginError, RametError
from ramet.event_loop import is_cancelled, n_cancelled
from ramet.plugins.plugin_code import raised_at
from ramet.types import Services

logger = logging.getLogger(__name__)
START_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 10.0


async def start_component(component: object, label: str, services: Services) -> None:
    """Call its `start`, if it has one. `label` names it in messages.

    Raises its `RametError` as it is, `InfraError` if it does not return, otherwise `PluginError`.
    """
    start = getattr(component, "start", None)
    if start is None:
        return
    before = n_cancelled()
    try:
        async with asyncio.timeout(START_TIMEOUT_S) as deadline:
            await start(services)
    except RametError:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled(before):
            raise
        if deadline.expired():
            raise InfraError(f"{label} did not start within {START_TIMEOUT_S:g} s") from error
        raise PluginError(f"{label} could not start: {type(error).__name__}: {error}{raised_at(error)}") from error


async def close_component(component: object, label: str) -> None:
    """Call its `aclose`, if it has one. What that raises is logged, and so is that it does not return."""
    close = getattr(component, "aclose", None)
    if close is None:
        return
    before = n_cancelled()
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await close()
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # the boundary: the others are closed too
        if isinstance(error, asyncio.CancelledError) and is_cancelled(before):
            raise
        logger.warning("aclose of %s failed: %r", label, error)
