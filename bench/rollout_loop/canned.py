"""What an engine has that computes nothing: the parts of the protocol that both fake engines of the benches share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rollout_loop.work import Fixture
from torch import Tensor

from ramet import ToolSchema
from ramet.engines.protocol import Capability, EngineInfo

SEARCH_SCHEMA = ToolSchema(
    name="search",
    description="Searches the web.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)


class CannedEngine:
    """Everything but `generate`."""

    policy_version = 0
    in_flight = False

    def __init__(self, fixture: Fixture) -> None:
        self.fixture = fixture
        self.info = EngineInfo(
            name="fake", capabilities=frozenset(Capability), vocab_size=fixture.encoder.vocab_size, max_tokens=1 << 20
        )

    def abort(self, request_id: str) -> None:
        """Nothing waits."""

    def release(self, cache_keys: Sequence[str]) -> None:
        """Nothing is kept."""

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """There are no weights."""

    def metrics(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        """Nothing to close."""
