"""The overrides of verl's SFT trainer as a recipe of `ramet sft`.

Two trainers have these keys: `fsdp_sft_trainer`, and `sft_trainer` over engines, of version 0.6 and later, whose
defaults are others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.migrate.translation import Translation, as_list
from ramet.migrate.verl import LAST_ONLY, set_names

OF_ENGINES = ("model.path", "data.messages_key", "data.tools_key", "data.use_dynamic_bsz")  # keys of the later trainer
ROW_OF_RL = {"prompt": "question", "response": "answer"}  # fields of `extra_info`, in the rows that verl prepares
SCHEDULES = {"cosine": "cosine", "constant": "constant_with_warmup", "linear": "linear"}
OFFLOADS = ("model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params", "engine.param_offload",
            "engine.optimizer_offload")  # fmt: skip


def translate(given: Mapping[str, Any], *, processes: int | None = None) -> Translation:
    """Translate overrides of `verl.trainer.fsdp_sft_trainer` or `sft_trainer`. Raises `ConfigError` for a text where a
    number is needed. `processes`: those that torchrun starts, None where the launch does not say.
    """
    made = Translation(trainer="verl", job="sft", given=given, table="verl_sft")
    made.translate_by_table()
    later = any(map(made.has, OF_ENGINES)) or any(key.startswith("engine.") for key in given)
    _model(made)
    _devices(made, processes)
    _data(made)
    _columns(made, later)
    _batches(made, later)
    _optimizer(made, later)
    _schedule(made)
    set_names(made)
    made.left(*(key for key in given if "megatron" in key), why="the model is sharded by FSDP2, not by Megatron")
    made.finish()
    return made


def _model(made: Translation) -> None:
    key = "model.path" if made.has("model.path") else "model.partial_pretrain"
    if made.get(key):
        made.set("model.path", made.get(key), key)
    else:
        made.open(key, "no model is named: set model.path")
    made.model_code("model.trust_remote_code")
    if rank := made.number("model.lora_rank"):
        made.adapter_scale("model.lora_alpha", rank)
        if made.get("model.target_modules") in (None, "all-linear"):
            made.same("model.target_modules", why="every linear layer has an adapter")
    key = next(filter(made.has, ("engine.dtype", "engine.model_dtype")), "model.fsdp_config.model_dtype")
    is_full = key == "engine.dtype" and made.get(key) in ("float32", "fp32")
    made.set("model.dtype", "float32" if is_full else "bfloat16", key)  # of the products; trained weights are float32


def _devices(made: Translation, processes: int | None) -> None:
    """Set workers and sharding. torchrun starts the processes, and verl reads no key for their number."""
    n, nodes = "trainer.n_gpus_per_node", "trainer.nnodes"
    if processes is None and made.has(n):
        processes = made.number(n) * made.number(nodes, 1)
        why = f"cluster.policy_workers={processes}; verl starts as many as torchrun does, which is not known here"
        made.set("cluster.policy_workers", processes, *filter(made.has, (n, nodes)), why=why)
    elif processes is None:
        made.open(n, "how many processes torchrun starts is not known: set cluster.policy_workers; 1 is written")
    else:
        made.ignored(n, nodes, why="torchrun starts the processes, whatever these keys say")
    made.values["cluster.policy_workers"] = processes or 1
    strategy = next(filter(made.has, ("engine.strategy", "model.strategy")), "model.strategy")
    if (processes or 1) > 1:
        made.set("sft.strategy", "fsdp", strategy)
    if made.get(strategy) not in (None, "fsdp", "fsdp2"):
        made.open(strategy, f"the model is sharded by FSDP2, not by {made.get(strategy)}: see docs/sft.md")
    if any(map(made.get, OFFLOADS)):
        made.open(next(filter(made.get, OFFLOADS)), "nothing is offloaded with FSDP: set sft.strategy=zero3_offload")
    made.same(*filter(made.has, OFFLOADS), why="sft.strategy decides the offloading")
    for key in ("ulysses_sequence_parallel_size", "engine.ulysses_sequence_parallel_size"):
        if made.number(key) > 1:
            made.left(key, why="a row is on one device; `--dry-run --on` says whether it fits")
        else:
            made.same(key, why="a row is on one device")


def _data(made: Translation) -> None:
    if files := made.get("data.val_files"):
        why = "its lowest loss chooses the model; verl keeps the last one"
        made.set("sft.valid", as_list(files), "data.val_files", why=why)
    else:
        made.same("data.val_files", why="no rows are held out")
    if not made.has("data.train_files"):
        made.open("data.train_files", "no data is named: set sft.data=[FILE]")
    cut = made.get("data.truncation")
    if cut == "right":
        made.set("sft.truncate", True, "data.truncation")
    elif cut == "error":
        made.set("sft.truncate", False, "data.truncation", why="longer rows are left out and counted; verl stops there")
    else:
        made.open("data.truncation", f"{cut}: a row is cut at its end (sft.truncate=true) or left out")
    if made.get("data.custom_cls.path"):
        made.open("data.custom_cls.path", "rows are not read by a class: write a file of messages (docs/sft.md)")
    else:
        made.same("data.custom_cls.path", "data.custom_cls.name", why="rows are read by their layout")


def _columns(made: Translation, later: bool) -> None:
    """Name the columns. A column of verl may be a struct, of which it takes a field."""
    made.values["rollout_step.system_prompt"] = "never"  # verl adds no text to a row
    if later or made.get("data.multiturn.enable"):
        made.choose("rollout_step", "hermes", "data.multiturn.enable")  # calls in the form of the chat template
        for name, usual in (("messages", "messages"), ("tools", "tools")):
            key = f"data.{name}_key" if later else f"data.multiturn.{name}_key"
            if made.get(key) == usual:
                made.same(key, why=f"the column {usual} is read")
            else:
                made.set(f"sft.columns.{name}", made.get(key), key)
        return
    made.choose("rollout_step", "tags", "data.multiturn.enable")
    for name, usual in ROW_OF_RL.items():
        key, fields = f"data.{name}_key", f"data.{name}_dict_keys"
        column = _first(made.get(key))
        within = as_list(made.get(fields)) if made.get(fields) else []
        if column == "extra_info" and not made.has(fields):
            within = [usual]
        made.set(f"sft.columns.{name}", ".".join([column, *within]), key, fields)
    made.values["sft.columns.query"] = made.values["sft.columns.history"] = None  # verl reads two columns


def _first(value: Any) -> str:
    return str(value[0]) if isinstance(value, list) and value else str(value)


def _batches(made: Translation, later: bool) -> None:
    """Set the tokens of a pass: as many rows of the greatest length as verl's micro-batch has, or its own number."""
    rows, former, dynamic = "data.micro_batch_size_per_gpu", "data.micro_batch_size", "data.use_dynamic_bsz"
    tokens, longest = "data.max_token_len_per_gpu", made.number("data.max_length")
    by_tokens = later and made.get(dynamic) is not False
    if by_tokens:
        n, keys = made.number(tokens), [tokens, dynamic]
        made.ignored(rows, former, why="use_dynamic_bsz: micro-batches are measured in tokens")
    else:
        key = rows if made.has(rows) or not made.get(former) else former
        n, keys = made.number(key) * longest, [key]
        made.ignored(tokens, dynamic, former if key == rows else rows, why=f"{key} is read")
    why = "" if n >= longest else f"{longest}, the longest row, instead of {n}"
    made.set("sft.max_microbatch_tokens", max(n, longest), *keys, why=why)


def _optimizer(made: Translation, later: bool) -> None:
    made.set("sft.lr", made.get("optim.lr") or (1e-3 if later else 1e-5), "optim.lr")
    betas = made.get("optim.betas") or [0.9, 0.999 if later else 0.95]
    if isinstance(betas, list) and len(betas) == 2:
        why = "" if betas[0] == 0.9 else f"sft.trainer.adam_beta2={betas[1]}; the first is always 0.9"
        made.set("sft.trainer.adam_beta2", betas[1], "optim.betas", why=why)
    else:
        made.open("optim.betas", "not two numbers: set sft.trainer.adam_beta2")
    names = ("optim.lr_scheduler", "optim.lr_scheduler_type", "optim.warmup_style")
    key = next(filter(made.has, names), names[1] if later else names[0])
    wanted = made.get(key) or ("constant" if later else "cosine")
    if wanted in SCHEDULES:
        made.set("sft.trainer.lr_scheduler_type", SCHEDULES[wanted], key)
    else:
        made.open(key, f"no schedule like {wanted}; allowed: {', '.join(SCHEDULES.values())}")
    if made.fraction("optim.min_lr_ratio"):
        made.left("optim.min_lr_ratio", why="the schedule ends at 0")
    else:
        made.same("optim.min_lr_ratio", why="the schedule ends at 0")
    _warmup(made, later)


def _warmup(made: Translation, later: bool) -> None:
    steps, total = "optim.lr_warmup_steps", made.number("trainer.total_training_steps")
    names = ("optim.warmup_steps_ratio", "optim.lr_warmup_steps_ratio")
    key = next(filter(made.has, names), names[later])
    share = made.fraction(key) if made.has(key) else (0.0 if later else 0.1)
    n = made.number(steps, -1)
    if n > 0 and total:
        made.set("sft.trainer.warmup_ratio", n / total, steps)
        made.ignored(key, why="lr_warmup_steps is set")
    elif n > 0:
        made.open(steps, f"{n} steps: set sft.trainer.warmup_ratio to their share of all steps")
        made.ignored(key, why="lr_warmup_steps is set")
    else:
        made.set("sft.trainer.warmup_ratio", share, key)
        made.same(steps, why="warmup_steps_ratio is read")


def _schedule(made: Translation) -> None:
    """Set when is saved and measured. verl does both after the last step too."""
    save, test = (_every(made, f"trainer.{name}_freq") for name in ("save", "test"))
    if save is not None:
        why = "" if save > 0 else "only the last step is saved"
        made.set("sft.trainer.save_steps", save if save > 0 else LAST_ONLY, "trainer.save_freq", why=why)
    if "sft.valid" not in made.values:
        made.ignored("trainer.test_freq", why="no rows are held out")
    elif test is not None and test > 0:
        made.set("sft.trainer.eval_steps", test, "trainer.test_freq")
    else:
        made.same("trainer.test_freq", why="the loss of held-out rows is measured after each pass")


def _every(made: Translation, key: str) -> int | None:
    """Return the steps between two times; None for a word like `after_each_epoch`."""
    if str(made.get(key)).lstrip("-").isdigit():
        return made.number(key)
    if key == "trainer.save_freq":
        made.open(key, f"{made.get(key)}: set sft.trainer.save_steps to the steps of a pass")
    return None
