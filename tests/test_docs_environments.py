"""The environments of docs/environments.md are what they say: they keep the contract, fork, end and are trained."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError, Message, Rollout, StopReason, Task, user_prompt
from ramet.api import train
from ramet.config.schema import RolloutConfig, SystemPrompt
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.worker import RolloutWorker
from ramet.testing import Reply, ScriptedEngine, check_rollout_step, tiny_encoder
from ramet_arpo.branching import Arpo
from ramet_arpo.config import ArpoConfig

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "environments.md").read_text()
FILES = dict(re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
MODULES = ("ramet_guess", "ramet_interview")


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The page's modules, imported and offered as plugins."""
    for path, text in FILES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "src")
    monkeypatch.setenv("RAMET_PLUGINS", ",".join(MODULES))
    load_plugins.cache_clear()
    yield {name: importlib.import_module(name) for name in MODULES}
    load_plugins.cache_clear()
    for name in MODULES:
        sys.modules.pop(name, None)


def play(step: Any, script: Any, task: Task, policy: Any = None, **config: Any) -> list[Rollout]:
    async def main() -> list[Rollout]:
        encoder = tiny_encoder()
        worker = RolloutWorker(
            engine=ScriptedEngine(script, encoder),
            encoder=encoder,
            step=step,
            branch_policy=policy or Arpo(ArpoConfig(initial_rollouts=1, alpha=0, tau=0, beta=1)),
            tools={},
            config=RolloutConfig(**config),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=False,
        )
        [group] = await worker.run(RolloutRequest(tasks=[task], step=1))
        await worker.close()
        return list(group.rollouts)

    return asyncio.run(main())


TASK = Task(id="t", prompt=user_prompt("Find it."), answer=("Ulm",))


def counting(step: type) -> Any:
    """This environment, which counts what it has open."""

    class Counted(step):
        opened, closed, forked, finished = 0, 0, 0, 0

        async def open(self, task: Task, seed: int) -> Any:
            self.opened += 1
            return await super().open(task, seed)

        async def fork(self, state: Any) -> Any:
            self.forked += 1
            return await super().fork(state)

        async def close(self, state: Any) -> None:
            self.closed += 1

        async def finish(self, state: Any, stop: StopReason) -> Any:
            self.finished += 1
            return await super().finish(state, stop)

    return Counted()


def test_the_examples_keep_the_contract(examples: Any) -> None:
    check_rollout_step(examples["ramet_guess"].GuessStep(), replies=["1", "9", "5", "x"])
    check_rollout_step(
        examples["ramet_interview"].InterviewStep(),
        task=Task(id="t", prompt=user_prompt("?"), metadata={"user": ["And then?"]}),
    )


def test_a_fork_of_the_game_goes_on_with_the_same_secret_and_its_own_guesses(examples: Any) -> None:
    """ARPO forks the second turn, where the entropy is higher; the parent guesses on meanwhile."""
    step = counting(examples["ramet_guess"].GuessStep)

    def script(task: str, path: str, turn: int) -> Reply:
        digit = 0 if turn < 3 else turn - 2  # no guess before the fourth turn can be right
        return Reply(text=f"is it {digit}", entropies=(2.0 if turn == 1 else 1.0,), rest_s=0.002)

    root, fork = play(step, script, TASK, group_size=2, max_turns=20, max_response_tokens=2000)
    assert (fork.parent, fork.fork_turn) == ("0", 1)
    secret = root.infos[-1]["secret"]
    for rollout in (root, fork):
        assert (rollout.stop, rollout.answer) == (StopReason.DONE, str(secret))
        assert rollout.infos[-1] == {"guess": secret, "secret": secret, "guesses": secret + 3}
        assert rollout.turn_rewards == (*[-0.1] * (secret + 2), 1.0)
    assert root.response.startswith("\nFirst guess: is it 0\nhigher, 19 left: is it 0\nhigher, 18 left: ")
    assert step.forked >= 1 and step.finished == 2
    assert step.closed == step.opened + step.forked


def test_a_masked_game_ends_right(examples: Any) -> None:
    step = counting(examples["ramet_guess"].GuessStep)

    def script(task: str, path: str, turn: int) -> Reply:
        return Reply(text="0", fails="the engine is down" if turn == 2 and path == "0" else None)

    root, other = play(step, script, TASK, group_size=2, max_turns=4)
    assert (root.stop, root.fault.where, len(root.infos)) == (StopReason.FAULT, "engine", 2)
    assert (other.stop, other.infos[-1]["guesses"]) == (StopReason.TURN_LIMIT, 4)
    assert step.finished == 1
    assert step.closed == step.opened + step.forked


def test_the_interview_is_the_conversation_that_the_chat_template_makes(examples: Any) -> None:
    step = examples["ramet_interview"].InterviewStep()
    task = Task(id="t", prompt=user_prompt("Hello"), answer=("Ulm",), metadata={"user": ["Where to?", "Sure?"]})
    said = ["Hi.", "To Ulm.", "Yes, Ulm."]
    [rollout] = play(step, lambda task, path, turn: said[turn], task, group_size=1)
    talk = [Message(role="user", content="Hello")]
    for reply, question in zip(said, ["Where to?", "Sure?", None], strict=True):
        talk.append(Message(role="assistant", content=reply))
        talk += [] if question is None else [Message(role="user", content=question)]
    encoder = tiny_encoder()
    whole = [i for segment in rollout.segments for i in segment.token_ids]
    assert whole == list(encoder.markup(encoder.template.render(talk, generation_prompt=False)))
    assert (rollout.stop, rollout.answer, rollout.turn_rewards) == (StopReason.DONE, "Yes, Ulm.", (0.0, 1.0, 1.0))
    assert [dict(info) for info in rollout.infos] == [{"asked": "Where to?"}, {"asked": "Sure?"}, {}]


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    """A run of two steps with the game."""
    model = make_tiny_model(tmp_path / "tiny", hidden=32, layers=2, heads=2, intermediate=64, initializer_range=0.2)
    data = tmp_path / "games.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Game {i}.", "answer": "?"}) + "\n" for i in range(4)))
    return [
        "algorithm=arpo", "rollout_step=guess", "tools=[]", "rewards=[environment]", f"data.train=[{data}]",
        f"model.path={model}", "model.device=cpu", f"run.root={tmp_path}", "run.name=game", "run.deterministic=true",
        "data.max_prompt_tokens=32", "rollout_step.system_prompt=never", "rollout.group_size=4",
        "rollout.max_concurrent=8", "engine.params.slots=8", "rollout.max_response_tokens=300", "rollout.max_turns=4",
        "rollout.first_tokens=3", "branch_policy.params.initial_rollouts=2", "train.steps=2", "train.tasks_per_step=2",
        "policy.lr=1e-3", "trackers=[jsonl]",
    ]  # fmt: skip


def test_the_game_is_trained_for_two_steps_and_forked(examples: Any, keys: list[str], tmp_path: Path) -> None:
    train(keys)
    lines = [json.loads(line) for line in (tmp_path / "game/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all("train/grad_norm" in line and 0 <= line["step/hit"] <= 1 for line in lines)
    rollouts = []
    for step in (1, 2):
        with gzip.open(tmp_path / f"game/rollouts/step_{step:06d}.jsonl.gz", "rt") as groups:
            rollouts += [rollout for group in groups for rollout in json.loads(group)["rollouts"]]
    assert any(rollout["parent"] is not None for rollout in rollouts), "ARPO forked nothing"
    assert all(rollout["fault"] is None and "secret" in rollout["infos"][-1] for rollout in rollouts)


def test_a_game_that_cannot_be_forked_is_refused_before_the_start(
    examples: Any, keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples["ramet_guess"].GuessStep, "forks", "none")
    with pytest.raises(ConfigError) as caught:
        train(keys)
    [problem] = str(caught.value).splitlines()
    assert re.match(r"rollout_step: .*\(forks = 'none'\), and ramet_arpo\.branching\.Arpo of plugin 'arpo' ", problem)
    assert not (tmp_path / "game").exists()
