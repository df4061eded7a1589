from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.config.schema import Config, ModelConfig, SftConfig, Strategy
from ramet.models.tiny import make_tiny_model
from ramet.planning.memory_sft import SftInputs
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import Machine
from ramet.sft.job import run
from ramet.tracking.jsonl import read_metrics
from ramet.types import Insert, Markup, Sampled, TracePart, Untrusted


class Brackets:
    """A step of the tests: what is between `<result>` and `</result>` was inserted, if a tool exists at all."""

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


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 rows of different lengths, which 16 sequences a step do not divide."""
    file = tmp_path_factory.mktemp("data") / "traces.jsonl"
    rows = [
        {
            "conversations": [
                {"from": "human", "value": f"{i}+{i}?"},
                {"from": "gpt", "value": f"<answer>{2 * i}</answer>{'.' * (i % 7)}"},
            ]
        }
        for i in range(50)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def sft_arguments(tiny_model: Path, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """24 steps with checkpoints at 8 and 16. All runs of a module are in one folder."""
    return [
        f"model.path={tiny_model}", f"sft.data=[{traces}]", f"run.root={tmp_path_factory.mktemp('runs')}",
        "run.threads=1", "sft.lr=3e-3", "sft.sequences_per_step=8", "sft.trainer.max_steps=24",
        "sft.trainer.save_steps=8", "sft.trainer.logging_steps=1", "rollout_step.system_prompt=never",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def sft_run(sft_arguments: list[str]) -> Callable[..., Path]:
    """Runs the job under a name; returns its directory."""

    def start(name: str, *more: str) -> Path:
        resolved = compose([*sft_arguments, f"run.name={name}", *more], job="sft")
        run(resolved)
        return Path(resolved.config.run.root) / name

    return start


@pytest.fixture(scope="module")
def one_rank(sft_run: Callable[..., Path]) -> Path:
    return sft_run("one")


@pytest.fixture
def sft_inputs(tiny_model: Path) -> Callable[..., SftInputs]:
    """The plan of the tiny model on a CPU, of two ranks if there is a strategy."""

    def build(strategy: str) -> SftInputs:
        config = Config(model=ModelConfig(path=str(tiny_model)), sft=SftConfig(strategy=Strategy(strategy)))
        config.cluster.policy_workers = 1 if strategy == "none" else 2
        machine = Machine(cuda=False, devices=1, device_bytes=2**30)
        return SftInputs(config=config, shape=read_shape(config.model), machine=machine)

    return build


@pytest.fixture(scope="session")
def losses() -> Callable[[Path], list[float]]:
    """The loss of every step of a run."""
    return lambda folder: [entry.metrics["sft/loss"] for entry in read_metrics(folder / "metrics.jsonl")]


@pytest.fixture(scope="session")
def when() -> Callable[..., AbstractContextManager[None]]:
    """Within the block: call `act` once, as soon as a file is there or a condition holds."""

    @contextmanager
    def watched(happened: Path | Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
        over = threading.Event()
        holds = happened.exists if isinstance(happened, Path) else happened

        def watch() -> None:
            while not over.wait(0.02):
                if holds():
                    act()
                    return

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    return watched
