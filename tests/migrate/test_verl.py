"""verl's keys become a recipe: values, what verl itself does not read, and a reason for every key that is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ramet.api import compose
from ramet.cli import main
from ramet.config.foreign import table
from ramet.migrate.job import migrate
from ramet.migrate.launch import NO_KEY
from ramet.migrate.recipe import recipe_text, write_recipe
from ramet.migrate.translation import Fate, Translation
from ramet.migrate.verl import translate

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
KL_CTRL = "algorithm.kl_ctrl"
# Keys that nobody sets alike: one value each that verl takes.
SAMPLES: dict[str, Any] = {
    "data.train_batch_size": 512, "data.max_prompt_length": 100, "data.max_response_length": 200,
    f"{ACTOR}.loss_agg_mode": "token-mean", "algorithm.adv_estimator": "gae", f"{ROLLOUT}.name": "vllm",
    f"{ACTOR}.policy_loss.loss_mode": "gspo", f"{ACTOR}.kl_loss_type": "mse", f"{ROLLOUT}.mode": "async",
}  # fmt: skip
ARPO = """#!/bin/bash
HERE="$( cd "$( dirname "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )"
MODEL=/models/base   # the SFT model
P=1536; R=4096
DATA="$HERE/rl"
FILES="['$DATA/a.parquet','$DATA/b.parquet']"
RUN=first_run
COMMON=(
    algorithm.kl_ctrl.kl_coef=0.0
    actor_rollout_ref.actor.use_kl_loss=True   # with a coefficient of 0
    actor_rollout_ref.actor.kl_loss_coef=0.0
)
if [ -n "$WANDB_API_KEY" ]; then
    wandb login $WANDB_API_KEY
fi
python3 -m verl.trainer.main_ppo --config-path=$HERE/config --config-name=trainer_dr.yaml \\
    algorithm.adv_estimator=grpo "${COMMON[@]}" \\
    data.train_files="$FILES" data.val_files=${DATA}/valid.parquet \\
    data.train_batch_size=128 data.max_prompt_length=$P data.max_response_length=${R} \\
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.actor.optim.lr=2e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((2*(P+R))) \\
    ++actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.mode=sync_with_tool actor_rollout_ref.rollout.n=16 \\
    actor_rollout_ref.rollout.initial_rollouts=8 actor_rollout_ref.rollout.beam_size=2 \\
    actor_rollout_ref.rollout.branch_probability=0.5 actor_rollout_ref.rollout.entropy_weight=0.2 \\
    actor_rollout_ref.rollout.multi_turn.enable=${ENABLE_MULTI_TURN} \\
    custom_reward_function.path=/src/verl/utils/reward_score/deep_research.py \\
    trainer.logger="[console, wandb]" trainer.experiment_name=$RUN trainer.project_name=mine \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2 trainer.save_freq=5 trainer.test_freq=-1 trainer.total_epochs=2 \\
    trainer.val_before_train=False trainer.default_local_dir=/runs/$RUN 2>&1 | tee /runs/$RUN/run.log
"""
CONFIG = """
actor_rollout_ref:
  rollout:
    n: 4
    tools: {call_limit: 6, retry_count: 3, max_workers: 64}
data:
  train_batch_size: 32
"""
HAND_WRITTEN = {
    "data.columns": {}, "data.max_prompt_tokens": 1536, "rollout.max_response_tokens": 4096,
    "model.path": "/models/base", "policy.lr": 2e-6, "train.tasks_per_step": 128, "train.minibatches": 8,
    "policy.max_microbatch_tokens": 11264, "engine.name": "vllm", "engine.params.tensor_parallel": 2,
    "cluster.name": "ray", "cluster.policy_workers": 16, "cluster.rollout_workers": 8, "cluster.colocate": True,
    "rollout.group_size": 16, "branch_policy.name": "arpo_release", "branch_policy.params.initial_rollouts": 8,
    "branch_policy.params.beam_size": 2, "branch_policy.params.branch_probability": 0.5,
    "branch_policy.params.entropy_weight": 0.2, "rollout.max_tool_calls": 6, "tools.search.retries": 2,
    "tools.python.concurrency": 64, "train.kl_coef": 0.0, "train.tis_cap": None, "train.save_every": 5,
    "train.eval_every": 0, "train.eval_first": False, "train.steps": 6, "run.name": "first_run", "run.root": "/runs",
    "wandb": {"project": "mine"}, "trackers": ["console", "jsonl", "wandb"], "policy.activation_checkpointing": True,
    "advantage.name": "grpo", "policy_loss.name": "ppo_clip", "policy_loss.params.clip_high": 0.2,
    "policy_loss.params.dual_clip": 3.0, "model.dtype": "bfloat16", "train.eval_sampling": {"temperature": 0.0},
}  # fmt: skip


def fates(made: Translation, key: str) -> set[Fate]:
    return {note.fate for note in made.notes if note.key == key}


def why(made: Translation, key: str) -> str:
    return " ".join(note.why for note in made.notes if note.key == key)


def value_at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A launch of ARPO with its config file beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "trainer_dr.yaml").write_text(CONFIG)
    path = tmp_path / "launch.sh"
    path.write_text(ARPO)
    return path


def test_a_launch_script_becomes_a_recipe_that_composes(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "verl", str(script), "--tasks", "400"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("hydra_configs/experiment/launch.yaml: ")
    assert out.endswith("try it: ramet train experiment=launch --dry-run --on 16x80GiB\n")
    config = compose(["experiment=launch"]).config
    assert {key: value_at(config, key) for key in HAND_WRITTEN} == HAND_WRITTEN
    assert config.data.train == [str(script.parent / f"rl/{name}.parquet") for name in "ab"]
    assert list(config.tools) == ["python", "search"] and list(config.rewards) == ["deep_research"]


def test_a_recipe_is_never_overwritten(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "verl", str(script)]) == 0
    assert main(["migrate", "verl", str(script)]) == 1
    assert "experiment/launch.yaml: is there already; name another file with --out" in capsys.readouterr().err


def test_the_file_says_what_the_source_did_not_read(script: Path) -> None:
    text = recipe_text(migrate("verl", script), script.name)
    assert "# Not read by the source either:\n" in text
    assert "algorithm.kl_ctrl.kl_coef=0.0: not read without algorithm.use_kl_in_reward" in text
    assert "multi_turn.enable=: empty, which verl takes for false" in text
    assert "ENABLE_MULTI_TURN is not set in the script: an empty text" in text


@pytest.mark.parametrize("key", table("verl"))
def test_no_key_of_the_table_is_lost(key: str) -> None:
    """With one value of each kind: every key has a fate, and one that is translated says which key of ours has it."""
    row = table("verl")[key]
    pairs = [name for name in row.pairs if name != "*"] if "=" in row.rule else []
    for value in [SAMPLES[key]] if key in SAMPLES else [*pairs, *([] if pairs else [1])]:
        made = translate({key: value})
        assert fates(made, key), f"{key}={value}: nothing was said of it"
        assert all(note.why for note in made.notes)


def test_a_key_that_verl_does_not_have_is_listed() -> None:
    made = translate({"trainer.no_such_key": 3})
    assert fates(made, "trainer.no_such_key") == {Fate.LEFT}
    assert why(made, "trainer.no_such_key") == "not among the keys of verl that are translated"


def test_a_mini_batch_that_does_not_divide_the_step_is_to_decide() -> None:
    made = translate({"data.train_batch_size": 100, f"{ACTOR}.ppo_mini_batch_size": 30})
    assert "train.minibatches" not in made.values and fates(made, f"{ACTOR}.ppo_mini_batch_size") == {Fate.OPEN}


def test_of_three_sizes_of_a_micro_batch_one_counts() -> None:
    sizes = {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4, f"{ACTOR}.ppo_max_token_len_per_gpu": 9000}
    lengths = {"data.max_prompt_length": 100, "data.max_response_length": 400}
    plain = translate(sizes | lengths)
    assert plain.values["policy.max_microbatch_tokens"] == 4 * 500
    assert fates(plain, f"{ACTOR}.ppo_max_token_len_per_gpu") == {Fate.IGNORED}
    dynamic = translate(sizes | lengths | {f"{ACTOR}.use_dynamic_bsz": True})
    assert dynamic.values["policy.max_microbatch_tokens"] == 9000
    assert fates(dynamic, f"{ACTOR}.ppo_micro_batch_size_per_gpu") == {Fate.IGNORED}


def test_what_verl_does_without_being_asked_is_written_down() -> None:
    values = translate({"data.val_files": "v.parquet"}, tasks=10_240).values
    assert (values["train.eval_first"], values["train.tasks_per_step"], values["rollout.group_size"]) == (True, 1024, 1)
    assert (values["engine.params.tensor_parallel"], values["cluster.rollout_workers"]) == (2, 4)
    assert values["train.save_every"] == values["train.steps"] == 300  # save_freq is -1, total_epochs 30
    assert values["train.tis_cap"] is None
    assert "train.eval_every" not in translate({"trainer.test_freq": 5}).values  # nothing to validate on


def test_the_limit_of_calls_is_in_a_file_that_may_be_missing() -> None:
    made = translate({f"{ROLLOUT}.mode": "sync_with_tool"})
    assert "3 for reasoning and 6 for deep search" in why(made, f"{ROLLOUT}.tools.call_limit")


def test_empty_texts_are_the_values_without_them_and_to_decide() -> None:
    """As `trainer.nnodes=$SLURM_NNODES` in a script that does not set it."""
    made = translate({"trainer.nnodes": "", "trainer.n_gpus_per_node": 4, f"{ROLLOUT}.tensor_model_parallel_size": 1})
    assert made.values["cluster.policy_workers"] == 4 and Fate.OPEN in fates(made, "trainer.nnodes")


def test_a_tracker_that_is_not_there_has_no_project() -> None:
    """`wandb.project` without the tracker is refused by `ramet train`."""
    made = translate({"trainer.logger": "console", "trainer.project_name": "p"})
    assert "wandb.project" not in made.values and fates(made, "trainer.project_name") == {Fate.IGNORED}


def test_clip_ratio_alone_does_nothing_in_verl() -> None:
    both, low, high = (f"{ACTOR}.{name}" for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"))
    alone = translate({both: 0.1})
    assert alone.values["policy_loss.params.clip_low"] == alone.values["policy_loss.params.clip_high"] == 0.2
    assert fates(alone, both) == {Fate.IGNORED, Fate.OPEN}
    unset = translate({both: 0.1, low: None, high: None})
    assert unset.values["policy_loss.params.clip_low"] == unset.values["policy_loss.params.clip_high"] == 0.1
    one = translate({high: 0.28})
    assert (one.values["policy_loss.params.clip_low"], one.values["policy_loss.params.clip_high"]) == (0.2, 0.28)


@pytest.mark.parametrize(("mode", "loss"), [("gspo", "gspo"), ("geo_mean", "gmpo")])
def test_losses_by_sequence_average_by_sequence(mode: str, loss: str) -> None:
    aggregation = f"{ACTOR}.loss_agg_mode"
    made = translate({f"{ACTOR}.policy_loss.loss_mode": mode, aggregation: "token-mean"})
    assert made.choices["policy_loss"] == loss and made.values["train.loss_aggregation"] == "seq-mean-token-mean"
    assert fates(made, aggregation) == {Fate.IGNORED}


def test_dppo_has_the_bounds_of_clip_ratio() -> None:
    values = translate({f"{ACTOR}.policy_loss.loss_mode": "dppo_kl", f"{ACTOR}.clip_ratio_low": 0.05}).values
    names = ("divergence", "bound_low", "bound_high", "ratio_cap")
    assert [values[f"policy_loss.params.{name}"] for name in names] == ["kl", 0.05, 0.2, 3.0]


def test_passes_over_tasks_that_are_not_known_are_to_decide() -> None:
    made = translate({"trainer.total_epochs": 2})
    assert "train.steps" not in made.values and fates(made, "trainer.total_epochs") == {Fate.OPEN}


def test_fewer_tasks_than_a_step_are_to_decide() -> None:
    made = translate({"data.train_batch_size": 64}, tasks=10)
    assert "train.steps" not in made.values and fates(made, "data.train_batch_size") >= {Fate.OPEN}


def test_rewards_are_those_of_the_rows_data_sources() -> None:
    one = translate({}, sources={"openai/gsm8k"})
    assert one.choices["rewards"] == ["gsm8k"] and "rewards.gsm8k.sources" not in one.values
    several = translate({}, sources={"aime2024", "math_dapo", "searchR1_nq", "codecontests"})
    assert several.choices["rewards"] == ["math_dapo", "qa_em"]
    assert several.values["rewards.math_dapo.sources"] == ["aime2024", "math_dapo"]
    assert "codecontests" in why(several, "reward_model.reward_manager")


def test_the_scores_of_a_reward_model_are_not_replaced_by_a_rule() -> None:
    """With `reward_model.enable` verl's managers give what the model scored."""
    given = {
        "reward_model.enable": True,
        "data.train_files": "gsm8k/train.parquet",
        "reward_model.reward_manager": "dapo",
    }
    made = translate(given, sources=["openai/gsm8k"])
    assert "rewards" not in made.choices and "no reward is chosen" in why(made, "reward_model.enable")
    assert "take its place" in why(made, "reward_model.reward_manager")


def test_a_reference_in_a_value_is_a_text_in_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a source cannot read from the environment, a recipe of it cannot either."""
    monkeypatch.chdir(tmp_path)
    made = translate({"data.train_files": ["${oc.env:HOME}/a.parquet"]})
    write_recipe(Path("hydra_configs/experiment/one.yaml"), recipe_text(made, "x.sh"))
    assert compose(["experiment=one", "model.path=m"]).config.data.train == ["${oc.env:HOME}/a.parquet"]


def test_a_value_of_several_lines_stays_in_its_comment() -> None:
    made = translate({f"{ACTOR}.strategy": "x\nrewards: {custom: {}}", "trainer.other": "y\nmodel: {}"})
    made.remarks = ["z\ndata: {}"]
    text = recipe_text(made, "x\nrun: {}")
    body = yaml.safe_load(text)
    assert "rewards" not in body and all(body[section] for section in body)


def test_a_secret_is_not_written_down() -> None:
    key = f"{ROLLOUT}.tools.tool_instances.search.params.api_key"
    made = translate({key: "9f8e7d6c5b4a39281706", "trainer.my_api_key": "9f8e7d6c5b4a39281706"})
    made.unread = {"--wandb_api_key=9f8e7d6c5b4a39281706": "not read"}
    text = recipe_text(made, "x.sh")
    assert "9f8e7d6c5b4a39281706" not in text and f"{key}=***" in text


def test_overrides_of_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["data.train_files=['a.parquet','b.parquet']", "+trainer.logger=[console,mlflow]", "data.shuffle=False",
             "actor_rollout_ref.model.path=<your_model>", "~trainer.nnodes", "a.b"]  # fmt: skip
    assert main(["migrate", "verl", "--out", "one.yaml", "--", *words]) == 0
    made = migrate("verl", None, words)
    assert made.values["data.train"] == ["a.parquet", "b.parquet"]
    assert made.values["data.order"] == "file"
    assert made.values["model.path"] == "<your_model>"
    assert "no tracker mlflow" in why(made, "trainer.logger")
    assert made.unread == {"a.b": NO_KEY}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verl"], "migrate: name one source, a file or `-- key=value …`"),
        (["verl", "none.sh"], "none.sh: cannot be read: "),
        (["verl", "--tasks", "0", "--", "a.b=1"], "--tasks=0: must be at least 1"),
        (["verl", "--", "trainer.nnodes=many"], "trainer.nnodes=many: expected a whole number"),
        (["verl", "--", "trainer.nnodes=inf"], "trainer.nnodes=inf: expected a whole number"),
        (["verl", "--", "trainer.nnodes=1.5"], "trainer.nnodes=1.5: expected a whole number"),
        (["verl", "--", "trainer.nnodes=0"], "trainer.nnodes=0, "),
        (["openrlhf", "x"], "argument TRAINER: invalid choice: 'openrlhf'"),
        (["trl", "--", "a=1"], "migrate: `-- key=value …` is for verl"),
        (["verl", "--gpus", "2", "--", "a.b=1"], "migrate: --gpus=2: not read for verl"),
        (["verl", "--", "actor_rollout_ref.actor.kl_loss_coef=few"], "kl_loss_coef=few: expected a number"),
    ],
)
def test_what_cannot_be_read_is_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["migrate", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


TOOLS_FILE = """
tools:
  - class_name: verl.tools.sandbox_fusion_tools.SandboxFusionTool
    config: {type: native}
    tool_schema: {type: function, function: {name: code_interpreter, description: Runs code.}}
  - class_name: verl.tools.search_tool.SearchTool
    tool_schema: {type: function, function: {name: search}}
"""


@pytest.mark.parametrize("known", [True, False])
def test_the_tools_of_a_launch_are_those_of_its_file(known: bool, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo data.train_files=t.parquet actor_rollout_ref.rollout.multi_turn.enable=True "
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml actor_rollout_ref.model.path=m\n"
    )
    (tmp_path / "tools.yaml").write_text(TOOLS_FILE if known else TOOLS_FILE.replace("SearchTool", "MyTool"))
    made = migrate("verl", tmp_path / "run.sh")
    decide = [note.why for note in made.notes if note.fate is Fate.OPEN and "tool_config_path" in note.key]
    if known:
        assert made.choices["tools"] == ["search"] and made.values["tools.code_interpreter.use"] == "python"
        assert decide == []
    else:
        assert "tools" not in made.choices
        assert decide == [
            "name the tools that the model may call: tools=[NAME] in the recipe (nothing does what search does)"
        ]


@pytest.mark.parametrize(
    ("file", "unknown"),
    [("", ""), ("- a\n", ""), ("tools:\n  - {class_name: verl.tools.McpTool, config: {}}\n", "verl.tools.McpTool"),
     ("tools:\n  - {class_name: C, tool_schema: {function: search}}\n", "C")],
)  # fmt: skip
def test_a_file_of_tools_that_is_not_understood_leaves_them_to_decide(file: str, unknown: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo data.train_files=t.parquet actor_rollout_ref.rollout.multi_turn.enable=True "
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml actor_rollout_ref.model.path=m\n"
    )
    (tmp_path / "tools.yaml").write_text(file)
    made = migrate("verl", tmp_path / "run.sh")
    [why] = [note.why for note in made.notes if note.fate is Fate.OPEN and "tool_config_path" in note.key]
    assert "tools" not in made.choices and unknown in why
