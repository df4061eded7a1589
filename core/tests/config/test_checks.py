from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.config.checks import check
from ramet.config.compose import compose

GOOD = ["model.path=m", "data.train=[a.jsonl]", "rewards=[math]"]
DETERMINISTIC = ["run.deterministic=true", "rollout.max_concurrent=32"]


def found(*overrides: str, job: str = "train") -> list[str]:
    return check(compose([*GOOD, *overrides] if job == "train" else overrides, job=job), job)


def test_a_sound_configuration_has_no_problems():
    assert found() == []
    assert found("model.path=m", "sft.data=[x.jsonl]", job="sft") == []
    assert found("model.path=m", "benchmarks=[arithmetic]", job="eval") == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["rollout.temperature=-1"], "rollout.temperature=-1.0: must be at least 0"),
        (["rollout.temperature=0"], "rollout.temperature=0.0: must be over 0 in training"),
        (["rewards.math.resample=true"], "rewards.math.resample=true: needs train.resample_rounds over 0"),
        (["rollout.max_concurrent=7"], "rollout.max_concurrent=7: must be at least rollout.group_size=8"),
        (
            ["train.tasks_per_step=1", "train.minibatches=9"],
            "train.minibatches=9: at most the 8 rollouts of a step (train.tasks_per_step=1 x rollout.group_size=8); "
            "set train.minibatches=8 or fewer, or run more rollouts",
        ),
        (["train.eval_every=2"], "train.eval_every=2: needs data.valid, which is empty"),
        (["train.eval_first=true"], "train.eval_first=true: needs data.valid, which is empty"),
        (["train.keep_checkpoints=0"], "train.keep_checkpoints=0: must be at least 1"),
        (["rollout.max_masked_share=1.5"], "rollout.max_masked_share=1.5: must be at least 0 and at most 1"),
        (["rollout.deadline_s=nan"], "rollout.deadline_s=nan: must be over 0"),
        (["tools=[echo]", "tools.echo.concurrency=0"], "tools.echo.concurrency=0: must be at least 1"),
        (["cluster.name=mars"], "cluster.name=mars: allowed: local, ray"),
        (
            ["run.name=../x"],
            "run.name=../x: allowed: letters, digits, '.', '_' and '-', a letter or digit first, at most 128",
        ),
        ([*DETERMINISTIC, "run.threads=4"], "run.deterministic=true: needs run.threads=1, got 4"),
        ([*DETERMINISTIC, "model.device=cuda"], "run.deterministic=true: holds on CPU only"),
        ([*DETERMINISTIC, "engine.params.slots=31"], "slots of at least rollout.max_concurrent=32, got 31"),
        (
            ["engine.params.max_tokens=100"],
            "= 6144: more than engine.params.max_tokens=100; raise that, or set data.max_prompt_tokens=50 "
            "rollout.max_response_tokens=50",
        ),
        (["rewards=[]"], "rewards: none chosen"),
        (
            ["rewards.math.combine=multiply"],
            "rewards: math multiply, and none adds what they could multiply; set combine=add for one of them",
        ),
        (
            ["rewards.math.clip=[1,0]"],
            "rewards.math.clip=[1.0, 0.0]: allowed: [lowest, highest], the first under the second; null: none",
        ),
        (["data.train=[]"], "data.train: missing"),
        (["train.resample_rounds=-1"], "train.resample_rounds=-1: must be at least 0"),
        (["data.weights.a=-1", "data.weights.b=1"], "data.weights.a=-1.0: must be finite and at least 0"),
        (["data.weights.a=inf"], "data.weights.a=inf: must be finite and at least 0"),
        (["data.weights={a: 0, b: 0}"], "data.weights: all are 0, so there is nothing to draw"),
        (["data.order=curriculum"], "data.order=curriculum: needs data.columns.difficulty"),
        (["data.difficulty.min=1"], "data.difficulty={'min': 1.0}: needs data.columns.difficulty"),
        (
            ["data.columns.difficulty=d", "data.difficulty.min=2", "data.difficulty.max=1"],
            "data.difficulty={'min': 2.0, 'max': 1.0}: min must be at most max",
        ),
        (["data.columns.difficulty=d", "data.difficulty.max=nan"], "data.difficulty={'max': nan}: must be numbers"),
        (["data.columns.promt=q"], "data.columns.promt: no such key; allowed: id, prompt, answer, data_source, tools"),
        (["train.eval_sampling.top_k=1.5"], "train.eval_sampling.top_k=1.5: must be a whole number and at least 0"),
        (["wandb.projct=a"], "wandb.projct: no such key; allowed: project, entity, name, group, tags, mode"),
        (["data.limits.train=0"], "data.limits.train=0: must be a whole number and at least 1"),
        (["run.seed=-1"], "run.seed=-1: must be at least 0 and at most 4294967295"),
        (["run.seed=4294967296"], "run.seed=4294967296: must be at least 0 and at most 4294967295"),
        (["train.off_policy.negative_gap_max=0"], "train.off_policy.negative_gap_max=0: must be over 0"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_what_is_allowed(overrides: list[str], expected: str):
    problems = found(*overrides)
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.parametrize(
    ("overrides", "rollouts"),
    [([], 64), (["engine.params.slots=16"], 16), (["engine.params.slots=300"], 256), (["rollout.max_concurrent=8"], 8)],
)
def test_a_deterministic_run_needs_no_other_key(overrides: list[str], rollouts: int):
    resolved = compose(
        ["model.path=m", "data.train=[a]", "rewards=[math]", "run.deterministic=true", *overrides], job="train"
    )
    assert check(resolved, "train") == []
    assert resolved.config.rollout.max_concurrent == rollouts
    assert f"max_concurrent: {rollouts}\n" in resolved.text


def test_all_problems_are_found_at_once():
    assert len(found("rollout.temperature=-1", "rollout.max_turns=0", "train.epochs=0", "policy.lr=-1")) == 4


def test_sections_of_other_jobs_are_not_checked():
    assert found("model.path=m", "sft.data=[x]", "rollout_step.system_prompt=never", job="sft") == []


def test_the_budget_of_a_forward_pass_holds_the_longest_sequence():
    few = "sft.max_microbatch_tokens=2048"
    assert found("model.path=m", "sft.data=[x]", few, job="sft") == [
        "sft.max_microbatch_tokens=2048: must be at least sft.max_tokens=4096, since a sequence is not cut over "
        "forward passes; raise it, or lower sft.max_tokens"
    ]
    assert found("model.path=m", "sft.data=[x]", few, "sft.max_tokens=2048", job="sft") == []


def test_evaluation_needs_something_to_measure():
    assert "benchmarks: none chosen" in found("model.path=m", job="eval")[0]


def test_prompt_and_response_must_fit_into_the_model(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    problems = found(f"model.path={tmp_path}")
    assert problems == [
        "data.max_prompt_tokens=2048 + rollout.max_response_tokens=4096 = 6144: more than the 512 positions of the "
        f"model {tmp_path}; set data.max_prompt_tokens=256 rollout.max_response_tokens=256"
    ]
    [problem] = found(f"model.path={tmp_path}", "data.max_prompt_tokens=500")
    assert problem.endswith("; set rollout.max_response_tokens=12")
    assert found(f"model.path={tmp_path}", job="play") == []  # there each prompt is looked at


@pytest.mark.parametrize(
    ("overrides", "problems"),
    [
        (
            ["train.kl_estimator=k1-reward"],
            ["train.kl_estimator=k1-reward: needs train.kl_coef over 0: there is no KL to take off the rewards"],
        ),
        (["train.kl_target=0.1"], ["train.kl_target=0.1: needs train.kl_coef over 0, with which it begins"]),
        (
            ["train.kl_coef=0.1", "train.kl_estimator=k1"],
            [
                "train.kl_estimator=k1: in the loss it has the gradient of log pi, whatever the reference is, so "
                "nothing pulls towards it; set k1+, which has the same value and the gradient of the KL, k2, k3 or "
                "k1-reward"
            ],
        ),
        (
            ["train.off_policy.token_band=[5.0,0.5]", "train.off_policy.sequence_band=[1.0]"],
            [
                f"train.off_policy.{band}: must be two numbers, the lower bound first and at least 0, as [0.5, 5.0]"
                for band in ("token_band=[5.0, 0.5]", "sequence_band=[1.0]")
            ],
        ),
        (
            [
                "train.old_logprobs=engine",
                "train.off_policy.sequence_band=[0.9,1.1]",
                "train.off_policy.tis_level=sequence",
            ],
            [
                f"train.off_policy.{key}: has no effect with train.old_logprobs=engine, where pi_old is mu and their "
                "ratio is 1; leave it out, or set train.old_logprobs=trainer"
                for key in ("sequence_band=[0.9, 1.1]", "tis_level=sequence")
            ],
        ),
        (
            [
                "train.kl_coef=0.1",
                "train.kl_estimator=k1-reward",
                "train.kl_target=0.1",
                "train.off_policy.token_band=[0.5,5]",
            ],
            [],
        ),
    ],
)
def test_kl_and_off_policy_options_fit_together(overrides: list[str], problems: list[str]):
    assert found(*overrides) == problems
