"""What engines reply: several versions in one turn, a wrong version, numbers that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet.models.encoder import Encoder
from ramet.policy.batching.rows import rows_of
from ramet.rollout.record import GroupRecord, read_records, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import Reply, ScriptedEngine
from ramet.types import Rollout, Segment

Play = Callable[..., Any]
SMILE = "<answer>2\U0001f600</answer>"  # seven tokens: a tag, one byte, four bytes of one character, a tag


def sampled(rollout: Rollout) -> list[Segment]:
    return [segment for segment in rollout.segments if segment.is_sampled]


def scored(groups: list[Any]) -> list[ScoredGroup]:
    return [
        ScoredGroup(task=g.task, rollouts=tuple(ScoredRollout(rollout=r, reward=0.0) for r in g.rollouts))
        for g in groups
    ]


def two_versions(task: str, path: str, turn: int) -> Reply:
    text = "<python>1</python>" if turn == 0 else SMILE
    return Reply(text=text, entropies=(1.0, 3.0), versions=(4, 5) if turn else (4,))


def test_a_turn_of_two_versions_is_two_segments_whose_texts_join(play: Play, encoder: Encoder) -> None:
    [rollout, _] = play(two_versions, group_size=2).rollouts
    first, old, new = sampled(rollout)
    assert [(s.turn, s.policy_version, len(s)) for s in (first, old, new)] == [(0, 4, 3), (1, 4, 4), (1, 5, 3)]
    assert (old.text, new.text) == ("<answer>2", "\U0001f600</answer>")  # the cut is inside the character
    assert list(old.token_ids + new.token_ids) == list(encoder.markup(SMILE))
    assert [len(s.logprobs or ()) for s in (old, new)] == [len(s.entropies or ()) for s in (old, new)] == [4, 3]
    assert (rollout.reply, rollout.answer) == (SMILE, "2\U0001f600")
    assert rollout.stats["drifted_segments"] == 0


def test_a_row_has_the_version_of_every_token(play: Play) -> None:
    row = rows_of(scored(play(two_versions, group_size=2).groups))[0]
    assert row.policy_versions[row.mask].tolist() == [4] * 3 + [4] * 4 + [5] * 3
    assert set(row.policy_versions[~row.mask].tolist()) == {-1}


def test_turns_of_several_versions_survive_the_record(play: Play, tmp_path: Path) -> None:
    records = [GroupRecord(step=1, group=group) for group in scored(play(two_versions, group_size=2).groups)]
    write_records(tmp_path / "r.jsonl.gz", records)
    assert list(read_records(tmp_path / "r.jsonl.gz")) == records


def test_a_turn_of_two_versions_counts_once(play: Play) -> None:
    metrics = play(two_versions, group_size=2, first_tokens=6).metrics
    assert metrics["rollout/mixed_version_share"] == 1
    assert metrics["rollout/entropy_after_tool"] == 2  # of the first six tokens, four of them of the first version
    assert metrics["rollout/turns_mean"] == 2
    assert metrics["rollout/executed_sampled_tokens"] == 2 * 10


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ((4,), "of policy version 4; expected 5"),
        ((6,), "of policy version 6; expected 5"),
        ((5, 6), "of policy version 5 to 6; expected 5"),
    ],
)
def test_a_reply_of_other_weights_than_the_engine_was_given_is_refused(
    play: Play, versions: tuple[int, ...], said: str
) -> None:
    def script(task: str, path: str, turn: int) -> Reply:
        return Reply(text=SMILE, versions=versions if path == "1" else (5,))

    played = play(script, group_size=3, version=5)
    assert [r.id for r in played.rollouts if not r.valid] == ["1"]
    fault = played.rollouts[1].fault
    assert fault.where == "engine" and said in fault.message
    assert played.metrics["rollout/stop/fault"] == 1 / 3


def test_with_updates_in_flight_replies_up_to_the_newest_version_are_taken(play: Play) -> None:
    def script(task: str, path: str, turn: int) -> Reply:
        return Reply(text=SMILE, versions={"0": (5,), "1": (5, 6), "2": (4, 5), "3": (6, 7)}[path])

    played = play(script, group_size=4, version=5, newest=lambda: 6)
    assert [r.valid for r in played.rollouts] == [True, True, False, False]
    assert "of policy version 6 to 7; expected 5 to 6" in played.rollouts[3].fault.message


def test_an_engine_that_starts_anew_with_its_first_weights_is_noticed(play: Play, encoder: Encoder) -> None:
    engine = ScriptedEngine(lambda *_: SMILE, encoder)
    assert all(r.valid for r in play(None, engine=engine, group_size=2, version=0).rollouts)
    assert not any(r.valid for r in play(None, engine=engine, group_size=2, version=3).rollouts)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_mask_their_rollout_alone(play: Play, number: float) -> None:
    def script(task: str, path: str, turn: int) -> Reply:
        match path:
            case "1":
                return Reply(text=SMILE, logprob=number)
            case "2":
                return Reply(text=SMILE, entropies=(1.0, number))
        return Reply(text=SMILE)

    played = play(script, group_size=4)
    assert [(r.id, r.fault.where) for r in played.rollouts if not r.valid] == [("1", "engine"), ("2", "engine")]
    assert "7 of its 7 log-probabilities are not finite" in played.rollouts[1].fault.message
    assert "3 of its 7 entropies are not finite" in played.rollouts[2].fault.message
    assert played.metrics["rollout/stop/fault"] == 0.5
