"""Values that are not allowed in the core's sections, and contradictions between them, all found in one go.

Of an engine's options `slots` (sequences at once) and `max_tokens` (of one sequence) are compared, where it has them.

What is wrong within a component's own options is found before, when its dataclass is made (`__post_init__`). What needs
files or libraries is checked by `check_…` functions and by loading the data: jobs call all of them and report together.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ramet.config.keys import JOBS
from ramet.config.outputs import check_outputs
from ramet.config.resolved import Resolved
from ramet.config.schema import (
    Combine,
    Config,
    DataConfig,
    KlEstimator,
    OldLogprobs,
    Order,
    SftConfig,
    TrainConfig,
)
from ramet.types.option import entry_problems, problem_of

NEEDED = {  # of a job: what it cannot do without
    "train": {
        "data.train": "missing; name at least one file, as in data.train=[tasks.parquet]",
        "rewards": "none chosen; training needs at least one, as in rewards=[NAME]",
    },
    "sft": {"sft.data": "missing; name at least one file, as in sft.data=[traces.jsonl]"},
    "eval": {"benchmarks": "none chosen; name at least one, as in benchmarks=[NAME]"},
}
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TAG_NAME = re.compile(r"[^<>/\s]+")
RHO_IS_ONE = (
    "has no effect with train.old_logprobs=engine, where pi_old is mu and their ratio is 1; leave it out, or set "
    "train.old_logprobs=trainer"
)
RUN_NAME_RULE = "allowed: letters, digits, '.', '_' and '-', a letter or digit first, at most 128 characters"


def check(resolved: Resolved, job: str) -> list[str]:
    """Everything that is wrong with the sections that `job` builds: key, value, what is allowed."""
    config = resolved.config
    problems = check_values(config, job)
    problems += check_outputs(config, job)
    if job in ("train", "eval", "play"):
        problems += _deterministic(config)
    if job in ("train", "eval"):  # `ramet play` fits the engine to the model, and looks at each prompt
        problems += _lengths(config)
    if job == "train":
        problems += _training(config)
        problems += _validation(config.train, config.rollout.max_concurrent)
    if job == "sft":
        problems += [*_budget(config.sft), *_mask_tags(config.sft.mask_tags), *_held_out(config.sft)]
    return problems + check_chosen(config, job)


def check_chosen(config: Config | DictConfig, job: str, given: Container[str] = ()) -> list[str]:
    """Data and components without which there is no job, and which are not there, but for those that are `given`."""
    problems = []
    for key, problem in NEEDED.get(job, {}).items():
        if key in given:
            continue
        section, _, option = key.partition(".")
        value = _value(config, section)
        problems += [] if (_value(value, option) if option else value) else [f"{key}: {problem}"]
    return problems


def _held_out(sft: SftConfig) -> list[str]:
    if sft.valid and sft.valid_share:
        return [f"sft.valid_share={sft.valid_share:g}: sft.valid names held-out files already; leave one of them out"]
    if sft.holds_out:
        return []
    return [
        f"sft.trainer.{name}={sft.trainer[name]}: has no effect without held-out rows; name files in sft.valid, or a "
        "share of sft.data as sft.valid_share=0.05"
        for name in ("eval_steps", "early_stopping_patience")
        if sft.trainer.get(name) is not None
    ]


def _budget(sft: SftConfig) -> list[str]:
    if sft.max_microbatch_tokens >= sft.max_tokens:
        return []
    return [
        f"sft.max_microbatch_tokens={sft.max_microbatch_tokens}: must be at least sft.max_tokens={sft.max_tokens}, "
        "since a sequence is not cut over forward passes; raise it, or lower sft.max_tokens"
    ]


def _mask_tags(tags: Sequence[str]) -> list[str]:
    wrong = [repr(tag) for tag in tags if not TAG_NAME.fullmatch(tag)]
    if not wrong:
        return []
    return [f"sft.mask_tags: {', '.join(wrong)}: no names of tags; write them without brackets, as in "
            "sft.mask_tags=[search,python]"]  # fmt: skip


def check_values(config: Config | DictConfig, job: str) -> list[str]:
    """Values that are out of their range whatever the others are. Of a composed tree, those that can be read."""
    problems = []
    for path, settings in (part for section in JOBS[job] for part in _parts(config, section)):
        for field in dataclasses.fields(_kind(settings)):
            value, key = _value(settings, field.name), f"{path}.{field.name}"
            problems += [f"{key}={value}: {problem}"] if (problem := problem_of(field, value)) else []
            problems += [f"{key}.{problem}" for problem in entry_problems(field, value)]
    problems += [
        f"{field.name}.{problem}"
        for field in dataclasses.fields(Config)
        if field.name in JOBS[job]
        for problem in entry_problems(field, _value(config, field.name))
    ]
    name = _value(config.run, "name") if "run" in JOBS[job] else None
    if name is not None and not RUN_NAME.fullmatch(name):
        problems.append(f"run.name={name}: {RUN_NAME_RULE}")
    return problems


def _parts(config: Config | DictConfig, section: str) -> Iterator[tuple[str, Any]]:
    """Path and settings of what a section holds: itself, or each of its entries."""
    node = _value(config, section)
    entries = {f"{section}.{name}": _value(node, name) for name in node} if _kind(node) is dict else {section: node}
    yield from ((path, settings) for path, settings in entries.items() if dataclasses.is_dataclass(_kind(settings)))


def _kind(node: Any) -> Any:
    """The type of a value; of a part of a tree, the one that it is to become."""
    return OmegaConf.get_type(node) if OmegaConf.is_config(node) else type(node)


def _value(settings: Any, name: str) -> Any:
    """Return the value; None for what is missing or leads nowhere in a tree, which is a mistake of its own."""
    try:
        return settings[name] if isinstance(settings, dict | DictConfig) else getattr(settings, name)
    except OmegaConfBaseException:
        return None


def _training(config: Config) -> Iterator[str]:
    rollout, train = config.rollout, config.train
    yield from _choosing(config.data)
    if rollout.max_concurrent < rollout.group_size:
        yield (
            f"rollout.max_concurrent={rollout.max_concurrent}: must be at least rollout.group_size="
            f"{rollout.group_size}, since a group runs in one worker"
        )
    if rollout.temperature == 0:
        yield "rollout.temperature=0.0: must be over 0 in training, since all rollouts of a group would be the same"
    rollouts = train.tasks_per_step * rollout.group_size
    if train.minibatches > rollouts:
        yield (
            f"train.minibatches={train.minibatches}: at most the {rollouts} rollouts of a step (train.tasks_per_step="
            f"{train.tasks_per_step} x rollout.group_size={rollout.group_size}); set train.minibatches={rollouts} or "
            "fewer, or run more rollouts"
        )
    if train.staleness and train.tis_cap is None and train.old_logprobs is OldLogprobs.TRAINER:
        yield (
            f"train.staleness={train.staleness}: needs train.tis_cap, which is null: what older weights sampled is "
            "corrected by its importance; or set train.old_logprobs=engine, whose ratio corrects it"
        )
    yield from _kl(train)
    yield from _bands(train)
    if (train.eval_every > 0 or train.eval_first) and not config.data.valid:
        which = f"eval_every={train.eval_every}" if train.eval_every > 0 else "eval_first=true"
        yield f"train.{which}: needs data.valid, which is empty"
    if config.rewards and all(reward.combine is Combine.MULTIPLY for reward in config.rewards.values()):
        yield (
            f"rewards: {', '.join(config.rewards)} multiply, and none adds what they could multiply; set combine=add "
            "for one of them"
        )
    for name, reward in config.rewards.items():
        if reward.resample and not train.resample_rounds:
            yield f"rewards.{name}.resample=true: needs train.resample_rounds over 0, which replaces groups"
        bounds = reward.clip
        if bounds is not None and not (len(bounds) == 2 and bounds[0] < bounds[1]):
            yield f"rewards.{name}.clip={bounds}: allowed: [lowest, highest], the first under the second; null: none"


def _kl(train: TrainConfig) -> Iterator[str]:
    if train.kl_coef == 0 and train.kl_estimator is KlEstimator.K1_REWARD:
        yield "train.kl_estimator=k1-reward: needs train.kl_coef over 0: there is no KL to take off the rewards"
    if train.kl_coef == 0 and train.kl_target is not None:
        yield f"train.kl_target={train.kl_target:g}: needs train.kl_coef over 0, with which it begins"
    if train.kl_coef > 0 and train.kl_estimator is KlEstimator.K1:
        yield (
            "train.kl_estimator=k1: in the loss it has the gradient of log pi, whatever the reference is, so nothing "
            "pulls towards it; set k1+, which has the same value and the gradient of the KL, k2, k3 or k1-reward"
        )


def _bands(train: TrainConfig) -> Iterator[str]:
    engine = train.old_logprobs is OldLogprobs.ENGINE
    for name in ("token_band", "sequence_band"):
        band, key = train.off_policy.get(name), f"train.off_policy.{name}"
        if band is not None and engine:
            yield f"{key}={band}: {RHO_IS_ONE}"
        if band is not None and not (isinstance(band, list) and len(band) == 2 and 0 <= band[0] < band[1]):
            yield f"{key}={band}: must be two numbers, the lower bound first and at least 0, as [0.5, 5.0]"
    if train.off_policy.get("tis_level") == "sequence" and engine:
        yield f"train.off_policy.tis_level=sequence: {RHO_IS_ONE}"


def _validation(train: TrainConfig, max_concurrent: int) -> Iterator[str]:
    if train.eval_k > max_concurrent:
        yield f"train.eval_k={train.eval_k}: must be at most rollout.max_concurrent={max_concurrent}"
    if train.eval_k > 1 and train.eval_sampling.get("temperature") == 0:
        yield (
            f"train.eval_k={train.eval_k}: needs train.eval_sampling.temperature over 0, since all rollouts of a task "
            "would be the same"
        )
    if train.keep_best is not None and not train.eval_every:
        yield f"train.keep_best={train.keep_best}: needs train.eval_every over 0, which says when it is measured"


def _choosing(data: DataConfig) -> Iterator[str]:
    for name, weight in data.weights.items():
        if not 0 <= weight < float("inf"):
            yield f"data.weights.{name}={weight}: must be finite and at least 0"
    if data.weights and not any(weight > 0 for weight in data.weights.values()):
        yield "data.weights: all are 0, so there is nothing to draw"
    if not data.columns.get("difficulty"):
        by_column = {
            "order=curriculum": data.order is Order.CURRICULUM,
            f"difficulty={data.difficulty}": data.difficulty,
        }
        for setting in (setting for setting, is_set in by_column.items() if is_set):
            yield f"data.{setting}: needs data.columns.difficulty, the column that holds a task's difficulty"
    if any(math.isnan(bound) for bound in data.difficulty.values()):
        yield f"data.difficulty={data.difficulty}: must be numbers"
    if data.difficulty.get("min", -math.inf) > data.difficulty.get("max", math.inf):
        yield f"data.difficulty={data.difficulty}: min must be at most max"
    for name in ("prompt",):
        if data.columns.get(name, name) is None:
            yield f"data.columns.{name}=null: every task needs one; leave the key out, or name the column"


def _deterministic(config: Config) -> Iterator[str]:
    if not config.run.deterministic:
        return
    if config.engine.name != "torch":
        yield f"run.deterministic=true: needs engine=torch, got engine={config.engine.name}"
    for key in ("policy_workers", "rollout_workers"):
        if (workers := getattr(config.cluster, key)) != 1:
            yield f"run.deterministic=true: needs cluster.{key}=1, got {workers}"
    if config.train.staleness:
        yield f"run.deterministic=true: needs train.staleness=0, got {config.train.staleness}"
    if config.run.threads not in (None, 1):
        yield f"run.deterministic=true: needs run.threads=1, got {config.run.threads}"
    if config.model.device.startswith("cuda"):
        yield f"run.deterministic=true: holds on CPU only, got model.device={config.model.device}"
    slots, rollouts = getattr(config.engine.params, "slots", None), config.rollout.max_concurrent
    if config.engine.name == "torch" and slots is not None and slots < rollouts:
        yield (
            f"run.deterministic=true: needs engine.params.slots of at least rollout.max_concurrent={rollouts}, got "
            f"{slots}, since every rollout keeps its slot until its group is complete"
        )


def _lengths(config: Config) -> Iterator[str]:
    prompt, response = config.data.max_prompt_tokens, config.rollout.max_response_tokens
    numbers = f"data.max_prompt_tokens={prompt} + rollout.max_response_tokens={response} = {prompt + response}"
    held = getattr(config.engine.params, "max_tokens", None)
    if held is not None and held < prompt + response:
        yield f"{numbers}: more than engine.params.max_tokens={held}; raise that, or set {_fitting(held, prompt)}"
    longest = max_positions(Path(config.model.path))
    if longest is not None and longest < prompt + response:
        fitting = _fitting(longest, prompt)
        yield f"{numbers}: more than the {longest} positions of the model {config.model.path}; set {fitting}"


def _fitting(most: int, prompt: int) -> str:
    """Return keys with which a prompt and its response have `most` tokens; the prompt's stays where both fit."""
    if prompt < most:
        return f"rollout.max_response_tokens={most - prompt}"
    return f"data.max_prompt_tokens={most // 2} rollout.max_response_tokens={most - most // 2}"


def max_positions(folder: Path) -> int | None:
    """How many tokens a model's sequences may have; None where its `config.json` does not say."""
    try:
        positions = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None  # the check of the model's folder says what is wrong with it
    return positions if isinstance(positions, int) else None
