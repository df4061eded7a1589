"""A policy rank's memory, in bytes per device and phase. One function per part; its docstring is its formula.

Letters: P parameters, W policy ranks (of a replica, if there are several), T tokens that a rank computes at once, L
blocks, H hidden, I intermediate, Q = heads * head_dim, K = kv_heads * head_dim, V vocabulary; c bytes of the type
computed in (2 in bfloat16), d of the residual stream. FSDP computes on weights that were gathered in c, so d = c. A
single rank computes bfloat16 under autocast, where d = 4.

Weights, gradients and optimiser state are exact. The rest follows autograd's tensors for transformers' Qwen2, Qwen3 and
Llama blocks, and FSDP2's tensors in flight. `core/tests/planning/test_memory.py` traces both at true shapes: they
differ by at most 5 %. NCCL's buffers and the CUDA context are added by `memory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from ramet.algorithms.logprobs import CHUNK_ELEMENTS
from ramet.config.schema import Attention, Config, Dtype, Offload, SharePrefixes
from ramet.models.attention import chosen_attention
from ramet.planning.model_shape import ModelShape, Shape, adapters, count
from ramet.policy.batching.packing import CPU_TOKENS
from ramet.policy.batching.partition import MOST_KEYS
from ramet.policy.host_memory import chunks, pinned_bytes
from ramet.policy.shared_attention import shared_by_auto

PAGE = 2**21  # bytes, of a GPU's memory that is mapped at once
MASTER = 4  # bytes of weights, gradients and moments that are trained: float32 (policy/models.py)
LOGIT_BYTES = 16  # of one logit in the backward pass: itself, log-probability, and two gradients of it
WEIGHTS, GRADIENTS, OPTIMISER = "weights", "gradients", "optimiser"
FLIGHT, ACTIVATIONS, WORK = "gathered weights", "activations", "working memory"
RESERVED = "reserved and unused"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A model that is trained by some ranks: the policy, or the critic."""

    shape: ModelShape
    config: Config
    ranks: int
    cuda: bool
    head: tuple[Shape, ...] = ()  # that is trained in full in addition to adapters: the critic's
    packed: int | None = None  # T, where it is known
    alone: bool | None = None  # no FSDP and no DeepSpeed, whose weights are in c while computed on; None: with one rank

    @property
    def shards(self) -> int:
        """W: in each of `policy.replicas` the ranks together have all weights."""
        return max(1, self.ranks // self.config.policy.replicas)

    @property
    def computed(self) -> int:
        return 2 if self.config.model.dtype is Dtype.BFLOAT16 else 4

    @property
    def stream(self) -> int:
        return 4 if self.computes_alone else self.computed

    @property
    def computes_alone(self) -> bool:
        return self.ranks == 1 if self.alone is None else self.alone

    @property
    def trained(self) -> tuple[Shape, ...]:
        """Parameters with gradients: all, or LoRA's adapters."""
        rank = self.config.policy.lora_rank
        return (*adapters(self.shape, rank), *self.head) if rank else self.shape.parameters

    @property
    def frozen(self) -> tuple[Shape, ...]:
        """Parameters that LoRA does not change."""
        if not self.config.policy.lora_rank:
            return ()
        return tuple(shape for shape in self.shape.parameters if shape not in self.head)

    @property
    def rows(self) -> int:
        """The most rows that a rank, or those that share sequences, may have in one micro-batch."""
        train = self.config.train
        rows = -(-train.tasks_per_step * self.config.rollout.group_size // train.minibatches)
        return -(-rows // max(1, self.ranks // self.config.policy.sequence_parallel))

    @property
    def tokens(self) -> int:
        """T: a micro-batch takes `policy.max_microbatch_tokens` a rank, or one sequence that is longer, whose tokens
        `policy.sequence_parallel` ranks share. On a CPU larger micro-batches are not made (policy/batching/packing.py).
        """
        if self.packed is not None:
            return self.packed
        policy, most = self.config.policy, longest_sequence(self.config)
        budget = policy.max_microbatch_tokens * policy.sequence_parallel
        budget = budget if self.cuda else min(budget, CPU_TOKENS)
        return -(-max(most, min(budget, self.rows * most)) // policy.sequence_parallel)

    @property
    def attention(self) -> Attention:
        return chosen_attention(self.config.model, "cuda" if self.cuda else "cpu", plain=self.shape.plain)

    @property
    def shares_prefixes(self) -> bool:
        """Whether what a group's rollouts have in common may be computed once (`policy.share_prefixes`)."""
        wanted = self.config.policy.share_prefixes
        shares = wanted is SharePrefixes.ALWAYS
        if wanted is SharePrefixes.AUTO:
            shares = shared_by_auto("cuda" if self.cuda else "cpu", self.attention)
        return shares and self.shape.shares_prefixes

    @property
    def paths(self) -> int:
        """P, where prefixes are computed once, otherwise 0: positions on the paths of all runs of T tokens. Every path
        is a row's, and a token is on at most one path of each rollout of its group. So P is at most rows * longest and
        at most group_size * T, reached by rollouts that differ only at their ends. The batching has its own limit.
        FlexAttention gathers nothing: T.
        """
        policy = self.config.policy
        if not self.shares_prefixes:
            return 0
        if self.attention is Attention.FLEX:
            return self.tokens
        longest = longest_sequence(self.config)
        whole = self.rows * longest // policy.sequence_parallel
        most = max(MOST_KEYS * policy.max_microbatch_tokens, longest // policy.sequence_parallel)
        return max(self.tokens, min(self.config.rollout.group_size * self.tokens, whole, most))


def longest_sequence(config: Config) -> int:
    return config.data.max_prompt_tokens + config.rollout.max_response_tokens


def sharded(shapes: Iterable[Shape], shards: int, size: int) -> int:
    """Bytes on rank 0, which has most: FSDP2 cuts every parameter along its first axis as `torch.chunk` does."""
    return sum(-(-shape[0] // shards) * prod(shape[1:]) * size for shape in shapes)


def state(model: TrainedModel) -> dict[str, int]:
    """Weights 4 P/W, gradients 4 P/W, AdamW's two moments 8 P/W: float32 whatever `model.dtype` is.

    LoRA: 4 bytes a parameter of the adapters for each of the four, and the frozen weights in `model.dtype`.
    """
    trained = sharded(model.trained, model.shards, MASTER)
    return {
        WEIGHTS: trained + sharded(model.frozen, model.shards, model.computed),
        GRADIENTS: trained,
        OPTIMISER: 2 * trained,
    }


def resident(model: TrainedModel) -> dict[str, int]:
    """Bytes held between updates: no gradients (freed after each optimiser step), and no offloaded tensors."""
    offload = model.config.policy.offload
    if offload is Offload.ALL:
        return {}
    held = state(model)
    return {WEIGHTS: held[WEIGHTS]} | ({} if offload is Offload.OPTIMIZER else {OPTIMISER: held[OPTIMISER]})


def reserved(model: TrainedModel, parts: Mapping[str, int]) -> int:
    """Memory of torch's allocator on a GPU in addition to `parts`. Tensors of over 1 MiB take full pages of 2 MiB each.
    5 % of a pass's other memory is lost between pieces of other sizes (an assumption, not measured).
    """
    passing = sum(parts.get(name, 0) for name in (FLIGHT, ACTIVATIONS, WORK))
    sizes = _own_sizes(model, model.trained, MASTER)
    lost = sum(-size % PAGE for size in sizes if size > PAGE // 2)
    kinds = (WEIGHTS in parts) + (GRADIENTS in parts) + 2 * (OPTIMISER in parts)
    return kinds * lost + passing // 20


def host(model: TrainedModel) -> int:
    """Bytes that one rank keeps in host memory: offloaded tensors, and the one copy of weights and optimiser from which
    saves are written.

    With `policy.offload=optimizer`, and for that copy, tensors share pinned chunks (policy/host_memory.py). With `all`
    FSDP pins each weight and each gradient, a block by itself; there the optimiser's state and the copy are not pinned.
    On a CPU nothing is copied for a save that the run waits for.
    """
    offload, trained = model.config.policy.offload, _own_sizes(model, model.trained, MASTER)
    copied = trained + [size for size in trained for _ in range(2)]
    if offload is Offload.ALL:
        weights = trained + _own_sizes(model, model.frozen, model.computed)
        return pinned_bytes(weights) + pinned_bytes(trained) + 2 * sum(trained) + sum(copied)
    moments = copied[len(trained) :] if offload is Offload.OPTIMIZER else []
    if not model.cuda:
        return sum(copied) if model.config.train.async_save else 0
    return pinned_bytes(chunks(moments).sizes) + pinned_bytes(chunks(copied).sizes)


def _own_sizes(model: TrainedModel, shapes: Iterable[Shape], size: int) -> list[int]:
    """Bytes of rank 0's part of each."""
    return [sharded((shape,), model.shards, size) for shape in shapes]


def kept_per_token(model: TrainedModel, longest: int) -> int:
    """Bytes that autograd keeps of one token in one block: (8 + 4d) H of two norms and their input in float32 (d = 2:
    16 H), 2c (Q + K) of queries, keys, values and output, 4 heads of the softmax's normaliser, 4c I of the gated MLP.

    Autocast (d = 4) casts the norms' outputs once for each of the five projections: 16 H + 5c H. Qwen3 normalises
    heads: (4 + d) (Q + K) more. `model.attention=eager` keeps the scores, (4 + 2c) heads a pair of positions.
    """
    s, c, d = model.shape, model.computed, model.stream
    if d == c:
        norms = 2 * (4 + 2 * d) * s.hidden
    else:
        norms = 2 * (4 + d) * s.hidden + 5 * c * s.hidden
    heads = (4 + d) * (s.queries + s.keys) if s.norms else 0
    scores = (4 + 2 * c) * s.heads * longest if model.config.model.attention is Attention.EAGER else 0
    return norms + heads + scores + 2 * c * (s.queries + s.keys) + 4 * s.heads + 4 * c * s.intermediate


def gathered_keys(model: TrainedModel) -> tuple[int, int]:
    """Bytes where prefixes are computed once: additional tensors of a block and of its attention's backward pass.

    Kept: a copy of the output, c Q T, and keys and values of all paths instead of the tokens' own, 2c K (P - T); SDPA
    on CUDA repeats them for all heads, Q instead of K. In the backward pass: gradients of the gathered tensors, and of
    the keys or values once more in float32, 4 K (P + T).
    """
    s, c, tokens, paths = model.shape, model.computed, model.tokens, model.paths
    if not paths:
        return 0, 0
    width = s.queries if model.cuda and _masks(model) else s.keys
    kept = c * s.queries * tokens + 2 * c * (width * paths - s.keys * tokens)
    return kept, 2 * c * width * paths + MASTER * s.keys * (paths + tokens)


def shared_mask(model: TrainedModel) -> int:
    """SDPA's mask where prefixes are computed once, which all blocks share: c for each query and key of a run that has
    a prefix, at most (T - longest) * longest.
    """
    longest = longest_sequence(model.config)
    tokens = model.tokens * model.config.policy.sequence_parallel
    return model.computed * max(0, tokens - longest) * longest if model.paths and _masks(model) else 0


def _masks(model: TrainedModel) -> bool:
    return model.attention not in (Attention.VARLEN, Attention.FLEX)


def activations(model: TrainedModel) -> tuple[int, int]:
    """Bytes kept from forward to backward pass, and those that the current block adds.

    Without checkpointing L blocks keep everything; with it d H of each block's input, and one block is computed again.
    With checkpointing of every k-th block, L // k keep their input; the last block is not one of them, and what it kept
    is free before another is computed again. The last norm keeps (4 + d) H and the head's input d H. The backward pass
    of a block needs one more c I. If an attention with gathered keys needs more in its backward pass, the 4c I of the
    MLP are free by then.
    """
    s, tokens = model.shape, model.tokens
    gathered, summed = gathered_keys(model)
    block = kept_per_token(model, longest_sequence(model.config)) * tokens + gathered
    ends = (4 + 2 * model.stream) * s.hidden * tokens + shared_mask(model)
    mlp = model.computed * s.intermediate * tokens
    work = max(mlp, summed - 4 * mlp)
    every = model.config.policy.checkpoint_every
    checkpointed = s.layers // every if every else 0
    kept = checkpointed * model.stream * s.hidden * tokens + (s.layers - checkpointed) * block + ends
    return kept, block + work if every == 1 else work


def head_work(model: TrainedModel) -> int:
    """The output head's backward pass over one piece of the vocabulary's logits: 16 bytes for each of min(n V, 2^27).

    Only trained positions go through the head (policy/logprob_model.py); n is at most all tokens of a rank.
    """
    rows = max(1, CHUNK_ELEMENTS // model.shape.vocab)
    return LOGIT_BYTES * min(model.tokens, rows) * model.shape.vocab


def phases(model: TrainedModel) -> dict[str, dict[str, int]]:
    """Parts by the phase of an update in which they are held together; the largest is the peak.

    An offloaded optimiser comes with the first optimiser step of an update and is away only in the passes before that.
    With several replicas the sums of gradients wait on the device for the other replicas' sums, also if they are
    offloaded.
    """
    held = state(model)
    if model.config.policy.offload is Offload.ALL:
        held = {GRADIENTS: held[GRADIENTS]} if model.config.policy.replicas > 1 else {}
    train = model.config.train
    waiting = model.config.policy.offload is Offload.OPTIMIZER and train.minibatches * train.epochs == 1
    computing = {name: size for name, size in held.items() if name != OPTIMISER or not waiting}
    kept, block = activations(model)
    flight = _in_flight(model)
    by_phase = {
        "output head": computing | {FLIGHT: flight["head"], ACTIVATIONS: kept, WORK: head_work(model)},
        "block": computing | {FLIGHT: flight["block"], ACTIVATIONS: kept, WORK: block},
        "embedding": computing | {FLIGHT: flight["ends"]},
    }
    if held:
        by_phase["optimiser step"] = held  # fused, or of small models on a CPU a tensor at a time: no copies
    return by_phase


def _in_flight(model: TrainedModel) -> Mapping[str, int]:
    """Weights and gradients that are gathered for a while, of a block B, the head and all outside blocks O.

    FSDP: O stays gathered, c O; a block is c B, the next one arrives, c B; a block's gradient is c B, and 4 B while it
    is added up over ranks; the head's gradient waits for the embedding's, c; at the end O is freed and its gradients
    are added up, (c + 4) O, to the previous pass's, 4 O/W; or the last block's sum is still there, 4 B. One rank in
    bfloat16: autocast's copies of all linear layers and of the head, 2 bytes each, and the head's gradient. LoRA has no
    gradients here worth counting, and frozen weights need no copy.
    """
    s, c = model.shape, model.computed
    block, outside, head = count(s.block), count(s.outside), s.vocab * s.hidden
    lora = bool(model.config.policy.lora_rank)
    grads = 0 if lora else 1
    if model.computes_alone:
        copies = 0 if c == 4 or lora else c * (s.layers * sum(a * b for a, b in s.linear) + head)
        return {"head": copies + grads * c * head, "block": copies, "ends": copies}
    gathered = c * outside
    return {
        "head": gathered + c * block + grads * c * head,
        "block": gathered + 2 * c * block + grads * (c * head + (c + MASTER) * block),
        "ends": grads * ((c + MASTER) * outside + MASTER * max(block, outside // model.shards)),
    }
