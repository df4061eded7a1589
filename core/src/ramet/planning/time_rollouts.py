"""Seconds in which one engine makes its rollouts, by following them in rounds of some tokens each.

    a decode step = max(weights / B, 2 W n / C) + keys and values of n contexts / B + 128 n V / B + launches

n sequences are decoded at once; B are the device's bytes/s and C its FLOP/s, with the shares that a plan counts on, W
the weights of all linear layers, V the vocabulary. `tensor_parallel` devices share all of it, and exchange twice a
block. A prompt, a tool's result and what was computed before take 2 W / C a token. As in vLLM, sequences are admitted
while their tokens fit into the cache; where the others' growth leaves no room, the latest is dropped, and computed
again when there is room. A rollout that waits for a tool has a place of `rollout.max_concurrent` and none in the
engine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramet.config.schema import Config
from ramet.engines.config import TorchEngineConfig
from ramet.planning.drawn import Drawn
from ramet.planning.gpus import BANDWIDTH, COMPUTE, EXCHANGE, Gpu
from ramet.planning.memory import MemoryPlan
from ramet.planning.model_shape import ModelShape
from ramet.planning.time_update import linear_weights

WEIGHTS, COMPUTED, KEYS, SAMPLER, OVERHEAD = "weights", "matrix products", "keys and values", "sampler", "launches"
PREFILL, AGAIN, TOOLS = "prompts and results", "dropped and computed again", "waits for tools"
LOGIT_TRAFFIC = 128  # bytes read and written of each logit by sampler and recorder (the audit: 1.5 ms at 256 x 152,064)
LAUNCH_S = 1e-3  # of a step of vLLM that is hidden behind nothing: an assumption
EXCHANGE_S = 2e-5  # of one exchange of `tensor_parallel` devices, in addition to its bytes: an assumption
SEEDS_S = 2.2e-3  # of a step with engine.params.seeds (measured, 256 requests; docs/hardware.md)
TORCH_BLOCK_S = 6.4e-4  # of a step and block of the engine `torch`, in Python (measured: 28 blocks, 64 slots, 18 ms)
ROUNDS = 64  # about, in which the longest rollout is followed
OFTEN = 0.3  # share of the rounds in which a limit held rollouts back, from which on it is named
CACHE, SLOTS, PLACES, CALLS = "the cache", "engine.params.slots", "rollout.max_concurrent", "places of tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTime:
    """Seconds of one engine by what they are spent on, and how many rollouts were decoded at once."""

    parts: Mapping[str, float]
    at_once: float  # in the mean, while any was
    limit: str  # what often held others back; empty: nothing
    dropped: int  # times that a sequence lost its place in the cache

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def largest(self) -> list[tuple[str, float]]:
        """Parts and their seconds, the largest first."""
        return sorted(self.parts.items(), key=lambda part: -part[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speed:
    """Seconds of an engine's step, by part."""

    gpu: Gpu
    shape: ModelShape
    plan: MemoryPlan

    def step(self, sequences: float, context: float) -> dict[str, float]:
        """Seconds of a decode step of so many sequences, which together have `context` tokens."""
        assert self.plan.engine is not None
        config, width = self.plan.inputs.config, self.plan.placement.tensor_parallel
        rate = self.gpu.bandwidth * BANDWIDTH
        weights, computed = linear_weights(self.shape) * self._size / width / rate, sequences * self.token_s
        fixed = LAUNCH_S + SEEDS_S * bool(getattr(config.engine.params, "seeds", False))
        if isinstance(config.engine.params, TorchEngineConfig):
            fixed = TORCH_BLOCK_S * self.shape.layers
        return {
            WEIGHTS if weights > computed else COMPUTED: max(weights, computed),
            KEYS: context * self.plan.engine.token_bytes / rate,
            SAMPLER: sequences * self.shape.vocab * LOGIT_TRAFFIC / width / rate,
            OVERHEAD: fixed + 2 * self.shape.layers * self._exchange_s(sequences, width),
        }

    def _exchange_s(self, sequences: float, width: int) -> float:
        """Seconds in which `width` devices add up what each has of a block's output."""
        sent = 2 * (1 - 1 / width) * sequences * self.shape.hidden * self._size
        return EXCHANGE_S * (width > 1) + sent / (self.gpu.link * EXCHANGE)

    @property
    def token_s(self) -> float:
        """Seconds to compute one token where many are computed together."""
        return 2 * linear_weights(self.shape) / self.plan.placement.tensor_parallel / (self.gpu.flops * COMPUTE)

    @property
    def _size(self) -> int:
        return 2 if self.plan.inputs.config.model.dtype == "bfloat16" else 4


def rollout_time(plan: MemoryPlan, drawn: Drawn, gpu: Gpu, tool_s: float) -> RolloutTime:
    """Follow the engine that has most to sample; groups go to engines in turn."""
    assert plan.engine is not None
    engines, size = plan.placement.engines, drawn.group_size
    by_group = drawn.sampled.reshape(-1, size).sum(axis=1)
    most = int(np.argmax([by_group[first::engines].sum() for first in range(engines)]))
    groups = np.arange(len(by_group))[most::engines]
    own = (groups[:, None] * size + np.arange(size)).ravel()
    return _Playing(plan, drawn, own, _Speed(gpu=gpu, shape=plan.inputs.shape, plan=plan), tool_s).to_the_end()


class _Playing:
    """R rollouts of one engine. Arrays are `[R]`, in the order in which they may begin."""

    def __init__(self, plan: MemoryPlan, drawn: Drawn, own: NDArray[np.int64], speed: _Speed, tool_s: float) -> None:
        assert plan.engine is not None
        config = plan.inputs.config
        own = own[np.argsort(drawn.parents[own] >= 0, kind="stable")]  # roots first
        place = {int(index): i for i, index in enumerate(own)}
        self._speed, self._tool_s, self._result = speed, tool_s, drawn.result
        self._cache = plan.engine.cache // plan.engine.token_bytes
        self._slots, self._places = getattr(config.engine.params, "slots", len(own)), config.rollout.max_concurrent
        self._tools_free = [0.0] * _tool_places(config)  # when each place is
        self._sampled, self._forks = drawn.sampled[own], drawn.forks[own]
        self._parents = np.array([place.get(parent, -1) for parent in drawn.parents[own].tolist()])
        self._turns = np.minimum(1 + drawn.inserted[own] // drawn.result, self._sampled)
        firsts = np.unique(own // drawn.group_size, return_index=True)[1]  # of each group
        self._context = drawn.prompt + self._forks
        self._held, self._missing, self._again = np.zeros((3, len(own)), np.int64)
        self._held[firsts] = self._missing[firsts] = drawn.prompt  # in the cache for it only; to be computed before
        self._done, self._turn = np.zeros((2, len(own)), np.int64)  # sampled tokens, and calls
        self._ready = np.zeros(len(own))  # when it may be decoded
        self._running, self._open, self._over = np.zeros((3, len(own)), bool)
        self._round = max(1, int(self._sampled.max()) // ROUNDS)
        self._clock, self._decoding_s, self._sequence_s = 0.0, 0.0, 0.0
        self._dropped, self._rounds = 0, 0
        self._parts: dict[str, float] = defaultdict(float)
        self._held_back: Counter[str] = Counter()

    def to_the_end(self) -> RolloutTime:
        while not self._over.all():
            self._drop()
            self._admit()
            if self._running.any():
                self._decode()
            else:  # all that have begun wait for tools
                self._pass(TOOLS, float(self._ready[self._open].min()) - self._clock)
        often = {name for name, rounds in self._held_back.items() if rounds > OFTEN * self._rounds}
        return RolloutTime(
            parts=self._parts,
            at_once=self._sequence_s / self._decoding_s,
            limit=max(often, key=lambda name: self._held_back[name], default=""),
            dropped=self._dropped,
        )

    def _pass(self, part: str, seconds: float) -> None:
        self._parts[part] += seconds
        self._clock += seconds

    def _drop(self) -> None:
        """Drop the latest sequences that do not fit any more; the earliest stays."""
        index = np.flatnonzero(self._running)
        lost = index[1:][np.cumsum(self._held[index] + self._round)[1:] > self._cache]
        self._running[lost] = False
        self._again[lost] = self._held[lost]
        self._dropped += len(lost)

    def _admit(self) -> None:
        """Admit sequences in their order, as many as fit, and compute what they miss."""
        produced = self._done + self._turn * self._result
        begun = (self._parents < 0) | (produced[self._parents] >= self._forks)
        waiting = np.flatnonzero(begun & ~self._open & ~self._over)
        places = max(0, self._places - int(self._open.sum()))
        self._open[waiting[:places]] = True
        index = np.flatnonzero(self._open & ~self._running & (self._ready <= self._clock))
        free = self._cache - int((self._held + self._round)[self._running].sum())
        fits = np.cumsum(self._held[index] + self._round) <= free
        if not self._running.any():
            fits[:1] = True
        slots = max(0, self._slots - int(self._running.sum()))
        self._rounds += 1
        self._held_back[SLOTS] += len(index) > slots and bool(fits[:slots].all())
        self._held_back[CACHE] += not fits[:slots].all()
        self._held_back[PLACES] += len(waiting) > places
        self._held_back[CALLS] += bool((self._ready[self._open] > self._clock + self._tool_s).any())
        admitted = index[fits][:slots]
        self._running[admitted] = True
        self._pass(PREFILL, float(self._missing[admitted].sum()) * self._speed.token_s)
        self._pass(AGAIN, float(self._again[admitted].sum()) * self._speed.token_s)
        self._missing[admitted] = self._again[admitted] = 0

    def _decode(self) -> None:
        """Decode every running sequence by a round, at most to the end of its turn."""
        index = np.flatnonzero(self._running)
        end = -(-self._sampled[index] * (self._turn[index] + 1) // self._turns[index])
        tokens = np.minimum(self._round, end - self._done[index])
        steps, sequences = int(tokens.max()), float(tokens.sum() / tokens.max())
        before = self._clock
        for part, seconds in self._speed.step(sequences, float((self._context[index] * tokens).sum() / steps)).items():
            self._pass(part, steps * seconds)
        self._decoding_s += self._clock - before
        self._sequence_s += sequences * (self._clock - before)
        for array in (self._done, self._context, self._held):
            array[index] += tokens
        for i in index[self._done[index] == end]:
            self._end_turn(int(i))

    def _end_turn(self, i: int) -> None:
        """Call a tool, of which there are so many places, or end."""
        self._running[i] = False
        self._turn[i] += 1
        if self._turn[i] == self._turns[i]:
            self._open[i], self._over[i] = False, True
            return
        first = self._tools_free.index(min(self._tools_free))
        self._ready[i] = self._tools_free[first] = max(self._clock, self._tools_free[first]) + self._tool_s
        for array in (self._missing, self._context, self._held):
            array[i] += self._result


def _tool_places(config: Config) -> int:
    """Calls at the same time in one rollout worker, of the tool that has fewest."""
    places = [min(tool.concurrency, getattr(tool.params, "slots", tool.concurrency)) for tool in config.tools.values()]
    return min(places, default=1)
