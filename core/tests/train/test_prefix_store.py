"""What a run keeps of its groups for policies that start from stored prefixes, and how it goes on with it."""

from __future__ import annotations

import json
import logging
from array import array
from pathlib import Path

import pytest

from ramet.config.schema import Config, ModelConfig
from ramet.errors import ConfigError
from ramet.models.tiny import make_tiny_model
from ramet.rollout.config import TagsConfig
from ramet.rollout.prefixes import prefixes_of
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.train.prefix_store import PrefixStore, prefix_origin
from ramet.types import Origin, Rollout, Segment, SegmentKind, StopReason, Task, user_prompt

ORIGIN = {"model.tokenizer": "sha256 aa", "rollout_step": "tags", "rollout_step.params": "{}"}


def segment(kind: SegmentKind, turn: int, n: int) -> Segment:
    origin = Origin.SAMPLED if kind is SegmentKind.TURN else Origin.INSERTED
    return Segment(origin=origin, kind=kind, turn=turn, text="x" * n, token_ids=array("i", [7] * n))


PROMPT = segment(SegmentKind.PROMPT, 0, 4)


def group(task: str, *rewards: float, n: int = 3) -> ScoredGroup:
    """Rollouts of two turns; of each `n` sampled tokens and a result of two are before the last."""
    one = Task(id=task, prompt=user_prompt("?"))
    rollouts = [
        Rollout(
            id=str(i),
            task=one,
            stop=StopReason.ANSWER,
            segments=(
                PROMPT,
                segment(SegmentKind.TURN, 0, n),
                segment(SegmentKind.RESULT, 0, 2),
                segment(SegmentKind.TURN, 1, 5),
            ),
        )
        for i in range(len(rewards))
    ]
    scored = (ScoredRollout(rollout=r, reward=reward) for r, reward in zip(rollouts, rewards, strict=True))
    return ScoredGroup(task=one, rollouts=tuple(scored))


def tasks(*ids: str) -> list[Task]:
    return [Task(id=id, prompt=user_prompt("?")) for id in ids]


def steps(store: PrefixStore, *ids: str) -> dict[str, int]:
    return {id: record.step for id, record in store.of(tasks(*ids)).items()}


def test_the_newest_group_of_a_task_whose_rewards_differed_is_kept() -> None:
    store = PrefixStore(1000, ORIGIN)
    store.add(1, [group("a", 0, 1), group("b", 0, 1), group("c", 1, 1)])
    store.add(2, [group("a", 1, 0), group("b", 1, 1)])
    assert steps(store, "a", "b", "c", "d") == {"a": 2, "b": 1}
    assert store.metrics() == {"rollout/stored_groups": 2, "rollout/stored_tokens": 28}


def test_the_oldest_groups_go_first_and_one_that_is_too_large_is_not_kept() -> None:
    store = PrefixStore(28, ORIGIN)
    store.add(1, [group("a", 0, 1), group("b", 0, 1)])
    store.add(2, [group("a", 0, 1)])  # now `b` is the oldest
    store.add(3, [group("c", 0, 1)])
    assert steps(store, "a", "b", "c") == {"a": 2, "c": 3}
    store.add(4, [group("d", 0, 1, n=30)])
    assert steps(store, "a", "b", "c", "d") == {} and store.n_tokens == 0
    nothing = PrefixStore(0, ORIGIN)
    nothing.add(1, [group("a", 0, 1)])
    assert steps(nothing, "a") == {}


def test_a_copy_stays_as_it_was() -> None:
    store = PrefixStore(1000, ORIGIN)
    store.add(1, [group("a", 0, 1)])
    copied = store.copy()
    store.add(2, [group("a", 0, 1), group("b", 0, 1)])
    assert steps(copied, "a", "b") == {"a": 1}
    assert (copied.n_tokens, store.n_tokens) == (14, 28)


def test_a_resumed_run_has_what_was_saved_in_the_same_order(tmp_path: Path) -> None:
    store = PrefixStore(28, ORIGIN)
    store.add(1, [group("a", 0, 1), group("b", 0, 1)])
    store.save(tmp_path)
    resumed = PrefixStore(28, ORIGIN)
    resumed.load(tmp_path)
    both = tasks("a", "b")
    assert resumed.of(both) == store.of(both)
    assert [prefixes_of(one) for one in resumed.of(both).values()] == [prefixes_of(o) for o in store.of(both).values()]
    for one in (store, resumed):
        one.add(2, [group("c", 0, 1)])
        assert steps(one, "a", "b", "c") == {"b": 1, "c": 2}


def test_a_checkpoint_of_a_run_that_stored_nothing_gives_nothing(tmp_path: Path) -> None:
    store = PrefixStore(28, ORIGIN)
    store.load(tmp_path)
    assert store.metrics() == {"rollout/stored_groups": 0, "rollout/stored_tokens": 0}


def test_prefixes_of_another_tokenizer_or_step_protocol_are_refused_with_both(tmp_path: Path) -> None:
    PrefixStore(28, ORIGIN).save(tmp_path)
    now = {"model.tokenizer": "sha256 bb", "rollout_step": "hermes", "rollout_step.params": "{}"}
    with pytest.raises(ConfigError) as raised:
        PrefixStore(28, now).load(tmp_path)
    rest = (
        "a rollout cannot continue from them: undo the change, choose another run.name, or a branch policy that starts "
        "from none"
    )
    file = tmp_path / "prefixes.jsonl.gz"
    assert str(raised.value).splitlines() == [
        f"{file}: its prefixes were written with model.tokenizer sha256 aa, now it is sha256 bb; {rest}",
        f"{file}: its prefixes were written with rollout_step tags, now it is hermes; {rest}",
    ]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store = PrefixStore(28, ORIGIN)
    store.save(tmp_path)
    (tmp_path / "prefixes.json").write_text("{")
    with pytest.raises(ConfigError) as raised:
        store.load(tmp_path)
    assert str(raised.value).startswith(
        f"{tmp_path / 'prefixes.json'}: not written by a run with its stored prefixes: Expecting property name"
    )


def test_the_origin_names_tokenizer_template_step_and_its_options(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    folder = make_tiny_model(tmp_path / "m", hidden=16, layers=1, heads=2, intermediate=32)
    config = Config(model=ModelConfig(path=str(folder)))
    config.rollout_step.params = TagsConfig(answer="final")
    first = prefix_origin(config)
    assert first["rollout_step"] == "tags" and json.loads(first["rollout_step.params"])["answer"] == "final"
    (tmp_path / "template").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    config.model.chat_template = str(tmp_path / "template")
    second = prefix_origin(config)
    assert first["model.tokenizer"].startswith("sha256 ") and first["model.tokenizer"] != second["model.tokenizer"]
