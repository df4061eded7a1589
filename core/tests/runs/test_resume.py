"""What may change between two processes of one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ramet.config.resolved import Resolved
from ramet.errors import ConfigError
from ramet.runs.manifest import Manifest, PluginRecord
from ramet.runs.own_files import has_saved
from ramet.runs.resume import RunState, changes, check_resume
from ramet.runs.run_dir import RunDir

OLD = (
    "run:\n  name: a\npolicy:\n  lr: 1.0e-06\ntrain:\n  steps: 5\ntools:\n  python:\n    timeout_s: 1\ntrackers: [x]\n"
)
SAFE = (
    "run:\n  name: b\npolicy:\n  lr: 1.0e-06\n  replicas: 2\ntrain:\n  steps: 9\ntools:\n  python:\n    timeout_s: 1\n"
    "trackers: []\n"
)


@pytest.fixture
def state(manifest: Callable[..., Manifest]) -> Callable[..., RunState]:
    """Makes what decides whether two processes work on the same run."""

    def make(config: str = OLD, record: Manifest | None = None) -> RunState:
        return RunState(config=config, manifest=record or manifest())

    return make


def test_changes_that_cannot_alter_the_numbers_are_allowed(state: Callable[..., RunState]):
    assert check_resume(state(), state(SAFE)) == []


@pytest.mark.parametrize(
    "key",
    [
        "policy.max_microbatch_tokens",
        "rollout.max_concurrent",
        "engine.params.slots",
        "engine.params.gpu_memory_utilization",
    ],
)
def test_a_run_out_of_memory_may_go_on_with_less_unless_it_is_deterministic(
    key: str, state: Callable[..., RunState]
) -> None:
    section, _, name = key.rpartition(".")
    for deterministic in (False, True):
        run = {"run": {"deterministic": deterministic}}
        old, new = (OmegaConf.create(run) for _ in range(2))
        OmegaConf.update(old, f"{section}.{name}", 16)
        OmegaConf.update(new, f"{section}.{name}", 8)
        found = check_resume(state(OmegaConf.to_yaml(old)), state(OmegaConf.to_yaml(new)))
        assert [text.partition(";")[0] for text in found] == ([f"{key} was 16, is 8"] if deterministic else [])


def test_nothing_is_said_of_safe_changes_beside_one_that_is_refused(
    state: Callable[..., RunState], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="ramet"):
        assert len(check_resume(state("train:\n  steps: 3\n"), state("train:\n  steps: 4\n  epochs: 2\n"))) == 1
        assert caplog.messages == []
        assert check_resume(state("train:\n  steps: 3\n"), state("train:\n  steps: 4\n")) == []
    assert caplog.messages == ["resume with a change: train.steps was 3, is 4"]


def test_other_changes_are_refused_with_both_values(state: Callable[..., RunState]):
    new = OLD.replace("1.0e-06", "2.0e-06").replace("timeout_s: 1", "timeout_s: 3")
    problems = check_resume(state(), state(new))
    assert len(problems) == 2
    assert problems[0].startswith("policy.lr was 1e-06, is 2e-06; resuming would mix two runs")
    assert problems[1].startswith("tools.python.timeout_s was 1, is 3")
    assert check_resume(state(), state(new), allow=True) == []


def test_a_key_that_came_or_went_is_a_change(state: Callable[..., RunState]):
    problems = check_resume(state(), state(OLD.replace("tools:\n  python:\n    timeout_s: 1\n", "tools: {}\n")))
    assert [p.partition(";")[0] for p in problems] == [
        "tools.python.timeout_s was 1, is (absent)",
    ]


def test_a_recorded_default_that_is_left_out_now_is_shown_with_its_value(state: Callable[..., RunState]):
    old, new = "data:\n  order: file\n", "data:\n  columns:\n    prompt: q\n  order: shuffled\n"
    there_and_back = [[p.partition(";")[0] for p in check_resume(*pair)]
                      for pair in ((state(old), state(new)), (state(new), state(old)))]  # fmt: skip
    assert there_and_back == [
        ["data.order was file, is shuffled", "data.columns.prompt was prompt, is q"],
        ["data.order was shuffled, is file", "data.columns.prompt was q, is prompt"],
    ]


def test_a_run_of_the_earlier_version_resumes_where_its_values_are_in_force(state: Callable[..., RunState]):
    before = (
        "train:\n  kl_estimator: null\n  kl_in: KL\n  max_bad_steps: 3\n  eval_temperature: 0.6\n  token_band: null\n"
        "data:\n  shuffle: true\n  min_difficulty: 2\n  columns:\n    id: null\n    prompt: q\n    answer: null\n"
        "rewards:\n  math:\n    weight: 1.0\n"
    )
    now = (
        "train:\n  kl_estimator: NOW\n  eval_sampling:\n    temperature: 0.6\n  off_policy: {}\n"
        "data:\n  order: shuffled\n  difficulty:\n    min: 2\n  columns:\n    prompt: q\n"
        "rewards:\n  math:\n    weight: 1.0\n    retries: 2\n    max_unjudged: 0.05\n    resample: false\n"
    )
    for kl_in, estimator in (("loss", "k3"), ("reward", "k1-reward")):
        old, new = state(before.replace("KL", kl_in)), now.replace("NOW", estimator)
        assert not changes(old, state(new)).harmful
        assert changes(old, state(new.replace("resample: false", "resample: true"))).harmful
        assert changes(old, state(new.replace(estimator, "k2"))).harmful


def test_a_value_of_before_that_nothing_stands_for_is_refused_with_what_is_in_force(state: Callable[..., RunState]):
    assert check_resume(state("policy:\n  beta1: 0.8\n"), state("policy: {}\n")) == [
        "policy.beta1 was 0.8, and 0.9 is in force: the last version with the key was 0.1.0, which can end this run; "
        "resuming would mix two runs: undo it, choose another run.name, or set run.allow_config_change=true"
    ]
    both = "data:\n  shuffle: false\n  curriculum: true\n"
    assert changes(state(both), state("data:\n  order: curriculum\n")).fatal


def test_other_training_data_is_refused_always_and_names_the_files(
    manifest: Callable[..., Manifest], state: Callable[..., RunState]
):
    new = state(record=manifest(data="e", tasks=4))
    for allow in (False, True):
        problems = check_resume(state(), new, allow=allow)
        assert len(problems) == 1
        assert "the training data changed: the run began with 3 tasks of a.jsonl" in problems[0]


@pytest.mark.parametrize(
    "line", ["run:\n  seed: 2", "data:\n  shuffle: false", "data:\n  curriculum: true", "train:\n  tasks_per_step: 9"]
)
def test_what_decides_which_tasks_a_step_gets_is_refused_always(line: str, state: Callable[..., RunState]):
    for allow in (False, True):
        [problem] = check_resume(state(""), state(line + "\n"), allow=allow)
        assert "it decides which tasks a step gets" in problem


def test_more_steps_are_another_learning_rate_where_the_schedule_stretches_over_them(state: Callable[..., RunState]):
    old, new = (f"train:\n  steps: {n}\npolicy:\n  schedule: cosine\n" for n in (5, 9))
    assert check_resume(state(old), state(new))[0].startswith("train.steps was 5, is 9; ")
    assert check_resume(state(old), state(new), allow=True) == []
    assert check_resume(state(old.replace("cosine", "constant")), state(new.replace("cosine", "constant"))) == []


def test_another_model_or_plugin_version_is_refused_unless_allowed(
    manifest: Callable[..., Manifest], state: Callable[..., RunState]
):
    new = state(record=manifest(model="n" * 12, plugin="2.0"))
    problems = check_resume(state(), new)
    assert [p.partition(";")[0] for p in problems] == [
        "files of the model, tokenizer or chat template: sha256 was mmmmmmmmmmmm, is nnnnnnnnnnnn",
        "plugin core was ramet 1.0, is ramet 2.0",
    ]
    assert check_resume(state(), new, allow=True) == []


def test_a_plugin_whose_code_changed_in_the_same_version_is_refused_if_the_run_uses_it(
    manifest: Callable[..., Manifest], state: Callable[..., RunState]
):
    def with_code(code: str | None) -> Manifest:
        made = manifest()
        made.plugins = [
            PluginRecord(name="arpo", distribution="ramet-arpo", version="0.1.0", contract="1",
                         offers={"branch_policy": ["arpo"]}, broken=None, code=code),
            PluginRecord(name="mine", distribution="my-tools", version="1.2", contract="1",
                         offers={"tools": ["search", "weather"]}, broken=None, code=code),
        ]  # fmt: skip
        return made

    text = "branch_policy:\n  name: none\ntools:\n  weather:\n    timeout_s: 3\n"
    before, after = state(text, with_code("a" * 64)), state(text, with_code("b" * 64))
    [problem] = check_resume(before, after)
    assert problem.startswith("code of plugin mine (my-tools 1.2): sha256 was aaaaaaaaaaaa, is bbbbbbbbbbbb; ")
    assert check_resume(before, after, allow=True) == []
    instance = text.replace("timeout_s: 3", "timeout_s: 3\n  other:\n    use: search").replace("weather", "gone")
    assert len(check_resume(state(instance, with_code("a")), state(instance, with_code("b")))) == 1
    assert check_resume(state("tools: {}\n", with_code("a")), state("tools: {}\n", with_code("b"))) == []
    assert check_resume(before, state(text, with_code(None))) == []


def test_the_module_of_a_plugin_that_is_no_distribution_is_named_without_a_version(
    manifest: Callable[..., Manifest], state: Callable[..., RunState]
):
    def with_code(code: str) -> Manifest:
        made = manifest()
        made.plugins = [
            PluginRecord(name="x", distribution="module x", version="", contract="1", offers={"rewards": ["x"]},
                         broken=None, code=code),
        ]  # fmt: skip
        return made

    text = "rewards:\n  x:\n    weight: 1.0\n"
    [problem] = check_resume(state(text, with_code("a" * 64)), state(text, with_code("b" * 64)))
    assert problem.startswith("code of plugin x (module x): ")


def test_a_file_that_an_option_names_must_hold_what_it_held(
    manifest: Callable[..., Manifest], state: Callable[..., RunState]
):
    def with_file(digest: str) -> RunState:
        made = manifest()
        made.files = {"rewards.custom.params.path": digest * 64}
        return state(record=made)

    [problem] = check_resume(with_file("a"), with_file("b"))
    assert problem.startswith("the file of rewards.custom.params.path: sha256 was aaaaaaaaaaaa, is bbbbbbbbbbbb; ")
    assert check_resume(with_file("a"), with_file("b"), allow=True) == []
    assert check_resume(state(), with_file("b")) == []  # of a run that began before files were recorded


def test_a_training_that_has_saved_nothing_begins_anew_with_what_changed(
    tmp_path: Path,
    resolved: Callable[..., Resolved],
    manifest: Callable[..., Manifest],
    caplog: pytest.LogCaptureFixture,
):
    """As another run for trackers, which would go on with the steps of the first. Unchanged it stays the same run."""
    first, same, other = manifest(), manifest(), manifest(data="e", tasks=4)
    with RunDir.open(tmp_path, "mine") as run:
        run.record(resolved(), first)
    with RunDir.open(tmp_path, "mine") as run:
        assert run.check_resume(resolved(), same) == []
        run.record(resolved(), same)
    changed = resolved("run:\n  seed: 2\n")
    with RunDir.open(tmp_path, "mine") as run, caplog.at_level("INFO", logger="ramet"):
        assert run.check_resume(changed, other) == []
        run.record(changed, other)
    assert first.id == same.id != other.id
    [data, seed] = caplog.messages
    assert data.startswith("nothing was saved, so the run starts again with a change: the training data changed: ")
    assert seed == "nothing was saved, so the run starts again with a change: run.seed was 1, is 2"


@pytest.mark.parametrize(
    ("job", "left", "saved"),
    [
        ("train", [], False),
        ("train", ["checkpoints/.step_000001.0a1b2c3d.tmp"], False),
        ("train", ["checkpoints/step_000001"], True),
        ("sft", ["checkpoints/layout.json"], False),
        ("sft", ["checkpoints/checkpoint-3"], True),
        ("sft", ["sft.json"], True),
        ("eval", [], True),
    ],
)
def test_what_a_later_process_would_go_on_from(tmp_path: Path, job: str, left: list[str], saved: bool):
    for name in left:
        (tmp_path / name).mkdir(parents=True)
    assert has_saved(tmp_path, job) is saved


def test_the_directory_of_another_job_is_refused(manifest: Callable[..., Manifest], state: Callable[..., RunState]):
    other = manifest()
    other.job = "sft"
    assert check_resume(state(record=other), state()) == ["the run directory has a `ramet sft` run, not `ramet train`"]


def test_a_resume_reads_what_the_directory_recorded(
    tmp_path: Path, resolved: Callable[..., Resolved], manifest: Callable[..., Manifest]
):
    with RunDir.open(tmp_path, "mine") as run:
        run.record(resolved(), manifest())
        (run.checkpoints / "step_000001").mkdir()
    with RunDir.open(tmp_path, "mine") as run:
        changed = resolved("run:\n  seed: 1\npolicy:\n  lr: 2\n")
        assert run.check_resume(changed, manifest())[0].startswith("policy.lr was (absent), is 2")
        assert run.check_resume(replace(changed, config=resolved(allow=True).config), manifest()) == []
        (run.path / "config.yaml").unlink()
        with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read"):
            run.check_resume(changed, manifest())
