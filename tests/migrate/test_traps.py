"""What a translation of names alone gets wrong: each trap with the right value and the wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramet.migrate.job import migrate
from ramet.migrate.verl import translate

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GREEDY, WARMUP = "train.eval_sampling.temperature", "policy.warmup_steps"
STEPS = {"trainer.total_training_steps": 100}
VALID = {"data.val_files": "v.parquet"}
TRAPS: list[tuple[str, dict[str, Any], str, Any, Any]] = [  # what it is, given, our key, right, wrong
    ("kl_coef without use_kl_in_reward is inert", {"algorithm.kl_ctrl.kl_coef": 0.05}, "train.kl_coef", 0.0, 0.05),
    ("use_kl_loss with a coefficient of 0 loads a reference in verl alone",
     {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0.0}, "train.kl_coef", 0.0, 0.001),
    ("the KL in the reward is an estimator here", {"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": "kl"},
     "train.kl_estimator", "k1-reward", "k1"),
    ("ppo_mini_batch_size is prompts", {"data.train_batch_size": 128, f"{ACTOR}.ppo_mini_batch_size": 16},
     "train.minibatches", 8, 16),
    ("total_epochs is passes", {"trainer.total_epochs": 2, "data.train_batch_size": 100}, "train.steps", 20, 2),
    ("val_before_train is true without being set", VALID, "train.eval_first", True, False),
    ("test_freq=-1 is never", VALID | {"trainer.test_freq": -1}, "train.eval_every", 0, -1),
    ("save_freq=-1 is the last step", {"trainer.save_freq": -1, "trainer.total_training_steps": 7},
     "train.save_every", 7, -1),
    ("GPUs are those of all nodes", {"trainer.n_gpus_per_node": 8, "trainer.nnodes": 2},
     "cluster.policy_workers", 16, 8),
    ("an engine takes several GPUs", {"trainer.nnodes": 2, f"{ROLLOUT}.tensor_model_parallel_size": 4},
     "cluster.rollout_workers", 4, 16),
    ("engines and policy share their GPUs", {}, "cluster.colocate", True, False),
    ("top_k=-1 is all tokens", {f"{ROLLOUT}.val_kwargs.top_k": -1}, "train.eval_sampling.top_k", 0, -1),
    ("a response's length is in characters",
     {f"{ROLLOUT}.mode": "sync_with_tool", f"{ROLLOUT}.multi_turn.max_tool_response_length": 2048},
     "tools.python.max_result_tokens", 512, 2048),
    ("k1 in the loss has no gradient towards the reference",
     {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "kl"}, "train.kl_estimator", "k1+", "k1"),
    ("kl_coef counts with its switch", {"algorithm.kl_ctrl.kl_coef": 0.05, "algorithm.use_kl_in_reward": True},
     "train.kl_coef", 0.05, 0.0),
    ("kl_loss_coef without use_kl_loss is inert", {f"{ACTOR}.kl_loss_coef": 0.01}, "train.kl_coef", 0.0, 0.01),
    ("total_training_steps counts before passes", {"trainer.total_epochs": 2, "trainer.total_training_steps": 7},
     "train.steps", 7, 2),
    ("a step that is not full is not made", {"trainer.total_epochs": 2, "data.train_batch_size": 300},
     "train.steps", 6, 7),
    ("the first rows alone are fewer steps", {"data.train_max_samples": 50, "data.train_batch_size": 10},
     "train.steps", 150, 3000),
    ("gen_batch_size is what a step reads", {"data.train_batch_size": 50, "data.gen_batch_size": 150},
     "train.steps", 180, 600),
    ("0 steps of warm-up are none whatever the ratio",
     {f"{ACTOR}.optim.lr_warmup_steps": 0, f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1} | STEPS, WARMUP, 0, 10),
    ("-1 step of warm-up is the ratio",
     {f"{ACTOR}.optim.lr_warmup_steps": -1, f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1} | STEPS, WARMUP, 10, -1),
    ("validations are greedy", {f"{ROLLOUT}.val_kwargs.temperature": 0.7}, GREEDY, 0.0, 0.7),
    ("unless they sample", {f"{ROLLOUT}.val_kwargs.temperature": 0.7, f"{ROLLOUT}.val_kwargs.do_sample": True}, GREEDY,
     0.7, 0.0),
    ("no text is added to a prompt", {}, "rollout_step.system_prompt", "never", None),
    ("on one GPU parameters stay there", {f"{ACTOR}.fsdp_config.param_offload": True, "trainer.n_gpus_per_node": 1,
     f"{ROLLOUT}.tensor_model_parallel_size": 1}, "policy.offload", "optimizer", "all"),
    ("a rollout with tools has no limit of calls", {f"{ROLLOUT}.multi_turn.enable": True}, "rollout.max_tool_calls",
     1_000_000, None),
    ("nor of turns, unless it is set", {f"{ROLLOUT}.multi_turn.enable": True,
     f"{ROLLOUT}.multi_turn.max_assistant_turns": 5}, "rollout.max_turns", 5, 16),
    ("rollout_is was a switch", {"algorithm.rollout_is": True}, "train.off_policy.tis_level", "token", True),
    ("nothing is corrected unless asked for", {"algorithm.rollout_is": False}, "train.tis_cap", None, 2.0),
    ("retry_count counts the first attempt too",
     {f"{ROLLOUT}.mode": "sync_with_tool", f"{ROLLOUT}.tools.retry_count": 3}, "tools.search.retries", 2, 3),
]  # fmt: skip
SCRIPTS: list[tuple[str, str, str, Any, Any]] = [  # what it is, words of the launch, our key, right, wrong
    ("arithmetic of the shell", f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=$((2*(P+R)))",
     "policy.max_microbatch_tokens", 1200, 16384),
    ("an empty text is false", f"{ROLLOUT}.multi_turn.enable=${{ENABLE_MULTI_TURN}}", "rollout_step", "tags", "hermes"),
    ("a key that is added twice", f"++{ROLLOUT}.n=16", "rollout.group_size", 16, 1),
    ("a list in a text", "data.val_files=\"['a.parquet','b.parquet']\"", "data.valid", ["a.parquet", "b.parquet"],
     ["['a.parquet','b.parquet']"]),
    ("what follows a pipe", "data.train_batch_size=64 2>&1 | tee data.train_batch_size=8",
     "train.tasks_per_step", 64, 8),
    ("the limit of calls is in the file beside the script",
     f"--config-path=config --config-name=dr {ROLLOUT}.mode=sync_with_tool", "rollout.max_tool_calls", 6, None),
]  # fmt: skip


@pytest.mark.parametrize(("what", "given", "key", "right", "wrong"), TRAPS, ids=[trap[0] for trap in TRAPS])
def test_a_trap_of_verl(what: str, given: dict[str, Any], key: str, right: Any, wrong: Any) -> None:
    value = translate(given, tasks=1000).values.get(key)
    assert value == right and value != wrong, what


@pytest.mark.parametrize(("what", "words", "key", "right", "wrong"), SCRIPTS, ids=[trap[0] for trap in SCRIPTS])
def test_a_trap_of_a_launch(what: str, words: str, key: str, right: Any, wrong: Any, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "dr.yaml").write_text("actor_rollout_ref: {rollout: {tools: {call_limit: 6}}}\n")
    path = tmp_path / "run.sh"
    path.write_text(f"P=200; R=400\npython3 -m verl.trainer.main_ppo {words}\n")
    made = migrate("verl", path)
    value = made.choices.get(key, made.values.get(key))
    assert value == right and value != wrong, what
