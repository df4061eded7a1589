"""The teacher (`train.teacher`): a frozen model that scores what the policy sampled, token id by token id.

Its log-probabilities are computed as the policy's are, in the same micro-batches. So it must have the policy's
vocabulary and its architecture; layers and sizes may differ.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ramet.config.checks import max_positions
from ramet.config.schema import Config, ModelConfig
from ramet.errors import MissingHere
from ramet.models.attention import is_plain
from ramet.models.check import check_model, has_tokenizer, read_config
from ramet.models.folder import check_folder
from ramet.models.loading import load_tokenizer

KEY = "train.teacher"


def teacher_config(config: Config) -> ModelConfig | None:
    """Return the teacher's folder with the settings of `model`; None without a teacher."""
    if config.train.teacher is None:
        return None
    return replace(config.model, path=config.train.teacher, tokenizer=None, chat_template=None, chat_template_kwargs={})


def check_teacher(config: Config) -> list[str]:
    """Problems of the teacher, by itself and with the policy. Loads no weights."""
    teacher = teacher_config(config)
    if teacher is None:
        return []
    if problems := [_of_teacher(problem) for problem in check_model(teacher)]:
        return problems
    if check_folder(config.model) or not has_tokenizer(config.model):
        return []  # the check of the policy's model reports it
    return [f"{KEY}={teacher.path}: {problem}" for problem in _differences(config, teacher)]


def _of_teacher(problem: str) -> str:
    """Name the key under which the teacher's folder is given."""
    text = f"{KEY}: {problem.removeprefix('model.path: ')}"
    if isinstance(problem, MissingHere):
        return MissingHere(text, missing=problem.missing, unchecked=problem.unchecked)
    return text


def _differences(config: Config, teacher: ModelConfig) -> list[str]:
    """Return what keeps the teacher from scoring the policy's tokens, each as the end of a sentence."""
    own, other = read_config(config.model), read_config(teacher)
    problems = []
    if own is not None and other is not None:
        kinds = [(described.model_type, is_plain(described)) for described in (own, other)]
        if kinds[0] != kinds[1]:
            names = [f"{kind}{'' if plain else ' with special attention'}" for kind, plain in kinds]
            problems.append(f"a model of the type {names[1]}, and the policy is of the type {names[0]}; must be equal")
    policy_ids, teacher_ids = (load_tokenizer(model).get_vocab() for model in (config.model, teacher))
    if policy_ids != teacher_ids:
        differing = {token for token, _ in policy_ids.items() ^ teacher_ids.items()}
        problems.append(
            f"another vocabulary than the policy's: {len(differing)} tokens differ, as {min(differing)!r}. The teacher "
            "scores the policy's token ids, so both must have the same tokenizer"
        )
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    positions = max_positions(Path(teacher.path))
    if positions is not None and positions < longest:
        problems.append(f"has {positions} positions; data.max_prompt_tokens + rollout.max_response_tokens is {longest}")
    return problems
