"""LLaMA-Factory's YAML as a recipe of `ramet sft`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ramet.data.dataset_info import find_sets
from ramet.errors import ConfigError
from ramet.migrate.training_arguments import sft_arguments
from ramet.migrate.translation import Translation, as_list

INFO = "dataset_info.json"
FORMS = {"default": "hermes", "qwen": "hermes", "llama3": "hermes"}  # of tool calls


def translate(given: Mapping[str, Any], *, folder: Path, gpus: int | None = None) -> Translation:
    """Translate the keys of a file in this folder. Raises `ConfigError` for another stage than SFT."""
    stage = given.get("stage", "sft")
    if stage != "sft":
        raise ConfigError(f"stage={stage}: only stage=sft is translated; RL is `ramet train`")
    made = Translation(trainer="llamafactory", job="sft", given=given)
    made.translate_by_table()
    made.same("stage", why="ramet sft")
    if made.get("do_train"):
        made.same("do_train", why="ramet sft")
    made.model_code("trust_remote_code")
    made.values["sft.truncate"] = True  # as cutoff_len does
    _lora(made)
    _data(made, folder)
    _held_out(made, folder)
    _format(made)
    sft_arguments(made, gpus=gpus, folder=folder, length="cutoff_len")
    if (shares := made.get("interleave_probs")) is not None:
        shares = shares if isinstance(shares, list) else yaml.safe_load(f"[{shares}]")
        made.set("sft.mixing.probs", shares, "interleave_probs")
    made.finish()
    return made


def _format(made: Translation) -> None:
    """Choose the rollout step, which reads calls in rows. LLaMA-Factory adds no text to them."""
    form = made.get("tool_format")
    if str(form) in FORMS:
        made.choose("rollout_step", FORMS[str(form)], "tool_format")
    elif form is not None:
        made.open("tool_format", f"no rollout step reads calls of the form {form}; see docs/tool_calls.md")
    made.values["rollout_step.system_prompt"] = "never"
    if made.get("enable_thinking") is not None:
        why = "a variable of the chat template; LLaMA-Factory adds empty thoughts to replies itself"
        variables = {"enable_thinking": made.get("enable_thinking")}
        made.set("model.chat_template_kwargs", variables, "enable_thinking", why=why)


def _lora(made: Translation) -> None:
    """Set the rank of an adapter, and say what of its options has no counterpart."""
    kind = made.get("finetuning_type")
    if kind == "lora":
        made.same("finetuning_type", why="an adapter is trained")
        made.adapter_scale("lora_alpha", made.number("lora_rank"))
        if made.get("lora_target") in (None, "all"):
            made.same("lora_target", why="the adapter is on every linear layer but the output head")
    elif kind == "full":
        made.same("finetuning_type", why="all weights are trained")
    else:
        made.open("finetuning_type", f"{kind}: there are sft.lora_rank=0, all weights, and an adapter over it")


def _held_out(made: Translation, folder: Path) -> None:
    """Set the held-out data, and when their loss is measured."""
    share, steps = made.fraction("val_size"), "eval_steps"
    if made.get("eval_dataset"):
        _data(made, folder, "eval_dataset", "sft.valid")
    elif 0 < share < 1:
        made.set("sft.valid_share", share, "val_size")
    else:
        if share:
            made.open("val_size", f"{share:g} rows: set sft.valid_share to their share of all rows")
        made.ignored("eval_strategy", steps, "early_stopping_steps", why="no rows are held out")
        return
    if made.get("eval_strategy") == "steps" and made.get(steps):
        made.set("sft.trainer.eval_steps", made.number(steps), "eval_strategy", steps)
    if made.get("early_stopping_steps"):
        patience = made.number("early_stopping_steps")
        made.set("sft.trainer.early_stopping_patience", patience, "early_stopping_steps")


def _data(made: Translation, folder: Path, key: str = "dataset", ours: str = "sft.data") -> None:
    """Name the data sets in dataset_info.json, which `ramet sft` reads as LLaMA-Factory does."""
    texts = as_list(made.get(key) or "")
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not names:
        made.open(key, f"no data set is named: set {ours}=[FILE]")
        return
    where = str(made.get("dataset_dir"))
    places = (base / where / INFO for base in (folder, folder.parent, folder.parent.parent, Path.cwd()))
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        made.set(ours, names, key)
        made.open("dataset_dir", f"{INFO} is not in {where}: the names of the sets are written; put files in {ours}")
        return
    named = [f"{path}:{name}" for name in names]
    made.set(ours, named, key)
    made.same("dataset_dir", why=f"its {INFO} is read")
    for problem in find_sets(named, fetch=False).problems:
        made.open(key, problem.removeprefix(f"{path}:"))
