from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ramet.models.tiny import make_tiny_model
from ramet.types import Insert, Markup, Sampled, TracePart, Untrusted


class Brackets:
    """A step of the tests: what stands between `<result>` and `</result>` was inserted, if a tool exists at all."""

    def system_prompt(self, tools: Sequence[object]) -> str:
        return f"You have {len(tools)} tools."

    def read(self, text: str, tools: Sequence[str]) -> Sequence[TracePart]:
        before, opened, rest = text.partition("<result>")
        inside, closed, after = rest.partition("</result>")
        if not (tools and opened and closed):
            return [Sampled(text=text)]
        return [Sampled(text=before), *self.result(inside), *self.read(after, tools)]

    def result(self, text: str) -> Sequence[Insert]:
        return [Markup(text="<result>"), Untrusted(text=text), Markup(text="</result>")]


class Recorded:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, float]]] = []
        self.rewound: list[int] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.entries.append((step, dict(metrics)))

    def rewind(self, step: int) -> None:
        self.rewound.append(step)

    def close(self) -> None: ...


@pytest.fixture
def brackets() -> Brackets:
    return Brackets()


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return make_tiny_model(folder, hidden=32, layers=2, heads=2, intermediate=64)
