"""`ramet data from-rollouts`: what a run's best rollouts and its siblings of opposite outcomes become."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.cli.app import main
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import answered_rollout, written_rollout
from ramet.types import (
    CallStatus,
    Message,
    Origin,
    PrefixSource,
    Rollout,
    StopReason,
    Task,
    ThreadStart,
    ToolRecord,
)

TASK = Task(id="t", prompt=(Message(role="system", content="Be short."), Message(role="user", content="6*7?")))
PREFIX = PrefixSource(step=1, rollout="0", turns=1, opened_step=1, opened_root="0")
USER = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "6*7?"}]


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def called(id: str, first: str, last: str, *, parent: Rollout | None = None) -> Rollout:
    """A rollout with one call; one with a parent shares its first turn and result."""
    record = ToolRecord(
        turn=0, name="python", arguments={}, status=CallStatus.OK, text="42", wait_s=0, run_s=0, attempts=1
    )
    rollout = written_rollout(TASK, [first, last], results=["<result>42</result>"], answer=last, id=id)
    rollout = replace(rollout, tool_calls=(record,))
    if parent is None:
        return rollout
    segments = (*parent.segments[:3], rollout.segments[-1])
    return replace(rollout, segments=segments, parent=parent.id, fork_turn=1, n_shared=3)


def write_run(folder: Path, *steps: list[tuple[Rollout, float | None]]) -> Path:
    """A run's records: one group of these rollouts and rewards for each step."""
    (folder / "rollouts").mkdir(parents=True)
    for step, members in enumerate(steps, start=1):
        scored = tuple(ScoredRollout(rollout=rollout, reward=reward) for rollout, reward in members)
        record = GroupRecord(step=step, group=ScoredGroup(task=TASK, rollouts=scored))
        write_records(folder / f"rollouts/step_{step:06d}.jsonl.gz", [record])
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Step 1: a right root, its wrong fork, a wrong root. Step 2: all right, two of them with the same text."""
    right = called("0", "<python>6*7</python>", "<answer>42</answer>")
    wrong = called("0.0", "", "<answer>24</answer>", parent=right)
    other = written_rollout(TASK, ["<answer>7</answer>"], answer="7", id="1")
    same = [replace(answered_rollout(TASK, "42"), id=str(i)) for i in range(2)]
    longer = written_rollout(TASK, ["So <answer>42</answer>"], answer="42", id="2")
    return write_run(tmp_path / "run", [(right, 1.0), (wrong, 0.0), (other, 0.2)], [(r, 1.0) for r in (*same, longer)])


def made(run: Path, kind: str, *options: str) -> list[dict[str, Any]]:
    out = run / f"{kind}{len(list(run.iterdir()))}.jsonl"
    assert main(["data", "from-rollouts", str(run), f"--{kind}", str(out), *options]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_the_best_rollout_of_a_group_is_a_row_that_sft_reads(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = made(run, "sft")
    turns = [said("<python>6*7</python>"), {"role": "tool", "content": "42"}, said("<answer>42</answer>")]
    assert row == {"messages": [*USER, *turns], "task": "t", "data_source": "", "step": 1, "reward": 1.0}
    assert capsys.readouterr().out.startswith("2 groups, 6 rollouts: 1 rows for SFT in ")
    assert main(["data", "inspect", str(run / "sft1.jsonl"), "sft.mask_tags=python"]) == 0
    assert "1 trace" in capsys.readouterr().out


def test_rewards_and_numbers_filter_the_rows_and_a_text_is_a_row_once(run: Path) -> None:
    texts = [row["messages"][-1]["content"] for row in made(run, "sft", "--min-reward", "1", "--best", "3")]
    assert texts == ["<answer>42</answer>", "<think>I know it.</think><answer>42</answer>", "So <answer>42</answer>"]
    assert [row["step"] for row in made(run, "sft", "--min-reward", "0.1", "--best", "2", "--steps", "1")] == [1, 1]
    assert made(run, "sft", "--steps", "2") == []  # nothing is better than the mean


def test_turns_that_sft_refuses_give_no_row(tmp_path: Path) -> None:
    empty, twice = written_rollout(TASK, [""]), written_rollout(TASK, ["one", "two"], id="1")
    run = write_run(tmp_path / "run", [(empty, 1.0), (twice, 1.0), (written_rollout(TASK, ["three"], id="2"), 0.9)])
    (row,) = made(run, "sft", "--min-reward", "0.5")
    assert row["messages"][-1] == said("three")


def test_pairs_are_siblings_after_what_they_have_in_common(run: Path) -> None:
    after_the_call, from_the_prompt = sorted(made(run, "pairs"), key=lambda pair: -len(pair["prompt"]))
    call = [said("<python>6*7</python>"), {"role": "tool", "content": "42"}]
    assert after_the_call["prompt"] == [*USER, *call]
    assert after_the_call["chosen"] == [said("<answer>42</answer>")]
    assert after_the_call["rejected"] == [said("<answer>24</answer>")]
    assert (after_the_call["chosen_reward"], after_the_call["rejected_reward"]) == (1.0, 0.0)
    assert from_the_prompt["prompt"] == USER and from_the_prompt["rejected"] == [said("<answer>7</answer>")]
    assert made(run, "pairs", "--min-gap", "1.5") == []


def test_masked_rollouts_and_those_of_several_threads_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masked = (replace(answered_rollout(TASK, "1"), stop=StopReason.FAULT), None)
    threads = (replace(answered_rollout(TASK, "2"), id="1", thread_starts=(ThreadStart(0, 1),)), 1.0)
    observed = (written_rollout(TASK, ["go", "on"], results=["You are in a cave."], id="2"), 1.0)
    run = write_run(tmp_path / "run", [masked, threads, observed, (replace(answered_rollout(TASK, "3"), id="3"), 1.0)])
    (row,) = made(run, "sft", "--min-reward", "1", "--best", "9")
    assert row["messages"][-1]["content"].endswith("<answer>3</answer>")
    assert "2 rollouts left out: several threads, or texts that no tool returned" in capsys.readouterr().out


def test_rollouts_from_a_stored_prefix_part_where_it_ends(tmp_path: Path) -> None:
    right = called("0", "<python>6*7</python>", "<answer>42</answer>")
    turn = replace(right.segments[1], origin=Origin.INSERTED, logprobs=None, policy_version=None)
    begun = replace(right, segments=(right.segments[0], turn, *right.segments[2:]), prefix=PREFIX)
    last = called("1", "", "<answer>24</answer>").segments[-1]
    other = replace(begun, id="1", segments=(*begun.segments[:3], last))
    (pair,) = made(write_run(tmp_path / "run", [(begun, 1.0), (other, 0.0)]), "pairs")
    assert pair["prompt"][-1] == {"role": "tool", "content": "42"}
    assert (pair["chosen"], pair["rejected"]) == ([said("<answer>42</answer>")], [said("<answer>24</answer>")])


def test_a_text_of_no_tool_beside_a_tools_result_leaves_the_rollout_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An environment's first observation before a turn with a call, and a malformed call beside one that was made."""
    plain = called("0", "<python>6*7</python>", "<answer>42</answer>")
    prompt, *rest = plain.segments
    observed = replace(plain, segments=(prompt, replace(plain.segments[2], text="You are in a cave."), *rest))
    malformed = replace(plain, id="1", infos=({"calls_not_made": 1}, {}))
    run = write_run(tmp_path / "run", [(observed, 1.0), (malformed, 1.0)])
    assert made(run, "sft", "--min-reward", "1") == []
    assert "2 rollouts left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name a file"),
        (["--sft", "RUN"], "is there already"),
        (["--sft", "no/folder/x.jsonl"], "there is no folder"),
        (["--sft", "x.jsonl", "--pairs", "x.jsonl"], "name two files"),
        (["--sft", "x.jsonl", "--pairs", "../run/x.jsonl"], "name two files"),
        (["--sft", "x.jsonl", "--best", "0"], "--best=0"),
        (["--pairs", "x.jsonl", "--min-gap", "0"], "--min-gap=0"),
        (["--sft", "x.jsonl", "--steps", "3-1"], "--steps=3-1"),
        (["--sft", "x.jsonl", "--steps", "7"], "no rollouts of steps 7 to 7 are recorded"),
    ],
)
def test_what_cannot_be_written_says_why(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    assert main(["data", "from-rollouts", str(run), *(str(run) if o == "RUN" else o for o in options)]) == 1
    assert message in capsys.readouterr().err
    assert not (run / "x.jsonl").exists()
