"""Prefixes computed once give the log-probabilities, entropies and gradients of every sequence computed alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

import ramet.models.flex
import ramet.models.varlen
from ramet.algorithms.logprobs import Entropy
from ramet.models.attention import COMPILER_OFF
from ramet.models.tiny import tiny_model
from ramet.policy.batching.attention_plan import AttentionPlan, Run, attention_plan
from ramet.policy.batching.gather import gathered
from ramet.policy.batching.packing import MicroBatch, PackedLayout, micro_batch, model_cost
from ramet.policy.batching.rows import Row
from ramet.policy.batching.shared import shared_micro_batch
from ramet.policy.batching.trie import trie
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.models import compile_blocks
from ramet.policy.shared_attention import SharedPass, install_shared_attention, sharing_problems

MakeRows = Callable[..., list[Row]]
COST = model_cost(24, torch.device("cpu"))


def build(architecture: str = "qwen2", **more: object) -> PreTrainedModel:
    return tiny_model(
        architecture,
        vocabulary=256,
        hidden=24,
        intermediate=32,
        layers=2,
        heads=4,
        kv_heads=2,
        attention="sdpa",
        initializer_range=0.3,
        **more,
    )


def fork(row: Row, at: int, own: list[int]) -> Row:
    """A rollout that has the first `at` tokens of the row's response, and then its own."""
    ids = np.concatenate([row.response_ids[:at], own]).astype(np.int32)
    mask = np.concatenate([row.mask[:at], np.ones(len(own), np.bool_)])
    return replace(row, response_ids=ids, mask=mask)


def group(rows: list[Row]) -> list[Row]:
    """The same prompt for all."""
    return [replace(row, prompt_ids=rows[0].prompt_ids) for row in rows]


def arpo_tree(rows: list[Row]) -> list[Row]:
    """Two roots, forks of the first, and forks of a fork."""
    first, second = group(rows[:2])
    one, two = fork(first, 5, [7, 8, 9, 10]), fork(first, 5, [7, 3, 3])
    return [first, second, one, two, fork(one, 7, [1, 2, 3, 4, 5, 6]), fork(second, 3, [11])]


def masked_parent(rows: list[Row]) -> list[Row]:
    """What the rollouts share is of one that is not trained."""
    parent = group(rows)[0]
    return [fork(parent, 6, [1, 2, 3]), fork(parent, 6, [4, 5]), fork(parent, 4, [6, 6, 6, 6])]


def duplicates(rows: list[Row]) -> list[Row]:
    first, second = group(rows[:2])
    return [first, second, replace(first), replace(second, mask=np.ones_like(second.mask))]


def one_token_forks(rows: list[Row]) -> list[Row]:
    """Own tokens of one rollout: none that is fed, one, and a rollout that ends where others go on."""
    first = group(rows)[0]
    ends = [fork(first, len(first.response_ids) - 1, [i]) for i in (1, 2, 3)]
    return [first, *ends, fork(first, 5, [1, 2]), fork(first, 5, [3, 4]), fork(first, 4, [9])]


TREES: dict[str, Callable[[list[Row]], list[Row]]] = {
    "GRPO group": group,
    "ARPO tree": arpo_tree,
    "masked parent": masked_parent,
    "duplicated rollouts": duplicates,
    "one-token forks": one_token_forks,
    "nothing in common": list,
    "one rollout": lambda rows: rows[:1],
    "two groups": lambda rows: [*group(rows[:3]), *arpo_tree(rows[3:])],
}


def results(model: PreTrainedModel, batches: list[MicroBatch]) -> tuple[dict[int, Tensor], Tensor]:
    """Log-probabilities and entropies `[2, T]` by row, and the gradient of a loss that is another in every row."""
    model.zero_grad()
    found: dict[int, Tensor] = {}
    loss = torch.zeros(())
    for batch in batches:
        tokens = LogprobModel(model)(batch, 0.8, Entropy.GRADIENT)
        assert tokens.entropies is not None
        both = torch.stack([tokens.logprobs, tokens.entropies])
        for i, piece in zip(batch.rows, both.split(list(batch.lengths), dim=1), strict=True):
            found[i] = piece.detach()
            weights = torch.linspace(-1, 1 + i, piece.shape[1])
            loss = loss + (piece * weights).sum() + piece.mean().exp()
    loss.backward()
    return found, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_as_alone(model: PreTrainedModel, rows: list[Row], call_pairs: float) -> MicroBatch:
    alone = [micro_batch(rows, [i], PackedLayout.PADDED) for i in range(len(rows))]
    together = shared_micro_batch(rows, list(range(len(rows))), replace(COST, call_pairs=call_pairs))
    expected, expected_gradient = results(model, alone)
    found, gradient = results(model, [together])
    for i, row in enumerate(rows):
        torch.testing.assert_close(found[i], expected[i], rtol=1e-5, atol=1e-5, msg=lambda m, i=i: f"row {i}: {m}")
        assert not found[i][:, ~torch.from_numpy(row.mask)].any()
    assert float((gradient - expected_gradient).norm() / expected_gradient.norm()) < 1e-5
    return together


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("call_pairs", [0, 200, 1e9])
def test_a_tree_is_computed_as_its_rollouts_alone(make_rows: MakeRows, tree: str, call_pairs: float) -> None:
    model = build()
    install_shared_attention(model)
    assert_as_alone(model, TREES[tree](make_rows(6, seed=3)), call_pairs)


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_so_it_is_with_other_models_and_activation_checkpointing(make_rows: MakeRows, architecture: str) -> None:
    model = build(architecture)
    install_shared_attention(model)
    rows = TREES["two groups"](make_rows(6, seed=5))
    assert_as_alone(model, rows, 200)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_as_alone(model.train(), rows, 200)


def test_prefixes_and_predictions_that_rollouts_share_are_computed_once(make_rows: MakeRows) -> None:
    rows = one_token_forks(make_rows(1, seed=3))
    batch = assert_as_alone(_installed(), rows, 200)
    longest = rows[0].n_tokens - 1
    assert batch.n_tokens == batch.input_ids.numel() == longest + 2  # the two forks of two tokens feed one each
    assert len(batch.predict) < len(batch.response) == sum(row.n_trained for row in rows)
    assert batch.predict.unique().numel() < len(batch.predict)  # positions that predict several tokens


def test_passes_without_a_plan_are_what_they_were(make_rows: MakeRows) -> None:
    rows = make_rows(5)
    plain, installed = build(), _installed()
    for layout in PackedLayout:
        batch = micro_batch(rows, list(range(5)), layout)
        (found, gradient), (expected, expected_gradient) = results(installed, [batch]), results(plain, [batch])
        assert all(torch.equal(found[i], expected[i]) for i in expected)
        assert torch.equal(gradient, expected_gradient)


def _installed() -> PreTrainedModel:
    model = build()
    install_shared_attention(model)
    return model


def one_run_after_the_other(query: Tensor, key: Tensor, value: Tensor, *about: Any, **options: Any) -> Tensor:
    """What torch documents of `varlen_attn` for causal windows and keys that are more than queries."""
    starts, path_starts, longest, longest_path = about
    assert starts.dtype == path_starts.dtype == torch.int32 and options["window_size"] == (-1, 0)
    assert (longest, longest_path) == (int(starts.diff().max()), int(path_starts.diff().max()))
    out = []
    for (a, b), (c, d) in zip(pairwise(starts.tolist()), pairwise(path_starts.tolist()), strict=True):
        parts = [x.transpose(0, 1)[None] for x in (query[a:b], key[c:d], value[c:d])]
        mask = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - (b - a))
        mixed = scaled_dot_product_attention(
            *parts, attn_mask=mask, scale=options["scale"], enable_gqa=options["enable_gqa"]
        )
        out.append(mixed[0].transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("tree", TREES)
def test_the_kernel_of_varlen_is_given_runs_and_their_paths(
    make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch, tree: str
) -> None:
    """The kernel itself needs a GPU, so another computes."""
    monkeypatch.setattr(ramet.models.varlen, "_kernel", one_run_after_the_other)
    ramet.models.varlen.register()
    model = build()
    model.config._attn_implementation = ramet.models.varlen.VARLEN
    install_shared_attention(model)
    assert_as_alone(model, TREES[tree](make_rows(6, seed=3)), 0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("tree", TREES)
def test_flexattention_finds_the_same(make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch, tree: str) -> None:
    """torch's own reference, which has gradients on a CPU too once a check is taken away."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    rows = TREES[tree](make_rows(6, seed=3))
    together = shared_micro_batch(rows, list(range(len(rows))), COST)
    (expected, expected_gradient), (found, gradient) = (results(model, [together]) for model in (_installed(), flex()))
    for i in range(len(rows)):
        torch.testing.assert_close(found[i], expected[i], rtol=1e-5, atol=1e-5)
    assert float((gradient - expected_gradient).norm() / expected_gradient.norm()) < 1e-5


def flex() -> PreTrainedModel:
    ramet.models.flex.register()
    model = build()
    model.config._attn_implementation = ramet.models.flex.FLEX
    install_shared_attention(model)
    return model


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("seed", range(8))
def test_backends_agree_over_random_tries(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDPA in calls of several runs, and FlexAttention over the row; [1, heads, S, D] with padding at the end."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    flex(), _installed()
    plan = random_plan(seed)
    length = len(plan.results) + seed % 3
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(1, heads, length, 8, generator=generator, requires_grad=True) for heads in (4, 2, 2)]
    weights = torch.randn(1, length, 4, 8, generator=generator)
    results = []
    for name in ("shared_sdpa", "shared_flex"):
        mixed, _ = ALL_ATTENTION_FUNCTIONS[name](None, *inputs, None, shared=SharedPass(plan), scaling=0.3)
        results.append((mixed.detach(), *torch.autograd.grad((mixed * weights).sum(), inputs)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


def random_plan(seed: int) -> AttentionPlan:
    """Of a trie that is deeper and wider than a block of FlexAttention."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 9, int(rng.integers(1, 300))).astype(np.int32)]
    for _ in range(int(rng.integers(0, 12))):
        parent = sequences[int(rng.integers(len(sequences)))]
        own = rng.integers(0, 9, int(rng.integers(1, 150))).astype(np.int32)
        sequences.append(np.concatenate([parent[: int(rng.integers(0, len(parent) + 1))], own]))
    found = trie(sequences)
    places = zip(found.positions(), found.shared, strict=True)
    runs = [Run(place, len(place) - shared) for place, shared in places if len(place) > shared]
    return attention_plan(runs, call_pairs=float(rng.integers(0, 2000)))


def test_flash_attention_is_called_under_its_own_name_for_passes_without_a_plan(
    make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers loads the kernel of that name, and asks its hub for any that it does not know."""
    seen: list[tuple[str, type[object]]] = []

    def flash(module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: object, **kwargs: Any) -> Any:
        seen.append((module.config._attn_implementation, type(next(module.modules()))))
        mixed = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=kwargs["scaling"], enable_gqa=True
        )
        return mixed.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", flash)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", lambda *_, **__: None)
    plain, model = build(), build()
    model.config._attn_implementation = "flash_attention_2"
    install_shared_attention(model)
    batch = micro_batch(make_rows(1), [0], PackedLayout.PADDED)
    found, expected = (LogprobModel(one)(batch, 1.0, Entropy.NONE).logprobs for one in (model, plain))
    torch.testing.assert_close(found, expected)
    assert seen == [("flash_attention_2", Qwen2Attention)] * 2
    assert model.config._attn_implementation == "shared_flash_attention_2"


def test_gradients_of_shared_keys_are_added_up_in_float32() -> None:
    """In bfloat16 a sum of ones ends at 256."""
    states = torch.zeros(2, 3, dtype=torch.bfloat16, requires_grad=True)
    taken = gathered(states, torch.zeros(1000, dtype=torch.int64))
    taken.sum().backward()
    assert states.grad is not None and states.grad.dtype is torch.bfloat16
    assert states.grad.tolist() == [[1000.0] * 3, [0.0] * 3]


@pytest.mark.parametrize("leaves", [64, 256])
def test_what_many_leaves_read_has_the_gradient_of_float32(leaves: int) -> None:
    """In bfloat16 a sum over 64 of them, one after the other, is wrong by 0.9 %; to round the results alone, 0.17 %."""
    _installed()
    prefix = np.arange(16, dtype=np.int32)
    found = trie([np.concatenate([prefix, np.array([100 + i, 7, 8, 9], np.int32)]) for i in range(leaves)])
    places = zip(found.positions(), found.shared, strict=True)
    plan = attention_plan([Run(place, len(place) - shared) for place, shared in places], call_pairs=1e4)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(1, heads, found.n_tokens, 16, generator=generator).bfloat16() for heads in (4, 2, 2)]
    weights = (torch.randn(1, found.n_tokens, 4, 16, generator=generator) + 1).bfloat16()

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        inputs = [row.to(dtype).requires_grad_() for row in rows]
        attend = ALL_ATTENTION_FUNCTIONS["shared_sdpa"]
        mixed, _ = attend(None, *inputs, None, shared=SharedPass(plan), scaling=0.25)
        keys, values = torch.autograd.grad(mixed, inputs[1:], weights.to(dtype))
        return [x[:, :, : len(prefix)].float() for x in (keys, values)]

    keys, values = zip(gradients(torch.bfloat16), gradients(torch.float32), strict=True)
    assert difference(*keys) < 2.5e-3 and difference(*values) < 2e-3


def test_a_state_that_predicts_many_tokens_has_the_gradient_of_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 32, generator=generator).bfloat16().requires_grad_()
    pieces = (torch.randn(64, 32, generator=generator) + 1).bfloat16()
    gathered(states, torch.zeros(64, dtype=torch.int64)).backward(pieces)
    assert states.grad is not None
    assert difference(states.grad[0], pieces.float().sum(0)) < 2e-3


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def test_masks_are_made_once_for_all_layers_and_kept_by_no_plan(make_rows: MakeRows) -> None:
    batch = shared_micro_batch(arpo_tree(make_rows(2, seed=3)), list(range(6)), replace(COST, call_pairs=1e9))
    assert batch.attention is not None
    shared = SharedPass(batch.attention)
    masks = shared.masks(torch.bfloat16)
    assert [None if one is None else one.dtype for one in masks] == [None, torch.bfloat16]
    assert all(one is again for one, again in zip(masks, shared.masks(torch.bfloat16), strict=True))
    call = batch.attention.calls[1]
    assert call.sizes is not None and call.sizes.shape == (2, call.n_runs)
    seen = call.seen(torch.device("cpu"))
    assert seen is not None and seen.shape == (call.n_runs, 1, call.n_queries, call.n_keys)
    assert torch.equal(masks[1] == 0, seen)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("attention", ["sdpa", "flex"])
def test_compiled_blocks_are_compiled_once_for_all_plans(
    make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    monkeypatch.delenv(COMPILER_OFF, raising=False)  # a test of vLLM's may have set it in this process
    plain, model = (_installed() if attention == "sdpa" else flex() for _ in range(2))
    counter = CompileCounterWithBackend("eager")
    compile_blocks(model, backend=counter)
    frames = []
    for seed in range(3):
        rows = arpo_tree(make_rows(2, seed=seed))
        batch = shared_micro_batch(rows, list(range(len(rows))), COST)
        with torch.no_grad():
            found, expected = (LogprobModel(one)(batch, 0.8, Entropy.NONE).logprobs for one in (model, plain))
        torch.testing.assert_close(found, expected)
        frames.append(counter.frame_count)
    assert 0 < frames[0] == frames[2]


def test_autocast_is_as_close_as_it_is_for_rollouts_alone(make_rows: MakeRows) -> None:
    rows = arpo_tree(make_rows(2, seed=3))
    model = _installed()
    exact, _ = results(model, [micro_batch(rows, [i], PackedLayout.PADDED) for i in range(len(rows))])
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = results(model, [shared_micro_batch(rows, list(range(len(rows))), COST)])
    for i in exact:
        torch.testing.assert_close(found[i], exact[i], rtol=0.05, atol=0.1)


WINDOW = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("architecture", "changed", "problem"),
    [
        ("qwen2", {}, None),
        ("gemma", {}, "not known to be right for models of the type 'gemma'; allowed: llama, qwen2, qwen3"),
        (
            "qwen2",
            {"auto_map": {"AutoModelForCausalLM": "own.Model"}},
            "not known to be right for models with custom code (auto_map in config.json); allowed: models of "
            "transformers",
        ),
        ("qwen2", WINDOW, "the model has layers of the type sliding_attention; allowed: full_attention"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
            "rotary embeddings of the type 'dynamic' are not supported; allowed: those that do not depend on lengths",
        ),
    ],
)
def test_what_a_model_does_not_allow_is_said(
    architecture: str, changed: dict[str, object], problem: str | None
) -> None:
    found = sharing_problems(build(architecture, **changed).config)
    assert found == ([] if problem is None else [problem])
