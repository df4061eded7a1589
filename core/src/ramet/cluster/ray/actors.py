"""The actors, which are the workers' processes. They are thin: each has a part of the in-process backend."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import ray
from ray import ObjectRef

from ramet.cluster.counts import Counts
from ramet.cluster.local import LocalRollouts
from ramet.cluster.ray.actor_base import (
    SAVE,
    Actor,
    PolicySetup,
    RolloutSetup,
    in_group,
    node_address,
    two_results,
    use_node_interface,
)
from ramet.cluster.ray.played_groups import LearnedPart, PartGroup, PartToLearn, PlayedGroups, fetched, piece
from ramet.cluster.ray.weight_senders import Broadcaster, stream
from ramet.cluster.ray.weights import Bucket, buckets, tensors
from ramet.cluster.ray.worker import ALLOCATOR, WorkerLost
from ramet.components.build import Components, needs_rewards, start_rewards
from ramet.components.engines import loads_weights
from ramet.engines.protocol import EngineInfo, MayFail, Sleeper
from ramet.engines.vllm import VllmEngine
from ramet.errors import InfraError
from ramet.models.loading import build_encoder, resolve_device
from ramet.models.torch_setup import set_up_torch
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.distributed.ranks import join_ranks
from ramet.policy.rank import PolicyRank
from ramet.rollout.metrics import CountedGroup, counted
from ramet.rollout.plan import RolloutRequest
from ramet.runs.hub_inputs import on_this_node
from ramet.types import Group, RolloutScore


class RolloutActor(Actor):
    """One engine and its scheduler, in one event loop."""

    async def start(self) -> EngineInfo:
        setup: RolloutSetup = self._read_setup()
        model = await asyncio.to_thread(on_this_node, setup.config.model, weights=loads_weights(setup.config))
        setup = replace(setup, config=replace(setup.config, model=model))
        gc.freeze()  # as `heap_at_rest`, for as long as this process lives
        use_node_interface()  # vLLM's processes inherit it
        set_up_torch(setup.config.run)
        self.components = components = Components(setup.config)
        self.scorer = components.scorer if setup.branching and needs_rewards(components.branch_policy) else None
        try:
            if self.scorer is not None:
                await start_rewards(self.scorer.rewards, setup.services)
            self.rollouts = await LocalRollouts.open(
                setup.config,
                build_encoder(setup.config),
                components=components,
                services=setup.services,
                branching=setup.branching,
                expected=setup.tool_sets,
            )
        except BaseException:
            if self.scorer is not None:
                await self.scorer.aclose()
            raise
        self.played = PlayedGroups()
        self.first_tokens = setup.config.rollout.first_tokens
        self._progress = self.rollouts.progress
        return self.rollouts.info

    async def run_groups(self, request: RolloutRequest) -> list[Group]:
        groups = await self.rollouts.run(request)
        self._check_engine(groups)
        if request.ticket is not None:
            self.played.keep(request.ticket, groups)
        return groups

    @two_results
    async def run_counted_groups(self, request: RolloutRequest) -> tuple[list[CountedGroup], Any]:
        """Return the groups without tokens, and complete in the object store, where they outlive this process."""
        groups = await self.run_groups(request)
        return [counted(group, self.first_tokens) for group in groups], groups

    async def score_groups(self, ticket: int, n: int) -> list[dict[str, RolloutScore]]:
        """Return the scores of all rollouts of each group, with rewards that need no start (`may_move`)."""
        self.scorer = self.components.scorer
        return await self.played.score(ticket, n, self.scorer)

    @in_group(SAVE)
    def learn_groups(self, groups: Sequence[PartToLearn]) -> LearnedPart:
        return self.played.learn(self.components.advantage, groups)

    @in_group(SAVE)
    def write_part(self, path: Path, parts: Sequence[PartGroup]) -> Path | None:
        return self.played.write(path, parts)

    @in_group(SAVE)
    def part_piece(self, path: Path, offset: int) -> bytes:
        return piece(path, offset)

    def _check_engine(self, groups: Sequence[Group]) -> None:
        """Raise `WorkerLost` if the engine failed for good and rollouts are masked. Otherwise this worker, always idle,
        would get one group after the other, and mask them all.
        """
        if any(rollout.fault is not None for group in groups for rollout in group.rollouts):
            self._check_failure()

    def _check_failure(self) -> None:
        engine = self.rollouts.engine
        failure = engine.failure if isinstance(engine, MayFail) else None
        if failure is not None:
            raise WorkerLost(f"the rollout worker with pid {os.getpid()} on node {node_address()} is lost: {failure}")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Call `_check_failure` if the block raises `InfraError`: the engine may have died since its last rollout."""
        try:
            yield
        except InfraError:
            self._check_failure()
            raise

    async def update_weights(self, weights: list[ObjectRef[Bucket]], version: int) -> int:
        """Returns the version that the engine reports afterwards."""
        named_tensors = tensors(await asyncio.gather(*weights))
        with self._failing():
            await self.rollouts.update_weights(named_tensors, version)
        return self.rollouts.engine.policy_version

    async def connect_weights(self, source: Mapping[str, Any]) -> None:
        """Join a broadcast of weights (`weight_transfer.TransferSource`)."""
        with self._failing():
            await self._vllm.connect_weights(source)

    async def begin_update(self, version: int) -> None:
        """`receive_chunk` and `finish_update` follow. An update that begins meanwhile waits for them."""
        self.rollouts.expect(version)
        with self._failing():
            await self._vllm.begin_update()

    async def receive_chunk(self, info: Mapping[str, Any]) -> None:
        """Received when it returns (`weight_transfer.Arriving`)."""
        with self._failing():
            await self._vllm.receive_chunk(info)

    async def finish_update(self, version: int) -> int:
        """Returns the version that the engine reports afterwards."""
        with self._failing():
            await self._vllm.finish_update(version)
        return self.rollouts.engine.policy_version

    @property
    def _vllm(self) -> VllmEngine:
        engine = self.rollouts.engine
        assert isinstance(engine, VllmEngine), "engine.params.transfer is an option of the engine vllm"
        return engine

    async def counts(self) -> Counts:
        return self.rollouts.take_counts()

    async def sleep(self) -> bool:
        """Put the engine to sleep; False: it cannot."""
        if not isinstance(self.rollouts.engine, Sleeper):
            return False
        with self._failing():
            await self.rollouts.engine.sleep()
        return True

    async def wake_weights(self) -> None:
        """Make room for weights; `update_weights` must follow."""
        if isinstance(self.rollouts.engine, Sleeper):
            with self._failing():
                await self.rollouts.engine.wake_weights()

    async def wake(self) -> None:
        if isinstance(self.rollouts.engine, Sleeper):
            with self._failing():
                await self.rollouts.engine.wake()

    async def close(self) -> None:
        try:
            await self.rollouts.close()
        finally:
            if self.scorer is not None:
                await self.scorer.aclose()


class PolicyActor(Actor, PolicyRank):
    """One rank of the policy, and of the critic if there is one. It is a `PolicyRank` from `start` on."""

    # Micro-batches differ in length: in fixed segments of memory each leaves pieces that the next cannot use.
    ENVIRONMENT: ClassVar[Mapping[str, str]] = {ALLOCATOR: "expandable_segments:True"}

    def rendezvous(self) -> str:
        """An address for torch's rendezvous of all ranks, if this is the first: a port that is free now."""
        with socket.socket() as listener:
            listener.bind(("", 0))
            return f"tcp://{node_address()}:{listener.getsockname()[1]}"

    def take_rank(self, rank: int) -> None:
        """Take the rank, which is known when all have started."""
        self.rank = rank

    def start(self, address: str | None) -> None:
        """`address` is the rendezvous; None if there is one rank. After `take_rank`."""
        setup: PolicySetup = self._read_setup()
        teacher = None if setup.spec.teacher is None else on_this_node(setup.spec.teacher)
        spec = replace(setup.spec, model=on_this_node(setup.spec.model), teacher=teacher)
        critic = None if setup.critic is None else replace(setup.critic, model=on_this_node(setup.critic.model))
        use_node_interface()
        set_up_torch(setup.run)
        if address is not None:
            join_ranks(rank=self.rank, world_size=setup.world_size, address=address, timeout_s=setup.timeout_s)
        PolicyRank.__init__(self, spec, critic, rank=self.rank, world_size=setup.world_size)
        self._progress = lambda: self.progress

    def fetch(self, parts: Sequence[ObjectRef[list[TrainBatch]]], kl_coef: float) -> None:
        """Take a step's rows from the object store. Raises `PartLost`."""
        self.take(itertools.chain.from_iterable(fetched(parts)), kl_coef)

    def put_weights(self) -> list[ObjectRef[Bucket]]:
        """Put into the object store by the first rank; the others of its replica help to gather them. All but the first
        return nothing.
        """
        if self.layout.replica:
            return []
        weights = self.engine_weights()
        if self.rank == 0:
            return [ray.put(bucket) for bucket in buckets(weights)]
        for _ in weights:
            pass
        return []

    def open_weights(self, writers: frozenset[int]) -> None:
        """Begin to stream the weights; the ranks `writers` send their engines the places of chunks. A replica without
        any of them gathers nothing.
        """
        layout = self.layout
        self._stream: Iterator[dict[str, Any]] = iter(())
        if layout.replica not in map(layout.replica_of, writers):
            return
        device, shapes = resolve_device(self.spec.model), self.engine_shapes()
        largest = max(math.prod(shape) * dtype.itemsize for _, dtype, shape in shapes)
        weights = self.engine_weights()
        self._stream = stream(weights, writes=self.rank in writers, device=device, largest=largest)

    def next_weights(self) -> dict[str, Any] | None:
        """The next chunk (`weight_transfer.Arriving`), which stays where it is until the next is asked for. None: all
        were given.
        """
        return next(self._stream, None)

    def connect_engines(self, options: Mapping[str, Any]) -> None:
        """Wait for the workers of all engines, if this is the first rank."""
        if self.rank == 0:
            self._broadcaster = Broadcaster(options, resolve_device(self.spec.model))

    def weight_shapes(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Names, types and shapes of the broadcast tensors."""
        return [(name, str(dtype).removeprefix("torch."), shape) for name, dtype, shape in self.engine_shapes()]

    def broadcast_weights(self) -> None:
        """Broadcast to the workers of all engines, by the first rank; others of its replica help to gather."""
        if self.layout.replica:
            return
        weights = self.engine_weights()
        if self.rank == 0:
            self._broadcaster.send(weights)
        for _ in weights:
            pass

    @in_group(SAVE)
    def write_staged(self, folder: Path) -> None:
        super().write_staged(folder)

    @in_group(SAVE)
    def verify(self, folder: Path) -> list[str]:
        return super().verify(folder)
