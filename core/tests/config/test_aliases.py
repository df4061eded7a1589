"""The names that other trainers have for our keys: each leads to a real key that the job takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import pytest
from omegaconf import OmegaConf

from ramet import BranchPolicy, option
from ramet.config.aliases import meant, names_of_others
from ramet.config.compose import layers
from ramet.config.keys import ENTRIES, JOBS, unused_key
from ramet.config.schema import Config, SftConfig
from ramet.config.sections import GROUPS
from ramet.config.settings import leaf_keys
from ramet.errors import ConfigError
from ramet.plugins import load_plugins
from ramet.plugins.registry import Entry

MODEL = "model.path=m"
NAMES = names_of_others()
Problems = Callable[..., list[str]]


def sections(job: str) -> str:
    """The end of a message: `job`'s own sections."""
    return f"the configuration has: {', '.join(JOBS[job])}"


def keys_with(*choices: str) -> set[str]:
    return set(leaf_keys(layers([MODEL, *choices], job="train").tree))


def test_every_key_of_the_table_is_there_and_a_job_takes_it() -> None:
    here = keys_with() | keys_with("engine=vllm", "algorithm=ppo") | set(GROUPS)
    assert [key for key in NAMES if key not in here and key not in ENTRIES] == []
    assert [key for key in NAMES if all(unused_key(key, job) is not None for job in JOBS)] == []


def test_no_key_of_ours_is_the_name_of_another() -> None:
    ours = set(leaf_keys(OmegaConf.structured(Config)))
    aliases = {name for names in NAMES.values() for name in names}
    assert aliases & ours == {"data.train"}  # which `ramet sft` does not read


@pytest.mark.parametrize(
    ("job", "key", "instead"),
    [
        ("train", "learning_rate", "policy.lr"),
        ("train", "lr", "policy.lr"),
        ("train", "actor_rollout_ref.actor.optim.lr", "policy.lr"),
        ("train", "actor_rollout_ref.rollout.n", "rollout.group_size"),
        ("train", "actor_rollout_ref.rollout.temperature", "rollout.temperature"),
        ("train", "actor_rollout_ref.model.path", "model.path"),
        ("train", "num_generations", "rollout.group_size"),
        ("train", "train_batch_size", "train.tasks_per_step"),
        ("train", "per_device_train_batch_size", "train.tasks_per_step"),
        ("train", "max_prompt_length", "data.max_prompt_tokens"),
        ("train", "max_response_length", "rollout.max_response_tokens"),
        ("train", "max_completion_length", "rollout.max_response_tokens"),
        ("train", "trainer.total_epochs", "train.steps"),
        ("train", "kl_coef", "train.kl_coef"),
        ("train", "beta", "train.kl_coef"),
        ("train", "trainer.n_gpus_per_node", "cluster.policy_workers"),
        ("train", "algorithm.adv_estimator", "advantage"),
        ("train", "trainer.save_freq", "train.save_every"),
        ("train", "trainer.project_name", "wandb.project"),
        ("train", "actor_rollout_ref.rollout.beam_size", "branch_policy"),
        ("train", "actor_rollout_ref.rollout.tools.call_limit", "rollout.max_tool_calls"),
        ("train", "custom_reward_function.name", "rewards"),
        ("train", "trainer.test_freq", "train.eval_every"),
        ("train", "clip_ratio_low", "policy_loss.params.clip_low"),
        ("eval", "n_samples", "evaluate.k"),
        ("eval", "temperature", "evaluate.sampling.temperature"),
        ("sft", "learning_rate", "sft.lr"),
        ("sft", "num_train_epochs", "sft.epochs"),
        ("sft", "max_seq_length", "sft.max_tokens"),
    ],
)
def test_the_key_of_another_trainer_leads_to_ours(problems: Problems, job: str, key: str, instead: str) -> None:
    assert problems(MODEL, f"{key}=1", job=job) == [f"{key}: no such key. Did you mean {instead!r}?"]


def test_one_that_two_of_ours_may_be_leads_to_both(problems: Problems) -> None:
    found = problems(MODEL, "temperature=1", job="train")
    close = "Did you mean 'rollout.temperature' or 'evaluate.sampling.temperature'?"
    assert found == [f"temperature: no such key. {close}"]


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("data.train_files", "data.train"),
        ("data.val_files", "data.valid"),
        ("data.train_batch_size", "train.tasks_per_step"),
        ("data.max_response_length", "rollout.max_response_tokens"),
    ],
)
def test_one_in_a_section_of_ours_too(problems: Problems, key: str, instead: str) -> None:
    [problem] = problems(MODEL, f"{key}=1")
    assert problem.startswith(f"{key}: ") and f" {instead!r}? data has: train, " in problem


@pytest.mark.parametrize(
    ("key", "instead"),
    [("sft.batch_size", "sft.sequences_per_step"), ("sft.accumulate", "sft.max_microbatch_tokens")],
)
def test_how_sft_is_batched_elsewhere_leads_to_the_step_and_the_budget(
    problems: Problems, key: str, instead: str
) -> None:
    has = ", ".join(field.name for field in fields(SftConfig))
    [problem] = problems(MODEL, f"{key}=1", job="sft")
    assert problem.startswith(f"{key}: ") and problem.endswith(f" {instead!r}? sft has: {has}")


def test_a_key_of_a_section_that_the_job_does_not_build_leads_to_the_jobs_own(problems: Problems) -> None:
    assert problems(MODEL, "policy.lr=1", "data.train_files=[x]", job="sft") == [
        "policy.lr: `ramet sft` has no section 'policy' (used by: train); leave the key out, or set sft.lr",
        "data.train_files: `ramet sft` has no section 'data' (used by: train, eval, data, play); leave "
        "the key out, or set sft.data",
    ]


def test_what_the_job_would_refuse_is_not_suggested(problems: Problems) -> None:
    [problem] = problems(MODEL, "num_generations=8", job="sft")
    assert problem == f"num_generations: no such key. {sections('sft')}"
    [problem] = problems(MODEL, "gpu_memory_utilization=0.5")  # an option of vllm, and engine=torch is chosen
    assert problem == f"gpu_memory_utilization: no such key. {sections('train')}"


def test_a_section_of_others_is_no_slip_of_the_keyboard(problems: Problems) -> None:
    for key in ("trainer.no_such_key", "trainer.critic_warmup"):  # the latter is read with advantage=gae alone
        assert problems(MODEL, f"{key}=1") == [f"{key}: no such key. {sections('train')}"]


@pytest.mark.parametrize(
    ("job", "key", "instead"),
    [
        ("train", "actor_rollout_ref.rollout.mode", "'rollout_step' or 'tools'"),
        ("train", "reward.reward_manager.name", "'rewards'"),
        ("train", "algorithm.use_kl_in_reward", "'train.kl_estimator'"),
        ("sft", "warmup_ratio", "'sft.trainer.warmup_ratio'"),
        ("sft", "gradient_accumulation_steps", "'sft.sequences_per_step'"),
    ],
)
def test_the_hint_for_a_key_is_where_migrate_translates_it(
    problems: Problems, job: str, key: str, instead: str
) -> None:
    [problem] = problems(MODEL, f"{key}=1", job=job)
    assert problem == f"{key}: no such key. Did you mean {instead}?"


def test_a_key_without_counterpart_is_answered_with_the_reason(problems: Problems) -> None:
    [problem] = problems(MODEL, "data.truncation=left")
    why = "verl's key, without counterpart: longer prompts are left out and counted, never cut."
    assert problem.startswith(f"data.truncation: no such key. {why} data has: train, ")


def test_options_of_a_component_are_its_own(problems: Problems) -> None:
    [problem] = problems(MODEL, "branch_policy=random", "branch_policy.params.beta=1")
    assert "train.kl_coef" not in problem
    assert meant("tools.web.params.temperature", lambda key: True) is None


def test_why_suggests_too() -> None:
    with pytest.raises(ConfigError, match=r"^num_generations: .*'rollout\.group_size'"):
        layers([MODEL], job="train").origins("num_generations")


@dataclass(kw_only=True, slots=True)
class Options:
    beam: int = option(2, "rows", aka="num_beams beams")


def test_an_option_of_a_plugin_declares_its_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    entry: Entry[BranchPolicy] = Entry(
        kind="branch_policy", name="mine", factory=lambda options: options, config=Options, plugin="p", distribution="d"
    )
    monkeypatch.setitem(load_plugins().registries.branch_policies._entries, "mine", entry)
    assert meant("rollout.num_beams", lambda key: key == "branch_policy.params.beam") == ["branch_policy.params.beam"]
