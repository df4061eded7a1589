"""Checks of an engine before it takes a request or new weights."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
from torch import Tensor, nn

from ramet.engines.protocol import EngineInfo, Request


def check_request(request: Request, info: EngineInfo, running: Container[str]) -> None:
    """Raise `ValueError` with all of its problems. `running`: the ids being served."""
    tokens, sampling = np.frombuffer(request.token_ids, dtype=np.int32), request.sampling
    limit, vocab = info.max_tokens, info.vocab_size
    problems = []
    if request.id in running:
        problems.append("its id is running already")
    if not len(tokens):
        problems.append("it has no tokens")
    elif tokens.min() < 0 or tokens.max() >= vocab:
        problems.append(f"its token ids reach from {tokens.min()} to {tokens.max()}; allowed: 0 to {vocab - 1}")
    if sampling.max_tokens < 1 or len(tokens) + sampling.max_tokens > limit:
        problems.append(
            f"{len(tokens)} prompt tokens and max_tokens={sampling.max_tokens} do not fit: allowed are at least 1 "
            f"sampled token and {limit} tokens in all"
        )
    if not 0 <= sampling.min_p <= 1 or not sampling.repetition_penalty > 0:
        problems.append(
            f"min_p={sampling.min_p}, repetition_penalty={sampling.repetition_penalty}; allowed: 0 <= min_p <= 1, "
            "repetition_penalty > 0"
        )
    if not sampling.temperature >= 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        problems.append(
            f"temperature={sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k}; allowed: "
            "temperature >= 0, 0 < top_p <= 1, top_k >= 0"
        )
    if "" in sampling.stop:
        problems.append("a stop string is empty")
    if request.first_tokens < 1:
        problems.append(f"first_tokens={request.first_tokens}; allowed: at least 1")
    if problems:
        raise ValueError(f"request {request.id!r} cannot be served: {'; '.join(problems)}")


def check_weights(model: nn.Module, weights: Sequence[tuple[str, Tensor]]) -> None:
    """Raise `ValueError` for unknown names, wrong shapes and missing parameters. `model` may be on the meta device.

    A parameter with several names (a tied output head) needs to be given by one of them.
    """
    targets = model.state_dict(keep_vars=True)
    problems = [problem for name, new in weights if (problem := _problem(name, new, targets.get(name)))]
    covered = {id(targets[name]) for name, _ in weights if name in targets}
    problems += [f"{name} is missing" for name, old in targets.items() if id(old) not in covered]
    if problems:
        raise ValueError(f"weights do not fit the model: {'; '.join(problems[:5])} ({len(problems)} problems in all)")


def _problem(name: str, new: Tensor, old: Tensor | None) -> str | None:
    if old is None:
        return f"{name} is not a parameter of it"
    if old.shape != new.shape:
        return f"{name} has the shape {tuple(new.shape)} instead of {tuple(old.shape)}"
    return None
