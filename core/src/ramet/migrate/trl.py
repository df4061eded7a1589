"""TRL's `GRPOConfig` and `SFTConfig` as a recipe."""

from __future__ import annotations

import math
import re
from pathlib import Path

from ramet.migrate.script_trl import TrlScript
from ramet.migrate.training_arguments import NO_WARMUP, output, sft_arguments
from ramet.migrate.translation import Translation, as_list

AGGREGATIONS = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "bnpo": "token-mean",
                "dr_grpo": "seq-mean-token-sum-norm"}  # fmt: skip
REWARDS = {"accuracy_reward": "math", "think_format_reward": "format", "get_soft_overlong_punishment": "overlong"}
SLICE = re.compile(r"([\w.-]+)(\[.*\])?")
SCHEDULES = ("constant", "linear", "cosine")


def translate(script: TrlScript, *, folder: Path, gpus: int | None = None, tasks: int | None = None) -> Translation:
    """Translate what a script in this folder gives to TRL. `tasks`: rows of the training data, where known."""
    made = Translation(trainer="trl", job=script.job, given=script.values)
    made.translate_by_table()
    made.values["rollout_step.system_prompt"] = "never"  # TRL adds no text to a prompt
    if script.job == "sft":
        _sft(made, folder, gpus)
    else:
        _grpo(made, script, gpus, tasks)
    made.finish()
    return made


def _sft(made: Translation, folder: Path, gpus: int | None) -> None:
    length = "max_seq_length" if "max_seq_length" in made.given else "max_length"
    if made.get(length) is None:
        made.open(length, "no limit: set sft.max_tokens to the longest row")
    else:
        made.set("sft.max_tokens", made.number(length), length)
    made.values["sft.truncate"] = True  # as TRL does
    _data(made, "train_dataset", "sft.data")
    if made.get("eval_dataset"):
        _data(made, "eval_dataset", "sft.valid")
    _validation(made, "sft.trainer.eval_steps", 1)
    made.set("sft.lr", made.fraction("learning_rate") or 2e-5, "learning_rate")
    made.set("sft.trainer.save_steps", made.number("save_steps"), "save_steps")
    _rate_schedule(made, "sft.trainer.lr_scheduler_type", {"constant": "constant_with_warmup"})
    made.left("gradient_checkpointing", why="activations are always recomputed on GPUs")
    made.left("save_total_limit", why="two checkpoints are kept")
    _lora(made, "sft.lora_rank")
    sft_arguments(made, gpus=gpus, folder=folder, length=length)


def _grpo(made: Translation, script: TrlScript, gpus: int | None, tasks: int | None) -> None:
    if gpus is None:
        made.open("per_device_train_batch_size", "times the GPUs of the launch: give --gpus; 1 is taken")
    for group, name in (("advantage", "grpo"), ("rollout_step", "tags"), ("branch_policy", "none")):
        made.choose(group, name)
    _devices(made, gpus or 1)
    per_step = _batch(made, gpus or 1)
    _schedule(made, per_step, tasks)
    _loss(made)
    _rewards(made, script)
    _data(made, "train_dataset", "data.train")
    if made.get("eval_dataset"):
        _data(made, "eval_dataset", "data.valid")
    _validation(made, "train.eval_every", per_step)
    _lora(made, "policy.lora_rank")
    made.set("policy.lr", made.fraction("learning_rate") or 1e-6, "learning_rate")
    made.left("logging_steps", why="metrics are of every step")
    output(made)
    if made.get("tools"):
        why = "write each with `ramet.function_tool` in a module that RAMET_PLUGINS names: tools=[NAME], hermes"
        made.open("tools", why)


def _devices(made: Translation, gpus: int) -> None:
    """Choose engine and cluster."""
    engine = "vllm" if made.get("use_vllm") else "torch"
    made.choose("engine", engine, "use_vllm")
    if gpus == 1 and engine == "torch":
        return
    made.choose("cluster", "ray")
    is_server = engine == "vllm" and made.get("vllm_mode") == "server"
    parallel = made.number("vllm_tensor_parallel_size") if engine == "vllm" else 1
    engines = 1 if is_server else max(1, gpus // (parallel or 1))
    made.values |= {"cluster.policy_workers": gpus, "cluster.rollout_workers": engines}
    made.values["cluster.colocate"] = not is_server
    if is_server:
        made.open("vllm_mode", "the GPUs of the server are not in the script: set cluster.rollout_workers")
    else:
        made.same("vllm_mode", why="engines and policy take turns on the same GPUs")


def _batch(made: Translation, gpus: int) -> int:
    """Set tasks and mini-batches of a step. Returns TRL's optimiser steps in one step of Ramet."""
    rows, accumulated, rounds, whole = (
        "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size",
    )  # fmt: skip
    per_round = made.number(rows) * gpus
    per_update = per_round * made.number(accumulated)
    rollouts = made.number(whole, per_round * made.number(rounds, made.number(accumulated)))
    n, passes = made.number("num_generations"), made.number("num_iterations")
    if min(n, per_update, passes) < 1 or rollouts % n or rollouts % per_update:
        why = f"{rollouts} rollouts are generated at once, which {n} a prompt and {per_update} an update do not divide"
        for key in (rows, *(key for key in (accumulated, rounds, whole) if key in made.given)):
            made.open(key, f"{why}: set train.tasks_per_step and train.minibatches")
        return max(1, passes)
    made.set("train.tasks_per_step", rollouts // n, rows, *(key for key in (rounds, whole) if key in made.given))
    made.set("train.minibatches", rollouts // per_update, accumulated)
    return rollouts // per_update * passes


def _schedule(made: Translation, per_step: int, tasks: int | None) -> None:
    """Set steps. TRL counts optimiser steps; one step of Ramet may make several."""
    most, epochs = "max_steps", "num_train_epochs"
    steps, batch, passes = None, made.values.get("train.tasks_per_step"), made.fraction(epochs)
    if made.number(most, -1) > 0:
        steps = math.ceil(made.number(most) / per_step)
        made.ignored(epochs, why="max_steps is set")
        why = f"train.steps={steps}: {per_step} optimiser steps in each" if per_step > 1 else ""
        made.set("train.steps", steps, most, why=why)
    elif tasks is not None and batch and tasks >= batch:
        steps = max(1, int(passes * (tasks // batch)))
        made.set("train.steps", steps, epochs)
    elif passes == 1:
        made.same(epochs, why="one pass, as without train.steps")
    else:
        made.open(epochs, f"{passes:g} passes: set train.steps, or give --tasks; otherwise it is one pass")
    made.set("train.save_every", max(1, made.number("save_steps") // per_step), "save_steps")
    _rate_schedule(made, "policy.schedule", {})
    _warm_up(made, per_step, steps)


def _rate_schedule(made: Translation, ours: str, names: dict[str, str]) -> None:
    theirs = str(made.get("lr_scheduler_type"))
    if theirs in SCHEDULES:
        made.set(ours, names.get(theirs, theirs), "lr_scheduler_type")
    else:
        made.open("lr_scheduler_type", f"no schedule like {theirs}; allowed: {', '.join(SCHEDULES)}")


def _warm_up(made: Translation, per_step: int, steps: int | None) -> None:
    warmup, ratio = "warmup_steps", "warmup_ratio"
    key = warmup if made.get(warmup) else ratio
    share = made.fraction(key)
    if made.get("lr_scheduler_type") == "constant":
        made.ignored(ratio, warmup, why=NO_WARMUP)
        return
    if key == warmup:
        made.ignored(ratio, why="warmup_steps is set")
    if not share:
        made.same(warmup, ratio, why="no warm-up")
    elif share >= 1:
        made.set("policy.warmup_steps", math.ceil(share / per_step), key)
    elif steps is not None:  # newer versions of transformers take a share as steps too
        made.set("policy.warmup_steps", math.ceil(share * steps), key)
    else:
        made.open(key, f"{share:g} of the steps: set policy.warmup_steps when train.steps is known")


def _loss(made: Translation) -> None:
    low, high, bound, level = "epsilon", "epsilon_high", "delta", "importance_sampling_level"
    loss = "gspo" if made.get(level) == "sequence" else "ppo_clip"
    made.choose("policy_loss", loss, level)
    upper = low if made.get(high) is None else high
    made.set("policy_loss.params.clip_high", made.get(upper), upper)
    if loss == "ppo_clip":  # in TRL the ratio has no second bound unless delta sets it
        made.set("policy_loss.params.dual_clip", made.get(bound), bound)
    else:
        made.left(bound, why=f"policy_loss={loss} has no second bound")
    kind = str(made.get("loss_type"))
    if kind in AGGREGATIONS:
        why = "token-mean of the step; bnpo is by device" if kind == "bnpo" else ""
        made.set("train.loss_aggregation", AGGREGATIONS[kind], "loss_type", why=why)
    else:
        made.open("loss_type", f"no aggregation like {kind}; allowed: {', '.join(AGGREGATIONS)}; or a policy_loss")
    scale = made.get("scale_rewards")
    if scale == "batch":
        made.left("scale_rewards", why="rewards are scaled within their group")
    else:
        made.set("advantage.params.normalize_std", scale not in (False, "none"), "scale_rewards")
    corrected = made.get("use_vllm") and made.get("vllm_importance_sampling_correction")
    keys = [f"vllm_importance_sampling_{end}" for end in ("correction", "cap")]
    made.set("train.tis_cap", made.get(keys[1]) if corrected else None, *(key for key in keys if key in made.given))


def _rewards(made: Translation, script: TrlScript) -> None:
    key = "reward_funcs"
    functions = as_list(made.get(key) or [])
    of_trl = REWARDS.keys() - script.functions
    known = [REWARDS[name] for name in (text.partition("(")[0] for text in functions) if name in of_trl]
    own = [name for name in functions if name.partition("(")[0] not in of_trl]
    if known:
        made.choose("rewards", known, key, why=f"rewards=[{','.join(known)}]: compare their options")
    if own or not functions:
        why = (
            "a function of lists in TRL, of one answer here: write compute_score(data_source, solution_str, "
            "ground_truth, extra_info) into a file, and set rewards=[custom] rewards.custom.params.path=FILE"
        )
        made.open(key, f"{', '.join(own) or 'none was read'}: {why}")
    weights = made.get("reward_weights")
    if weights and not own and isinstance(weights, list) and len(weights) == len(known):
        for name, weight in zip(known, weights, strict=True):
            made.set(f"rewards.{name}.weight", weight, "reward_weights")
    elif weights:
        made.open("reward_weights", "set rewards.NAME.weight when the rewards are chosen")


def _data(made: Translation, key: str, ours: str) -> None:
    given = made.get(key)
    if not isinstance(given, dict):
        made.open(key, f"the script does not say which file: set {ours}=[FILE]")
        return
    wanted = str(given.get("split") or "train")
    name = SLICE.fullmatch(wanted)
    split = name[1] if name is not None else "train"
    if given["path"] in ("json", "parquet") and given.get("data_files"):
        files = given["data_files"]
        made.set(ours, as_list(files.get(split, [*files.values()]) if isinstance(files, dict) else files), key)
    else:
        subset = f"{given['name']}/" if given.get("name") else ""
        made.set(ours, [f"{given['path']}:{subset}{split}"], key)
    if given.get("data_dir"):
        made.open(key, f"data_dir={given['data_dir']} is not read: name its files, as hf://datasets/OWNER/NAME/FILE")
    if wanted != split:
        made.open(key, f"a part of a split ({wanted}): all of {split} was taken")
    columns = "sft.columns" if made.job == "sft" else "data.columns"
    made.open(key, f"what the script does to its rows is not read: name its columns in {columns}")


def _validation(made: Translation, ours: str, per_step: int) -> None:
    strategy, steps = "eval_strategy", "eval_steps"
    if not made.get("eval_dataset"):
        made.ignored(strategy, steps, why="without eval_dataset")
    elif made.get(strategy) == "steps" and made.get(steps):
        made.set(ours, max(1, made.number(steps) // per_step), strategy, steps)
    else:
        made.ignored(steps, why="read only with eval_strategy=steps")


def _lora(made: Translation, key: str) -> None:
    adapter = made.get("peft_config")
    if not isinstance(adapter, dict):
        return
    rank, alpha = adapter.get("r", 8), adapter.get("lora_alpha", 8)
    why = "" if alpha == 2 * rank else f"{key}={rank}: the scale is always 2 x the rank, not {alpha}"
    made.set(key, rank, "peft_config", why=why)
    if others := adapter.keys() - {"r", "lora_alpha", "task_type"}:
        made.left("peft_config", why=f"{', '.join(sorted(others))}: an adapter is on every linear layer")
