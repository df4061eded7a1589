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
from collections.abc import Iterator, Sequence
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
    KlIn,
    OldLogprobs,
    SftConfig,
    TisLevel,
    TrainConfig,
)
from ramet.types.option import problem_of

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
    if job == "sft" and not config.sft.data:
        problems.append("sft.data: missing; name at least one file, as in sft.data=[traces.jsonl]")
    if job == "sft":
        problems += [*_budget(config.sft), *_mask_tags(config.sft.mask_tags)]
    if job == "eval":
        chosen = config.evaluate
        problems += [
            f"evaluate.pass_at={chosen.pass_at}: {j} is not allowed; allowed: 1 to evaluate.k={chosen.k}"
            for j in chosen.pass_at
            if not 1 <= j <= chosen.k
        ]
    if job == "eval" and not config.benchmarks:
        problems.append("benchmarks: none chosen; name at least one, as in benchmarks=[NAME]")
    return problems


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
    problems = [
        f"{path}.{field.name}={value}: {problem}"
        for section in JOBS[job]
        for path, settings in _parts(config, section)
        for field in dataclasses.fields(_kind(settings))
        if (problem := problem_of(field, value := _value(settings, field.name)))
    ]
    name = _value(config.run, "name") if "run" in JOBS[job] else None
    if name is not None and not RUN_NAME.fullmatch(name):
        problems.append(f"run.name={name}: {RUN_NAME_RULE}")
    return problems


def _parts(config: Config | DictConfig, section: str) -> Iterator[tuple[str, Any]]:
    """Path and settings of what a section holds: itself, or each of its entries."""
    node = _value(config, section)
    found = {f"{section}.{name}": _value(node, name) for name in node} if _kind(node) is dict else {section: node}
    yield from ((path, settings) for path, settings in found.items() if dataclasses.is_dataclass(_kind(settings)))


def _kind(node: Any) -> Any:
    """The type of a value; of a part of a tree, the one that it is to become."""
    return OmegaConf.get_type(node) if OmegaConf.is_config(node) else type(node)


def _value(settings: Any, name: str) -> Any:
    """None for what is missing or leads nowhere in a tree, which is a mistake of its own."""
    try:
        return settings[name] if isinstance(settings, dict | DictConfig) else getattr(settings, name)
    except OmegaConfBaseException:
        return None


def _training(config: Config) -> Iterator[str]:
    rollout, train = config.rollout, config.train
    yield from _choosing(config.data)
    if not config.data.train:
        yield "data.train: missing; name at least one file, as in data.train=[tasks.parquet]"
    if rollout.max_concurrent < rollout.group_size:
        yield (
            f"rollout.max_concurrent={rollout.max_concurrent}: must be at least rollout.group_size="
            f"{rollout.group_size}, since a group runs in one worker"
        )
    if rollout.temperature == 0:
        yield "rollout.temperature=0.0: must be over 0 in training, since all rollouts of a group would be the same"
    if rollout.top_p != 1 or rollout.top_k != 0:
        yield (
            f"rollout.top_p={rollout.top_p}, rollout.top_k={rollout.top_k}: training needs 1.0 and 0, since the "
            "probabilities of cut-off sampling are not the policy's"
        )
    rollouts = train.tasks_per_step * rollout.group_size
    if train.minibatches > rollouts:
        yield (
            f"train.minibatches={train.minibatches}: at most the {rollouts} rollouts of a step (train.tasks_per_step="
            f"{train.tasks_per_step} x rollout.group_size={rollout.group_size}); set train.minibatches={rollouts} or "
            "fewer, or play more rollouts"
        )
    if train.staleness and train.tis_cap is None and train.old_logprobs is OldLogprobs.TRAINER:
        yield (
            f"train.staleness={train.staleness}: needs train.tis_cap, which is null: what older weights sampled is "
            "corrected by its importance; or set train.old_logprobs=engine, whose ratio corrects it"
        )
    yield from _kl(train, rollouts)
    yield from _bands(train)
    if (train.eval_every > 0 or train.eval_first) and not config.data.valid:
        which = f"eval_every={train.eval_every}" if train.eval_every > 0 else "eval_first=true"
        yield f"train.{which}: needs data.valid, which is empty"
    if not config.rewards:
        yield "rewards: none chosen; training needs at least one, as in rewards=[NAME]"
    elif all(reward.combine is Combine.MULTIPLY for reward in config.rewards.values()):
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


def _kl(train: TrainConfig, rollouts: int) -> Iterator[str]:
    if train.kl_coef == 0:
        if train.kl_in is KlIn.REWARD:
            yield "train.kl_in=reward: needs train.kl_coef over 0, which is 0: there is no KL to take off the rewards"
        if train.kl_target is not None:
            yield f"train.kl_target={train.kl_target:g}: needs train.kl_coef over 0, with which it begins"
    if train.kl_in is KlIn.REWARD and train.kl_estimator not in (None, KlEstimator.K1):
        yield (
            f"train.kl_estimator={train.kl_estimator}: train.kl_in=reward takes k1 alone, since no other estimate has "
            "the gradient of the KL as a reward (k3's nearly cancels); leave the key out, or set train.kl_in=loss"
        )
    if train.kl_coef > 0 and train.kl_in is KlIn.LOSS and train.kl_estimator is KlEstimator.K1:
        yield (
            "train.kl_estimator=k1: in the loss its gradient is that of log pi, whatever the reference is, so nothing "
            "pulls towards it; set k1+, which has the same value and the gradient of the KL, k2 or k3"
        )
    if train.kl_target is not None and train.kl_horizon < rollouts:
        yield f"train.kl_horizon={train.kl_horizon}: must be at least the {rollouts} rollouts of a step"


def _bands(train: TrainConfig) -> Iterator[str]:
    engine = train.old_logprobs is OldLogprobs.ENGINE
    for key in ("token_band", "sequence_band"):
        band = getattr(train, key)
        if band is not None and engine:
            yield f"train.{key}={band}: {RHO_IS_ONE}"
        if band is not None and not (len(band) == 2 and 0 <= band[0] < band[1]):
            yield f"train.{key}={band}: must be two numbers, the lower bound first and at least 0, as [0.5, 5.0]"
    if train.tis_level is TisLevel.SEQUENCE and engine:
        yield f"train.tis_level=sequence: {RHO_IS_ONE}"


def _validation(train: TrainConfig, max_concurrent: int) -> Iterator[str]:
    if train.eval_k > max_concurrent:
        yield f"train.eval_k={train.eval_k}: must be at most rollout.max_concurrent={max_concurrent}"
    if train.eval_k > 1 and train.eval_temperature == 0:
        yield (
            f"train.eval_k={train.eval_k}: needs train.eval_temperature over 0, since all rollouts of a task would be "
            "the same"
        )
    if train.keep_best is not None and not train.eval_every:
        yield f"train.keep_best={train.keep_best}: needs train.eval_every over 0, which says when it is measured"


def _choosing(data: DataConfig) -> Iterator[str]:
    for name, weight in data.weights.items():
        if not 0 <= weight < float("inf"):
            yield f"data.weights.{name}={weight}: must be finite and at least 0"
    if data.weights and not any(weight > 0 for weight in data.weights.values()):
        yield "data.weights: all are 0, so there is nothing to draw"
    if data.columns.difficulty is None:
        by_column = {"curriculum": data.curriculum or None, "min_difficulty": data.min_difficulty}
        for key, value in {**by_column, "max_difficulty": data.max_difficulty}.items():
            if value is not None:
                shown = str(value).lower() if isinstance(value, bool) else value
                yield f"data.{key}={shown}: needs data.columns.difficulty, the column that holds a task's difficulty"
    least, most = data.min_difficulty, data.max_difficulty
    if any(bound is not None and math.isnan(bound) for bound in (least, most)):
        yield f"data.min_difficulty={least}, data.max_difficulty={most}: must be numbers"
    if least is not None and most is not None and least > most:
        yield f"data.min_difficulty={least:g}: must be at most data.max_difficulty={most:g}"


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
        yield f"{numbers}: more than engine.params.max_tokens={held}; raise that, or lower one of the two"
    longest = max_positions(Path(config.model.path))
    if longest is not None and longest < prompt + response:
        yield f"{numbers}: more than the {longest} positions of the model {config.model.path}; lower one of the two"


def max_positions(folder: Path) -> int | None:
    """How many tokens a model's sequences may have; None where its `config.json` does not say."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None  # the check of the model's folder says what is wrong with it
    return found if isinstance(found, int) else None
