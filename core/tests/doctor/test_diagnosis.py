"""`diagnose`: what it finds in runs that the real recorder and tracker wrote, and in what order."""

from __future__ import annotations

import json
import logging
import math
import time
import tracemalloc
from array import array
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ramet.cli import doctor as command
from ramet.doctor import diagnosis, stored_run
from ramet.doctor.diagnosis import CHECKS, EXPLAINS, diagnose, diagnosed
from ramet.doctor.reading import Seen, thirds, trend
from ramet.doctor.run_checks import formats, rewards, rollouts, sft
from ramet.errors import ConfigError, InfraError
from ramet.plugins import extensions
from ramet.plugins.extensions import ExtensionEntry
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.tracking.jsonl import JsonlTracker, evenly_spaced
from ramet.types import (
    CallStatus,
    Fault,
    Finding,
    Group,
    Origin,
    RecordedGroup,
    Rollout,
    Segment,
    SegmentKind,
    Severity,
    StopReason,
    StoredRun,
    Task,
    ToolRecord,
    user_prompt,
)

STEPS, GROUPS, SIZE = 6, 8, 4
HEALTHY = {
    "group/no_signal_share": 0.1,
    "rollout/entropy": 0.4,
    "rollout/tool_use": 1.0,
    "rollout/forks_per_group": 2.0,
    "rollout/sampled_tokens_mean": 20.0,
    "rollout/masked_share": 0.0,
    "train/approx_kl": 0.001,
    "train/ratio_max": 1.3,
    "train/ratio_p99": 1.1,
    "train/clip_fraction": 0.01,
    "train/lr": 1e-6,
    "train/optimizer_steps": 2.0,
    "train/engine_gap_mean": 0.001,
    "time/step_s": 0.5,
}
CONFIG = """
rollout: {group_size: 4, max_response_tokens: 80, max_turns: 4, max_tool_calls: 3, temperature: 1.0}
rollout_step: {name: tags, params: {think: think, result: result, answer: answer}}
branch_policy: {name: arpo, params: {initial_rollouts: 2, tau: 0.5}}
tools: {search: {max_result_tokens: 48, concurrency: 4}}
policy: {lr: 1.0e-6}
"""


def played(index: int, gold: str, **change: Any) -> ScoredRollout:
    """A rollout that searches and answers: every second one is right."""
    values = {
        "answer": gold if index % 2 else "wrong",
        "call": CallStatus.OK,
        "result": "a page",
        "cut": False,
        **change,
    }
    asked, answer = f"<search>name {index}</search>", values["answer"]
    call = ToolRecord(
        turn=0, name="search", arguments={"query": values.get("query", "name")}, status=values["call"] or CallStatus.OK,
        text=values["result"], wait_s=0.0, run_s=0.1, attempts=1, truncated=values["cut"],
    )  # fmt: skip
    said = values.get("said", f"<answer>{answer}</answer>" if answer else "")
    texts = [(SegmentKind.PROMPT, 0, "who?"), (SegmentKind.TURN, 0, asked), (SegmentKind.TURN, 1, said)]
    if values["call"] is None:
        texts.pop(1)
    rollout = Rollout(
        id=str(index),
        task=Task(
            id=f"task {gold}", prompt=user_prompt("who?"), answer=(gold,), data_source=values.get("source", "people")
        ),
        segments=tuple(segment(*text) for text in texts),
        stop=values.get("stop", StopReason.ANSWER if answer else StopReason.END),
        answer=answer,
        tool_calls=() if values["call"] is None else (call,),
        infos=values.get("infos", ()),
        fault=values.get("fault"),
        stats={"seconds": 0.3, "tool_s": 0.1, **values.get("stats", {})},
    )
    reward = None if rollout.fault else values.get("reward", float(answer == gold))
    parts = {} if reward is None else {"qa": reward, **values.get("parts", {})}
    return ScoredRollout(rollout=rollout, reward=reward, parts=parts)


def segment(kind: SegmentKind, turn: int, text: str) -> Segment:
    ids = array("i", list(text.encode()))
    if kind is SegmentKind.PROMPT:
        return Segment(origin=Origin.INSERTED, kind=kind, turn=turn, text=text, token_ids=ids)
    ones = array("f", [0.5] * len(ids))
    return Segment(
        origin=Origin.SAMPLED, kind=kind, turn=turn, text=text, token_ids=ids, logprobs=ones, entropies=ones,
        policy_version=0,
    )  # fmt: skip


def write_run(
    folder: Path,
    metrics: Mapping[str, float | Sequence[float]] = {},
    change: Mapping[str, Any] = {},
    config: str = CONFIG,
    job: str = "train",
) -> Path:
    """A run of six steps whose reward stays. `metrics` are of all steps or one each, `change` is of all rollouts."""
    tracker = JsonlTracker(folder / "metrics.jsonl")
    (folder / "rollouts").mkdir()
    (folder / "config.yaml").write_text(config)
    (folder / "manifest.json").write_text(json.dumps({"job": job}))
    for step in range(1, STEPS + 1):
        values = {"reward/roots_mean": 0.4 + 0.02 * (step % 2), **HEALTHY, **metrics}
        tracker.log(step, {k: v[step - 1] if isinstance(v, Sequence) else v for k, v in values.items()})
        groups = [scored_group(step, group, change) for group in range(GROUPS)]
        write_records(folder / f"rollouts/step_{step:06}.jsonl.gz", (GroupRecord(step=step, group=g) for g in groups))
    return folder


def scored_group(step: int, group: int, change: Mapping[str, Any]) -> ScoredGroup:
    """A group. A function in `change` is given step, group and the rollout's index."""
    rollouts = tuple(
        played(i, f"gold{group}", **{k: v(step, group, i) if callable(v) else v for k, v in change.items()})
        for i in range(SIZE)
    )
    return ScoredGroup(task=rollouts[0].rollout.task, rollouts=rollouts)


RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
FAULTS: dict[str, dict[str, Any]] = {
    "masked": {
        "metrics": {"rollout/masked_share": 0.3},
        "change": {"fault": Fault(where="tool:search", message="503"), "stop": StopReason.FAULT},
    },
    "other-form": {"change": {"call": None, "said": '<tool_call>{"name": "search"}</tool_call>', "answer": None}},
    "no-format": {"change": {"call": None, "said": "I do not know", "answer": None}},
    "cut": {
        "metrics": {"rollout/stop/length": 0.6, "group/no_signal_share": 1.0},
        "change": {"answer": None, "stop": StopReason.LENGTH},
    },
    "tool-fails": {"change": {"call": CallStatus.ERROR, "result": "KeyError"}},
    "tool-cut": {"change": {"cut": True}},
    "tool-unused": {"metrics": {"rollout/tool_use": 0.0, "rollout/forks_per_group": 0.0}, "change": {"call": None}},
    "misjudged": {"metrics": {"group/no_signal_share": 1.0}, "change": {"reward": 0.0}},
    "sure": {"change": {"said": "<answer>same</answer>", "call": None}},
    "not-finite": {"metrics": {"train/skipped_updates": 2.0, "train/optimizer_steps": 0.0}},
    "update-large": {"metrics": {"train/approx_kl": [0.0, 0.5, 2.0, 0.1, 0.0, 0.0]}},
    "update-small": {"metrics": {"train/lr": 1e-12}},
    "kl-coef": {"metrics": {"train/kl_coef": 10.0, "train/kl_reference": 0.0}},
    "kl-grows": {"metrics": {"train/kl_reference": [0.0, 0.1, 0.5, 1.0, 2.0, 4.0]}},
    "engine-gap": {"metrics": {"train/engine_gap_mean": 0.3}},
    "entropy-grows": {"metrics": {"rollout/entropy": [0.4, 0.5, 0.8, 1.2, 1.6, 2.0]}},
    "length-grows": {"metrics": {"rollout/sampled_tokens_mean": [20.0, 30.0, 40.0, 50.0, 60.0, 80.0]}},
    "reward-falls": {"metrics": {"reward/roots_mean": [0.3, 0.5, 0.6, 0.6, 0.2, 0.1]}},
    "hacked": {
        "metrics": {
            "reward/roots_mean": RISING,
            "reward/format": RISING,
            "valid/reward": [0.5, 0.5, 0.4, 0.4, 0.3, 0.2],
        }
    },
    "no-signal": {"metrics": {"group/no_signal_share": 1.0}, "change": {"answer": "wrong"}},
    "dead-part": {"change": {"parts": {"format": 0.0}}},
    "no-forks": {"metrics": {"rollout/forks_per_group": 0.0}},
    "clip-inert": {"metrics": {"train/clip_fraction": 0.0, "train/ratio_p99": 3.0}},
    "slow-tools": {"metrics": {"time/step_s": 9.0}, "change": {"stats": {"seconds": 2.0, "tool_s": 1.5}}},
    "slow-judge": {"metrics": {"time/step_s": 9.0, "time/rollout_s": 8.0, "rollout/seconds": 1.0}},
}
OTHER_FORMS: list[tuple[str, dict[str, Any]]] = [
    ("tool-fails", {"change": {"result": "Error: 502"}}),
    ("tool-fails", {"change": {"result": "no results", "query": lambda step, group, i: f"name {group} {i}"}}),
    ("other-form", {"change": {"said": "<final>gold</final>", "answer": None}}),
    ("no-format", {"metrics": {"rollout/entropy": 5.0}, "change": {"said": "<think>\x07", "answer": None}}),
    ("misjudged", {"change": {"answer": lambda step, group, i: f"\\boxed{{gold{group}}}", "reward": 0.0}}),
    (
        "agent-crashed",
        {
            "change": {
                "answer": None,
                "infos": lambda step, group, i: ({"agent": "failed", "error": "raised KeyError: 'x'"},),
            }
        },
    ),
    (
        "collapsed",
        {"change": {"call": None, "said": lambda step, group, i: f"<answer>{0 if step == STEPS else i}</answer>"}},
    ),
    (
        "one-source",
        {
            "change": {
                "source": lambda step, group, i: "odd" if group % 2 else "even",
                "answer": lambda step, group, i: "wrong" if group % 2 or i else f"gold{group}",
            }
        },
    ),
    (
        "stragglers",
        {
            "metrics": {"time/step_s": 9.0},
            "change": {"stats": lambda step, group, i: {"seconds": 0.3 if group else 8.0}},
        },
    ),
]


@pytest.mark.parametrize(("name", "run"), [*FAULTS.items(), *OTHER_FORMS])
def test_a_fault_is_named_first(name: str, run: dict[str, Any], tmp_path: Path) -> None:
    findings = diagnose(write_run(tmp_path, **run))

    assert findings[0].name == name, [finding.name for finding in findings]
    assert findings[0].fix and findings[0].page == f"docs/doctor.md#{name}"


@pytest.mark.parametrize(
    "metrics", [{}, {"reward/roots_mean": RISING, "rollout/entropy": [0.4, 0.3, 0.2, 0.2, 0.1, 0.1]}]
)
def test_nothing_is_found_in_a_healthy_run(metrics: dict[str, Any], tmp_path: Path) -> None:
    assert diagnose(write_run(tmp_path, metrics), most=None) == []


def test_a_finding_names_rollouts_that_show_it(tmp_path: Path) -> None:
    (finding,) = diagnose(write_run(tmp_path, **FAULTS["misjudged"]))

    assert [(ref.kind, ref.step, ref.task, ref.rollout) for ref in finding.rollouts][:1] == [
        ("step", 1, "task gold0", "1")
    ]
    assert "gold0" in finding.text


def test_a_warning_comes_before_the_problem_that_it_explains(tmp_path: Path) -> None:
    metrics = {"rollout/stop/length": 0.3, "group/no_signal_share": 1.0}
    change = {"answer": "wrong", "stop": StopReason.LENGTH}
    names = [(f.name, f.severity) for f in diagnose(write_run(tmp_path, metrics, change))]

    assert names == [("cut", Severity.WARNING), ("no-signal", Severity.PROBLEM)]


def test_equal_rewards_are_no_fault_where_something_else_is_learned_from(tmp_path: Path) -> None:
    """A teacher gives advantages, and a group of one has nothing to differ from. A KL in the reward is no signal."""

    def found(name: str, config: str = CONFIG, **more: float) -> list[str]:
        metrics = {"group/no_signal_share": 1.0, "train/rows": 32.0, "train/rows_without_signal": 0.0, **more}
        (tmp_path / name).mkdir()
        run = write_run(tmp_path / name, metrics, {"answer": "wrong"}, config)
        return [finding.name for finding in diagnose(run, most=None) if finding.name == "no-signal"]

    assert found("teacher") == []
    assert found("silent", **{"train/rows_without_signal": 30.0}) == ["no-signal"]
    assert found("kl", **{"train/kl_reward": 0.1}) == ["no-signal"]
    assert found("one", CONFIG.replace("group_size: 4", "group_size: 1"), **{"train/kl_reward": 0.1}) == []


def test_what_follows_from_another_finding_is_shown_on_request_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path, **FAULTS["misjudged"])

    assert [finding.name for finding in diagnose(run)] == ["misjudged"]
    assert {finding.name for finding in diagnose(run, most=None)} == {"misjudged", "no-signal"}


def test_no_findings_explain_each_other() -> None:
    def reached(name: str, seen: frozenset[str] = frozenset()) -> frozenset[str]:
        assert name not in seen, f"{name} explains itself through {sorted(seen)}"
        return frozenset().union(*(reached(n, seen | {name}) | {n} for n in EXPLAINS.get(name, frozenset()) - {name}))

    assert all(name not in reached(name) for name in EXPLAINS)


def test_every_finding_has_its_paragraph_in_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs/doctor.md").read_text()
    sources = "".join(path.read_text() for path in (Path(diagnosis.__file__).parent / "run_checks").glob("*.py"))
    headings = {line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")}

    assert all(f'"{name}"' in sources for name in headings)
    assert {*EXPLAINS, *(n for names in EXPLAINS.values() for n in names), *FAULTS} <= headings
    assert len(headings) >= len(CHECKS)


def test_the_check_in_the_page_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/doctor.md").read_text()
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    run = write_run(tmp_path, {"tool/weather/shared": 19.0, "tool/weather/calls": 20.0})

    (finding,) = names["check"](stored_run.read_stored_run(run))
    assert finding.text == "114 of 120 calls were answered by others"


def test_a_broken_record_is_left_out_and_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run = write_run(tmp_path / "run", **FAULTS["tool-fails"])
    (run / "rollouts/step_000001.jsonl.gz").write_bytes(b"not gzip")

    assert diagnose(run)[0].name == "tool-fails"
    with pytest.raises(ConfigError, match="nothing to examine"):
        diagnose(tmp_path)


@pytest.mark.parametrize("text", ["\n" * 20_000, "<a>" * 20_000, "\\boxed{" * 20_000, " " * 20_000, "<|" * 20_000])
def test_the_time_of_a_text_grows_with_its_length_alone(text: str) -> None:
    rollout = played(0, "gold", said=text, call=None, answer=text).rollout
    group = RecordedGroup(kind="step", step=1, group=Group(task=rollout.task, rollouts=(rollout,), scores={}))
    run = StoredRun(folder=Path(), job="train", config={}, metrics={}, groups=(group,))
    began = time.perf_counter()

    assert formats._unread_form(run, Seen(group, rollout), "tags") is None
    assert not rewards._is_right(Seen(group, rollout))
    assert time.perf_counter() - began < 0.5


def test_a_box_and_the_end_of_a_reply_are_read_as_before() -> None:
    assert rewards._plain("so $\\boxed{\\frac{1}{2}}$.") == "\\frac{1}{2}"
    assert rewards._plain("\\text{ open\n\\boxed{Paris}") == "paris"
    ends = {text: rewards._ends_with(text, "12") for text in ("12", "x=12", "is 12", "-12", "112", "12 m")}
    assert ends == {"12": True, "x=12": True, "is 12": True, "-12": False, "112": False, "12 m": False}
    assert formats._closed_tags("</b><a><c></a><b>") == ["a"]


def test_large_updates_do_not_explain_rewards_that_are_wrong_or_a_sure_start(tmp_path: Path) -> None:
    metrics = {"train/approx_kl": 0.4, "train/engine_gap_mean": 0.3, "group/no_signal_share": 1.0}
    run = write_run(tmp_path, metrics, {"reward": 0.0})

    assert [finding.name for finding in diagnose(run)] == ["engine-gap", "misjudged"]
    assert not any({"misjudged", "sure", "one-source", "dead-part"} & EXPLAINS[n] for n in ("update-large", "kl-grows"))


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        ({"reward/tool_cost": [-0.02, -0.05, -0.1, -0.12, -0.17, -0.2]}, False),  # a penalty
        ({"reward/qa/calls": [5.5, 5.0, 4.0, 3.0, 2.5, 2.2]}, False),  # what a reward reports, not a reward
        ({"reward/style": [0.5, 0.49, 0.47, 0.46, 0.44, 0.42]}, False),  # little beside what is gained
        ({"reward/style": [0.5, 0.45, 0.4, 0.3, 0.2, 0.1]}, True),
    ],
)
def test_one_part_falls_if_it_is_a_reward_and_loses_much(metrics: dict[str, Any], found: bool, tmp_path: Path) -> None:
    run = write_run(tmp_path, {"reward/roots_mean": RISING, "reward/qa": RISING, **metrics})

    assert [finding.name for finding in diagnose(run)] == ["hacked"] * found


@pytest.mark.parametrize(
    ("reward", "parts", "names"),
    [
        (0.2, {"length": -0.8}, ["outweighed"]),
        (0.0, {"format": 0.0}, ["outweighed"]),
        (0.1, {"qa": 0.0, "format": 1.0}, ["misjudged"]),  # format says nothing of the answer
    ],
)
def test_an_answer_that_its_reward_takes_for_right_is_not_misjudged(
    reward: float, parts: dict[str, float], names: list[str], tmp_path: Path
) -> None:
    change = {
        "reward": lambda step, group, i: reward if i % 2 and group else float(i % 2),
        "parts": lambda step, group, i: {"qa": float(i % 2), **(parts if group else {"format": 1.0})},
    }

    findings = diagnose(write_run(tmp_path, {}, change, CONFIG + "rewards: {format: {combine: multiply}}"), most=None)

    assert [finding.name for finding in findings] == names
    assert names == ["misjudged"] or findings[0].what == f"the reward {next(iter(parts))} outweighs right answers"


def test_values_of_the_configuration_may_be_variables_and_texts(tmp_path: Path) -> None:
    config = CONFIG.replace("1.0e-6", "'${oc.env:LR}'").replace("temperature: 1.0", "temperature: '${oc.env:T}'")
    config += "train: {steps: '${oc.env:STEPS}', kl_coef: high, entropy_coef: [1]}\n"
    metrics = {"train/approx_kl": 0.5, "rollout/entropy": [0.4, 0.5, 0.8, 1.2, 1.6, 2.0], "train/lr": 1e-12}
    findings = diagnose(write_run(tmp_path, metrics, config=config), most=None)

    assert [finding.name for finding in findings] == ["update-large", "update-small", "entropy-grows"]
    assert "policy.lr=${oc.env:LR}" in findings[0].text


def test_a_check_of_the_core_that_fails_is_a_note_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(diagnosis, "CHECKS", (broken_check, check_of_a_package))
    own, failed = diagnose(write_run(tmp_path))

    assert (own.what, failed.what, failed.severity) == ("mine", "the check broken_check", Severity.NOTE)
    assert "the check itself failed: ValueError: not today" in caplog.text


def test_a_value_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    rising = [*RISING[:5], math.nan]

    assert trend(rising) > 2 and thirds([math.nan, 1.0, 2.0, 3.0]) == (1.0, 3.0)
    assert diagnose(write_run(tmp_path, {"reward/roots_mean": rising}), most=None) == []


@pytest.mark.parametrize(
    ("metrics", "config"),
    [
        (FAULTS["clip-inert"]["metrics"], "policy_loss: {name: cispo, params: {clip_low: 1.0, clip_high: 4.0}}"),
        (FAULTS["clip-inert"]["metrics"], "policy_loss: {name: dppo}"),
        ({"train/clip_fraction": 0.7}, "policy_loss: {name: gspo}"),
        (FAULTS["reward-falls"]["metrics"], "data: {order: curriculum}"),
    ],
)
def test_what_a_setting_does_by_design_is_not_found(metrics: dict[str, Any], config: str, tmp_path: Path) -> None:
    assert diagnose(write_run(tmp_path, metrics, config=CONFIG + config), most=None) == []


def test_the_clip_is_shown_by_the_options_that_are_set(tmp_path: Path) -> None:
    config = CONFIG + "policy_loss: {name: aepo, params: {clip_high: 2.5}}"
    (finding,) = diagnose(write_run(tmp_path, FAULTS["clip-inert"]["metrics"], config=config))

    assert finding.text.endswith("reaches 3; policy_loss.params.clip_high=2.5")


def test_a_policy_far_from_its_reference_is_not_held_by_the_kl(tmp_path: Path) -> None:
    metrics = {"train/kl_coef": 0.3, "train/kl_reference": [0.0, 0.1, 0.5, 1.0, 4.0, 8.7]}

    assert [finding.name for finding in diagnose(write_run(tmp_path, metrics), most=None)] == ["kl-grows"]


@pytest.mark.parametrize(("status", "text"), [("failed", "after step 6: ramet: out of disk"), ("finished", None)])
def test_the_end_of_the_log_is_read_if_the_run_failed(
    status: str, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = (SimpleNamespace(status=status),)
    monkeypatch.setattr(rollouts, "read_manifest", lambda path: SimpleNamespace(attempts=attempts))
    run = stored_run.read_stored_run(write_run(tmp_path))
    with (tmp_path / "run.log").open("wb") as log:
        log.seek(1 << 26)
        log.write(b"\n09:00 ERROR ramet: out of disk\nend\n")
    tracemalloc.start()

    assert [finding.text for finding in rollouts.ended(run)] == ([text] if text else [])
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


def test_few_files_are_read_of_a_long_run() -> None:
    paths = [Path(str(i)) for i in range(100)]

    assert [path.name for path in evenly_spaced(paths, 4)] == ["0", "33", "66", "99"]
    assert evenly_spaced(paths[:2], 4) == paths[:2]


def test_sft_is_examined_by_its_losses(tmp_path: Path) -> None:
    losses = {"sft/loss": [3.0, 3.0, 3.1, 3.0, 3.0, 3.1], "sft/valid_loss": [3.0, 2.0, 2.0, 2.4, 2.6, 2.8]}
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    for step in range(STEPS):
        tracker.log(step, {name: values[step] for name, values in losses.items()})

    assert [finding.name for finding in diagnose(tmp_path)] == ["loss-flat", "overfit"]


@pytest.mark.parametrize(("loss", "names"), [(0.01, []), (0.2, ["loss-flat"])])
def test_a_loss_near_0_has_nothing_to_fall(loss: float, names: list[str]) -> None:
    metrics = {"sft/loss": dict.fromkeys(range(STEPS), loss)}
    run = StoredRun(folder=Path(), job="sft", config={}, metrics=metrics)

    assert [finding.name for finding in sft.loss_flat(run)] == names


def test_a_check_of_a_package_is_asked_and_its_failure_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("check_of_a_package", "broken_check")
    points = [EntryPoint(name, f"{__name__}:{name}", "ramet.diagnoses") for name in names]
    entries = [ExtensionEntry(point.name, "ramet-mine", point) for point in points]
    monkeypatch.setattr(extensions, "extensions", lambda group: entries if group == "ramet.diagnoses" else [])
    monkeypatch.setattr(EntryPoint, "load", lambda point: globals()[point.name])

    own, failed = diagnose(write_run(tmp_path))

    assert (own.what, own.severity) == ("mine", Severity.PROBLEM)
    assert failed.severity is Severity.NOTE and "ramet-mine" in f"{failed.fix}"


def check_of_a_package(run: StoredRun) -> Iterator[Finding]:
    yield Finding(what="mine", severity=Severity.PROBLEM, text=f"tau {run.option('branch_policy.params.tau')}")


def broken_check(run: StoredRun) -> Iterator[Finding]:
    raise ValueError("not today")


def test_the_end_of_a_run_has_a_line_also_if_infrastructure_ended_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_run(tmp_path, **FAULTS["masked"])
    with caplog.at_level(logging.WARNING), pytest.raises(InfraError), diagnosed(run):
        raise InfraError("too many masked")

    assert f"doctor: 1 finding: rollouts are masked by tool:search; see ramet doctor {run}" in caplog.text


def test_a_diagnosis_never_fails_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: StoredRun) -> Iterator[Finding]:
        raise RuntimeError("a check with a defect")

    monkeypatch.setattr(diagnosis, "CHECKS", (broken,))
    with diagnosed(write_run(tmp_path)):
        reached = True
    assert reached


def test_the_command_prints_the_findings_and_ends_with_1_for_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "good").mkdir()
    bad, good = write_run(tmp_path / "bad", **FAULTS["tool-fails"]), write_run(tmp_path / "good")

    (bad / "overrides.txt").write_text("run.name=bad\npolicy.lr=1e-3\ntools=[search]\n")
    assert command.run([str(bad)]) == 1
    said = capsys.readouterr().out
    assert "problem: the tool search fails" in said
    assert f"\nrollouts: ramet report {bad}" in said and "\nset in this run: policy.lr=1e-3 'tools=[search]'" in said
    assert command.run([str(bad), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["rollouts"][0]["step"] == 1
    assert command.run([str(good)]) == 0
    assert "nothing found" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="examined without keys"):
        command.run([str(bad), "train.steps=3"])
