"""What a request must be like before an engine takes it."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from ramet.engines.protocol import EngineInfo, Request


def check_request(request: Request, info: EngineInfo, under_way: Container[str]) -> None:
    """Raise `ValueError` with everything that is wrong with it. `under_way` holds the ids being served."""
    tokens, sampling = np.frombuffer(request.token_ids, dtype=np.int32), request.sampling
    limit, vocab = info.max_tokens, info.vocab_size
    problems = []
    if request.id in under_way:
        problems.append("its id is under way already")
    if not len(tokens):
        problems.append("it has no tokens")
    elif tokens.min() < 0 or tokens.max() >= vocab:
        problems.append(f"its token ids reach from {tokens.min()} to {tokens.max()}; allowed: 0 to {vocab - 1}")
    if sampling.max_tokens < 1 or len(tokens) + sampling.max_tokens > limit:
        problems.append(
            f"{len(tokens)} prompt tokens and max_tokens={sampling.max_tokens} do not fit: allowed are at least 1 "
            f"sampled token and {limit} tokens in all"
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
