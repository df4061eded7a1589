"""A tiny model on disk, worker specs, rows and scored groups."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.schema import ModelConfig, PolicyConfig, TrainConfig
from ramet.models.tiny import make_tiny_model
from ramet.policy.batching.rows import Row
from ramet.policy.spec import PolicySpec
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.batches import root_row
from ramet.types import Fault, Origin, Rollout, Segment, SegmentKind, StopReason, Task, user_prompt

VOCABULARY = 256


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), hidden=32, layers=2, heads=2, intermediate=64)


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """As `tiny`, with an output head of its own."""
    folder = tmp_path_factory.mktemp("untied")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(tiny, tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    return folder


class Ranks:
    """Processes that have joined each other. Started once; a test sends them tasks."""

    DEADLINE_S = 120.0

    def __init__(self, world_size: int) -> None:
        pipes = [Pipe() for _ in range(world_size)]
        self._connections = [ours for ours, _ in pipes]
        descriptors = [theirs.fileno() for _, theirs in pipes]
        script = Path(__file__).with_name("on_ranks.py")
        address = f"tcp://127.0.0.1:{free_port()}"
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        environment.pop("TORCHDYNAMO_DISABLE", None)  # a test of vLLM's may have set it in this process
        command = [sys.executable, str(script), address, *map(str, descriptors)]
        self._process = subprocess.Popen(command, env=environment, pass_fds=descriptors, start_new_session=True)
        for _, theirs in pipes:
            theirs.close()
        try:
            for connection in self._connections:
                self._receive(connection, "joining")
        except BaseException:
            self.close()
            raise

    def __call__(self, task: str, *arguments: Any, file: str = "rank_tasks.py", **named: Any) -> list[Any]:
        """What the function `task` of `file` returned on each rank. Fails with the traceback if it raised."""
        path = Path(__file__).with_name(file)
        for connection in self._connections:
            connection.send_bytes(pickle.dumps((path, task, arguments, named)))  # send() would share tensors' memory
        replies = [self._receive(connection, task) for connection in self._connections]
        errors = [f"rank {rank}:\n{error}" for rank, (_, error) in enumerate(replies) if error]
        if errors:
            pytest.fail("\n".join(errors), pytrace=False)
        return [result for result, _ in replies]

    def _receive(self, connection: Connection, what: str) -> Any:
        if not connection.poll(self.DEADLINE_S):
            pytest.fail(f"no rank answered {what} within {self.DEADLINE_S:g} s", pytrace=False)
        return pickle.loads(connection.recv_bytes())

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    started = Ranks(2)
    yield started
    started.close()


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    started = Ranks(4)
    yield started
    started.close()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_spec(tiny: Path) -> Callable[..., PolicySpec]:
    """A spec; keywords of `TrainConfig` and `PolicyConfig` go there, the rest to the spec."""

    def build(**options: Any) -> PolicySpec:
        sections = {}
        for section in (TrainConfig, PolicyConfig):
            names = {field.name for field in dataclasses.fields(section)}
            sections[section] = {name: options.pop(name) for name in names & options.keys()}
        defaults = {
            "model": ModelConfig(path=str(tiny)),
            "train": TrainConfig(**sections[TrainConfig]),
            "policy": PolicyConfig(**{"lr": 1e-3, **sections[PolicyConfig]}),
            "policy_loss": PpoClip(PpoClipConfig()),
            "temperature": 1.0,
            "max_response_tokens": 32,
            "total_steps": 10,
            "seed": 1,
        }
        return PolicySpec(**{**defaults, **options})

    return build


@pytest.fixture
def make_rows() -> Callable[..., list[Row]]:
    """Random rows of ragged lengths; some tokens are inserted."""

    def build(n: int = 6, *, seed: int = 0, longest: int = 20) -> list[Row]:
        rng = np.random.default_rng(seed)
        rows = []
        for i in range(n):
            length = int(rng.integers(2, longest))
            mask = rng.random(length) < 0.8
            mask[0] = True
            rows.append(
                root_row(
                    rng.integers(0, VOCABULARY, int(rng.integers(1, 9))).astype(np.int32),
                    rng.integers(0, VOCABULARY, length).astype(np.int32),
                    mask=mask,
                    logprobs=np.where(mask, -5.6 + 0.1 * rng.standard_normal(length), 0).astype(np.float32),
                    id=str(i),
                    group=i // 2,
                    reward=float(i % 2),
                )
            )
        return rows

    return build


@pytest.fixture
def make_tree_rows(make_rows: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
    """Groups of two roots, two forks of the first, a fork of a fork, and a copy of a root; one prompt in each."""

    def fork(row: Row, at: int, own: Row) -> Row:
        ids, mask = (
            np.concatenate([a[:at], b]) for a, b in ((row.response_ids, own.response_ids), (row.mask, own.mask))
        )
        return dataclasses.replace(row, response_ids=ids, mask=mask)

    def build(n_groups: int = 2, *, seed: int = 0) -> list[Row]:
        rows = []
        for group in range(n_groups):
            first, second, *own = make_rows(5, seed=100 * seed + group, longest=16)
            first = fork(first, len(first.response_ids), second)
            half = len(first.response_ids) // 2
            one, two = fork(first, half, own[0]), fork(first, half, own[1])
            tree = [first, second, one, two, fork(one, half + 1, own[2]), second]
            for member in tree:
                engine_logprobs = np.where(member.mask, -5.6, 0).astype(np.float32)
                arrays = {"engine_logprobs": engine_logprobs, "policy_versions": np.where(member.mask, 0, -1)}
                length = len(member.response_ids)
                arrays |= {"turn_ids": np.zeros(length, np.int32), "node_ids": np.arange(length, dtype=np.int32)}
                prompt = np.concatenate([tree[0].prompt_ids] * 3)
                rows.append(
                    dataclasses.replace(member, prompt_ids=prompt, group=group, rollout_id=str(len(rows)), **arrays)
                )
        return rows

    return build


@pytest.fixture
def make_advantages() -> Callable[[list[Row]], torch.Tensor]:
    """`[N, T]`: +1 and -1 by turns on sampled tokens."""

    def build(rows: list[Row]) -> torch.Tensor:
        out = torch.zeros(len(rows), max(len(row.response_ids) for row in rows))
        for i, row in enumerate(rows):
            out[i, : len(row.mask)] = torch.from_numpy(row.mask).float() * (1 - 2 * (i % 2))
        return out

    return build


@pytest.fixture
def sampled() -> Callable[..., Segment]:
    def build(ids: list[int], *, turn: int = 0, logprob: float = -1.0, entropy: float | None = 0.5) -> Segment:
        return Segment(
            origin=Origin.SAMPLED,
            kind=SegmentKind.TURN,
            turn=turn,
            text="s",
            token_ids=array("i", ids),
            logprobs=array("f", [logprob] * len(ids)),
            entropies=None if entropy is None else array("f", [entropy] * len(ids)),
            policy_version=3,
        )

    return build


@pytest.fixture
def inserted() -> Callable[..., Segment]:
    def build(ids: list[int], *, turn: int = 0, kind: SegmentKind = SegmentKind.RESULT) -> Segment:
        return Segment(origin=Origin.INSERTED, kind=kind, turn=turn, text="i", token_ids=array("i", ids))

    return build


@pytest.fixture
def make_group(sampled: Callable[..., Segment], inserted: Callable[..., Segment]) -> Callable[..., ScoredGroup]:
    """A group of roots with these rewards; None is an infrastructure failure."""

    def build(rewards: list[float | None], task_id: str = "t") -> ScoredGroup:
        task = Task(id=task_id, prompt=user_prompt("?"))
        members = []
        for i, reward in enumerate(rewards):
            rollout = Rollout(
                id=str(i),
                task=task,
                segments=(inserted([1, 2], kind=SegmentKind.PROMPT), sampled([3 + i] * (i + 1))),
                stop=StopReason.FAULT if reward is None else StopReason.ANSWER,
                fault=Fault(where="tool:python", message="down") if reward is None else None,
            )
            members.append(ScoredRollout(rollout=rollout, reward=reward))
        return ScoredGroup(task=task, rollouts=tuple(members))

    return build
