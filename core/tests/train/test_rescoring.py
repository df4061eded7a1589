"""Sampled tokens under a teacher or after another context, and texts at the beginning of turns: as a direct pass."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ramet.cluster.local import LocalRanks
from ramet.components.build import Components
from ramet.components.checks import check_needs
from ramet.config.compose import compose
from ramet.config.schema import Config
from ramet.errors import ConfigErrors, PluginError
from ramet.models.loading import build_encoder
from ramet.models.tiny import TAGS, make_tiny_model
from ramet.policy.batching.rows import Floats, rows_of
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing import registered
from ramet.testing.doubles import written_rollout
from ramet.train.prepare import prepare
from ramet.train.rescoring import Rescorer
from ramet.train.specs import policy_spec
from ramet.types import AdvantageInputs, AdvantageOutput, Need, Probe, Rollout, Segment, Task, user_prompt

TASK = Task(id="t", prompt=user_prompt("6*7?"), answer=("42",))
HINT = " The answer is 42. <|end|>"


class Reads:
    """Asks for what its attributes say, and keeps what it was given."""

    needs: frozenset[Need] = frozenset({Need.RESCORED, Need.PROBED})

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=torch.where(batch.mask, 1.0, 0.0))

    def contexts(self, group: Sequence[Rollout], rewards: Sequence[float]) -> list[str | None]:
        self.rewards += rewards
        return [None if reward == 1 else HINT for reward in rewards]

    def probe(self, task: Task) -> Probe | None:
        return Probe(before="<answer>", text=task.answer[0]) if task.answer else None


class Distils(Reads):
    needs = frozenset({Need.RESCORED})
    contexts = property()  # type: ignore[assignment]  # as if it had none: hasattr is False


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=2, heads=2, intermediate=64)


@pytest.fixture
def config(model: Path, tmp_path: Path) -> Config:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "6*7?", "answer": "42"}\n')
    return compose([f"model.path={model}", f"data.train={tmp_path / 'tasks.jsonl'}"], job="train").config


def played(config: Config) -> list[ScoredGroup]:
    """Three rollouts: two turns, one turn, and a fork of the first that shares its first turn. The second is right."""
    prompt = build_encoder(config).prompt(TASK.prompt)
    first = written_rollout(TASK, ["a call", "one"], results=["found"])
    second = written_rollout(TASK, ["42"], id="1")
    fork = written_rollout(TASK, ["", "two"], id="0.0")
    rollouts = [
        replace(rollout, segments=(replace(rollout.segments[0], token_ids=prompt), *rollout.segments[1:]))
        for rollout in (first, second, fork)
    ]
    shared: tuple[Segment, ...] = rollouts[0].segments[:3]
    rollouts[2] = replace(
        rollouts[2], segments=(*shared, rollouts[2].segments[-1]), parent="0", fork_turn=1, n_shared=3
    )
    scored = tuple(ScoredRollout(rollout=rollout, reward=float(rollout.id == "1")) for rollout in rollouts)
    return [ScoredGroup(task=TASK, rollouts=scored)]


def direct(model: Path, prompt: Sequence[int], response: Sequence[int]) -> np.ndarray[Any, Any]:
    """Log-probabilities of all tokens of the response, by one forward pass of the plain model."""
    ids = torch.tensor([*prompt, *response])
    with torch.no_grad():
        logprobs = AutoModelForCausalLM.from_pretrained(model)(ids[None]).logits[0, :-1].log_softmax(-1)
    return np.asarray(logprobs.gather(1, ids[1:, None])[len(prompt) - 1 :, 0])


def scored(config: Config, estimator: Any, groups: list[ScoredGroup], what: str) -> list[Floats]:
    """What `Rescorer.rescored` or `Rescorer.probed` returns for all rows of the groups."""

    async def score() -> list[Floats]:
        ranks = LocalRanks(policy_spec(config, Components(config), 1), None)
        try:
            found: list[Floats] = await getattr(Rescorer(config, estimator, ranks), what)(rows_of(groups), groups)
        finally:
            await ranks.close()
        return found

    with registered("advantage", "reads", lambda: estimator):
        config.advantage.name = "reads"
        return asyncio.run(score())


def test_a_context_is_read_at_the_end_of_the_prompt_s_last_message(config: Config, model: Path) -> None:
    """Its special tokens are not parsed. A rollout that was given none is NaN."""
    estimator, groups, encoder = Reads(), played(config), build_encoder(config)
    rows = rows_of(groups)
    found = scored(config, estimator, groups, "rescored")
    assert estimator.rewards == [0.0, 1.0, 0.0]
    hinted = [*encoder.markup("<|user|>6*7?"), *encoder.untrusted(HINT), *encoder.markup("<|end|><|assistant|>")]
    for i in (0, 2):
        expected = direct(model, hinted, rows[i].response_ids.tolist()) * rows[i].mask
        np.testing.assert_allclose(found[i], expected, atol=1e-5)
    assert np.isnan(found[1]).all()


def test_a_probe_is_measured_at_the_beginning_of_each_turn(config: Config, model: Path) -> None:
    groups, encoder = played(config), build_encoder(config)
    rows = rows_of(groups)
    found = scored(config, Reads(), groups, "probed")
    probe = [*encoder.markup("<answer>"), *encoder.untrusted("42")]
    for i, starts in enumerate([[0, 11], [0], [0, 11]]):
        for turn, start in enumerate(starts):
            prefix = [*rows[i].prompt_ids.tolist(), *rows[i].response_ids[:start].tolist()]
            assert found[i][turn] == pytest.approx(direct(model, prefix, probe)[1:].mean(), abs=1e-5)
    silent = replace(groups[0].rollouts[1], rollout=replace(written_rollout(TASK, []), id="1"))
    (without_tokens,) = scored(config, Reads(), [ScoredGroup(task=TASK, rollouts=(silent, silent))], "probed")[:1]
    assert np.isnan(without_tokens).tolist() == [True]
    without = [replace(groups[0], task=replace(TASK, answer=()))]
    assert all(np.isnan(row).all() for row in scored(config, Reads(), without, "probed"))


def test_a_context_longer_than_the_model_is_left_out(config: Config) -> None:
    class Long(Reads):
        def contexts(self, group: Sequence[Rollout], rewards: Sequence[float]) -> list[str | None]:
            return ["x" * 1024, "x", None]

    found = scored(config, Long(), played(config), "rescored")
    assert [bool(np.isnan(row).any()) for row in found] == [True, False, True]


@pytest.mark.parametrize("given", [["one"], "abc", [1, 2, 3]])
def test_contexts_that_are_not_a_text_for_each_rollout_name_the_plugin(config: Config, given: Any) -> None:
    class Wrong(Reads):
        def contexts(self, group: Sequence[Rollout], rewards: Sequence[float]) -> list[str | None]:
            answer: list[str | None] = given
            return answer

    with pytest.raises(PluginError, match="contexts"):
        scored(config, Wrong(), played(config), "rescored")


def test_a_teacher_that_cannot_score_is_refused_before_the_start(config: Config, model: Path, tmp_path: Path) -> None:
    def problems(teacher: Path | None, estimator: Any = None) -> str:
        keys = [f"model.path={model}", f"data.train={config.data.train[0]}", "advantage=reads"]
        keys += ["data.max_prompt_tokens=100", "rollout.max_response_tokens=100", "engine=torch"]
        with registered("advantage", "reads", lambda: estimator or Distils()):
            with pytest.raises(ConfigErrors) as caught:
                prepare(compose([*keys, *([f"train.teacher={teacher}"] if teacher else [])], job="train"))
        return str(caught.value)

    size = {"hidden": 32, "layers": 2, "heads": 2, "intermediate": 64}
    other = make_tiny_model(tmp_path / "tags", tags=(*TAGS, "sql"), **size)  # type: ignore[arg-type]
    assert "another vocabulary than the policy's: 3 tokens differ, as '</sql>'" in problems(other)
    qwen3 = make_tiny_model(tmp_path / "qwen3", architecture="qwen3", **size)  # type: ignore[arg-type]
    assert "a model of the type qwen3, and the policy is of the type qwen2" in problems(qwen3)
    short = make_tiny_model(tmp_path / "short", max_positions=128, **size)  # type: ignore[arg-type]
    assert "has 128 positions" in problems(short)
    assert "train.teacher: 'nowhere' is not a folder" in problems(Path("nowhere"))
    assert "needs a teacher" in problems(None)
    plain = type("Plain", (Reads,), {"needs": frozenset()})()
    assert "reads no log-probabilities of a teacher" in problems(model, plain)


def test_an_estimator_that_needs_a_probe_must_have_one(config: Config) -> None:
    lacking = type("Lacking", (Distils,), {"needs": frozenset({Need.PROBED}), "probe": None})()
    with registered("advantage", "reads", lambda: lacking):
        config.advantage.name = "reads"
        with pytest.raises(PluginError, match=r"probe\(task\)"):
            check_needs(Components(config), config)
