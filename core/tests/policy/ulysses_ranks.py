"""Tasks for the ranks of `test_ulysses.py`: what they compute together is compared with what each computes alone."""

from __future__ import annotations

from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from ramet.models.tiny import tiny_model
from ramet.policy.distributed.ulysses import install_ulysses, join_values, ulysses_states
from ramet.policy.models import compile_blocks

Difference: TypeAlias = tuple[float, float]
LENGTHS = (7, 4, 6, 2)  # 19 tokens: a packed row needs padding for two ranks, and so do padded ones of 7
WINDOW = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}


def build(
    architecture: str, heads: int = 4, key_heads: int = 2, attention: str = "sdpa", **more: object
) -> PreTrainedModel:
    return tiny_model(
        architecture,
        vocabulary=64,
        hidden=24,
        intermediate=32,
        layers=2,
        heads=heads,
        kv_heads=key_heads,
        attention=attention,
        initializer_range=0.3,
        tie_word_embeddings=False,
        **more,
    )


def layout(packed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and positions `[B, S]`, and the positions in `[B * S]` that are not padding."""
    ids = torch.randint(0, 64, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(1))
    if packed:
        return ids, torch.cat([torch.arange(n) for n in LENGTHS])[None], torch.arange(ids.numel())
    width = max(LENGTHS)
    real = torch.arange(width)[None] < torch.tensor(LENGTHS)[:, None]
    rows = torch.zeros(len(LENGTHS), width, dtype=torch.int64).masked_scatter(real, ids)
    return rows, torch.arange(width).repeat(len(LENGTHS), 1), real.flatten().nonzero().squeeze(1)


def logprobs_of(model: PreTrainedModel, states: Tensor) -> Tensor:
    return model.get_output_embeddings()(states).log_softmax(-1)[:, 0]


def loss_of(logprobs: Tensor) -> Tensor:
    """Not linear in any position's log-probability, as sequence-level losses are not."""
    return logprobs.mean().exp() + (logprobs * torch.linspace(0, 1, len(logprobs))).sum().div(100).tanh()


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def compare(model: PreTrainedModel, packed: bool, predict: Tensor | None = None, backend: str = "") -> Difference:
    """The largest differences of log-probabilities, and of gradients relative to their size."""
    ids, positions, real = layout(packed)
    predict = real if predict is None else predict
    states = model.base_model(input_ids=ids, position_ids=positions, use_cache=False)[0].flatten(0, 1)[predict]
    alone = logprobs_of(model, states)
    loss_of(alone).backward()
    expected = gradients(model)
    model.zero_grad()
    install_ulysses(model, dist.group.WORLD)
    if backend:
        compile_blocks(model, backend)
    states, own = ulysses_states(model, ids, positions, predict, dist.group.WORLD)
    together = join_values(logprobs_of(model, states), own, len(predict), dist.group.WORLD)
    loss_of(together).backward()
    found = gradients(model)
    for gradient in found.values():
        dist.all_reduce(gradient)
    floor = 1e-3 * max(float(gradient.abs().max()) for gradient in expected.values())
    off = [float((expected[n] - found[n]).abs().max()) / max(float(expected[n].abs().max()), floor) for n in expected]
    return float((alone - together).detach().abs().max()), max(off)


def models(architecture: str, packed: bool) -> dict[str, Difference]:
    """By numbers of query and key heads: fewer key heads than ranks, as many, more, and no multiple."""
    cases = [(4, 1), (4, 2), (4, 4), (6, 3)]
    return {f"{heads}/{keys}": compare(build(architecture, heads, keys), packed) for heads, keys in cases}


def ways() -> dict[str, Difference]:
    """Everything else that may change a sequence's attention."""
    out = {}
    for packed in (True, False):
        name = "packed" if packed else "padded"
        out[f"eager {name}"] = compare(build("qwen3", attention="eager"), packed)
        out[f"window {name}"] = compare(build("qwen2", **WINDOW), packed)
        checkpointing = build("qwen3").train()
        checkpointing.gradient_checkpointing_enable({"use_reentrant": False})
        out[f"checkpointing {name}"] = compare(checkpointing, packed)
    out["compiled"] = compare(build("qwen2"), True, backend="eager")
    out["first rank predicts nothing"] = compare(build("llama"), True, predict=torch.tensor([17, 12, 18]))
    return out


def leaks() -> float:
    """How far a packed sequence's log-probabilities move when the sequence before it is another one."""
    model = build("qwen2")
    install_ulysses(model, dist.group.WORLD)
    ids, positions, _ = layout(packed=True)
    predict = torch.arange(LENGTHS[0], sum(LENGTHS))
    found = []
    with torch.no_grad():
        for shift in (0, 1):
            ids[0, : LENGTHS[0]] = (ids[0, : LENGTHS[0]] + shift) % 64
            states, own = ulysses_states(model, ids, positions, predict, dist.group.WORLD)
            found.append(join_values(logprobs_of(model, states), own, len(predict), dist.group.WORLD))
    return float((found[0] - found[1]).abs().max())


def plain_call() -> str:
    model = build("llama")
    install_ulysses(model, dist.group.WORLD)
    try:
        model(input_ids=torch.arange(4)[None], use_cache=False)
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"
