"""`ramet eval engine=openai`: a model that is a server, and servers that die."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose
from ramet.errors import ConfigErrors, InfraError
from ramet.evaluate.evaluation import run
from ramet.models.encoder import Encoder
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.testing import OpenAIServer, RawReply
from ramet.testing.doubles import tiny_encoder

pytestmark = pytest.mark.skipif(
    "arithmetic" not in load_plugins().registries.benchmarks, reason="the plugin ramet-benchmarks is not installed"
)
PRODUCT = re.compile(r"(\d+)\*(\d+)=\?")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without weights: the server has them."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=2, intermediate=64)
    (folder / "model.safetensors").unlink()
    return folder


class Solver:
    """A model that calculates, until it is `down`; `asked` counts requests."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.asked, self.dies_after = encoder, 0, 10**9

    def __call__(self, body: dict[str, Any]) -> str | RawReply:
        self.asked += 1
        if self.asked > self.dies_after:
            return RawReply(status=500, body="out of memory")
        left, right = PRODUCT.findall(self.encoder.decode(body["prompt"]))[-1]
        return f"<answer>{int(left) * int(right)}</answer>"


@pytest.fixture
def solver() -> Solver:
    return Solver(tiny_encoder())


@pytest.fixture
def server(solver: Solver) -> Iterator[OpenAIServer]:
    with OpenAIServer(solver, encode=solver.encoder.markup) as server:
        yield server


def overrides(model: Path, root: Path, server: OpenAIServer, *more: str) -> list[str]:
    return [
        f"model.path={model}",
        f"run.root={root}",
        "run.name=measured",
        "engine=openai",
        f"engine.params.server.urls=[{server.url}]",
        "engine.params.server.retries=0",
        "benchmarks=[arithmetic]",
        "benchmarks.arithmetic.limit=6",
        "evaluate.k=2",
        "rollout.max_response_tokens=64",
        "data.max_prompt_tokens=512",
        *more,
    ]


def test_a_server_is_measured_without_weights(model: Path, tmp_path: Path, server: OpenAIServer) -> None:
    more = ["benchmarks.arithmetic.sampling={repetition_penalty: 1.1, top_k: 20}"]
    found = run(compose(overrides(model, tmp_path, server, *more), job="eval"))
    assert found.scores == {"arithmetic": {"accuracy": 1.0}}
    assert len(server.requests) == 12
    assert {(body["repetition_penalty"], body["top_k"], body["temperature"]) for body in server.requests} == {
        (1.1, 20, 0.6)
    }
    assert len({body["seed"] for body in server.requests}) == 12
    body = json.loads(found.file.read_text())
    assert body["rules"]["arithmetic"]["sampling"]["repetition_penalty"] == 1.1


def test_a_server_that_dies_in_the_middle_loses_nothing(
    model: Path, tmp_path: Path, server: OpenAIServer, solver: Solver
) -> None:
    solver.dies_after = 5
    chosen = overrides(model, tmp_path, server, "rollout.max_concurrent=8")
    reason = r"engine: InfraError: engine\.params\.server: "
    with pytest.raises(InfraError, match=rf"^benchmark arithmetic: 7 of 12 rollouts .* {reason}"):
        run(compose(chosen, job="eval"))
    solver.dies_after = 10**9
    found = run(compose(chosen, job="eval"))
    assert found.scores == {"arithmetic": {"accuracy": 1.0}}
    assert solver.asked == 12 + 7  # what was answered is not asked again


def test_a_finished_evaluation_is_topped_up_and_asks_for_what_is_new_alone(
    model: Path, tmp_path: Path, server: OpenAIServer, solver: Solver
) -> None:
    run(compose(overrides(model, tmp_path, server, "evaluate.k=1"), job="eval"))
    assert solver.asked == 6
    first = {body["seed"] for body in server.requests}
    run(compose(overrides(model, tmp_path, server, "evaluate.k=4"), job="eval"))
    assert solver.asked == 24
    other = tmp_path / "at_once"
    run(compose(overrides(model, other, server, "evaluate.k=4"), job="eval"))
    assert {body["seed"] for body in server.requests[24:]} == {body["seed"] for body in server.requests[:24]} > first


def test_mistakes_are_told_before_the_start(model: Path, tmp_path: Path, server: OpenAIServer) -> None:
    wrong = ["engine.params.server.model=large", "benchmarks.arithmetic.split=tset"]
    with pytest.raises(ConfigErrors) as caught:
        run(compose(overrides(model, tmp_path, server, *wrong), job="eval"))
    model_problem, split = caught.value.problems
    assert model_problem.startswith("engine.params.server.model is 'large'") and server.url in model_problem
    assert split.startswith("benchmarks.arithmetic.split=tset: ")
    assert not (tmp_path / "measured").exists()


def test_a_server_cannot_be_trained_with(model: Path, tmp_path: Path, server: OpenAIServer) -> None:
    from ramet.components.build import Components
    from ramet.components.checks import check_needs

    chosen = [f"model.path={model}", "engine=openai", "algorithm=grpo", "rewards=[environment]"]
    config = compose(chosen, job="train").config
    assert check_needs(Components(config), config) == [
        "engine=openai: its weights cannot be updated, so it can only evaluate; train with torch or vllm"
    ]
