"""What reading the code found to be in doubt on a GPU, one short check each; they run before anything that takes long.

Each gives one row. On a CPU the same code runs with tiny shapes, and says so.
"""

from __future__ import annotations

import gc
import hashlib
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from rows import forked_rows, random_rows
from sizes import Size
from update import synchronise

from ramet.algorithms.logprobs import Entropy
from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.cluster.ray.weight_senders import _fixed_segments
from ramet.cluster.ray.weights import buckets
from ramet.config.schema import Attention, ModelConfig, PolicyConfig, SharePrefixes, TrainConfig
from ramet.engines.vllm.recorder import BatchedRequest, LogprobRecorder, on_device
from ramet.engines.weight_chunks import grouped, laid_out, pack
from ramet.policy.batching.packing import micro_batches
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.checkpoint.dcp import write_tensors
from ramet.policy.distributed.ranks import join_ranks
from ramet.policy.distributed.sharding import reshard
from ramet.policy.host_memory import HostBuffers
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.model_trainer import OptimizerStep
from ramet.policy.models import attention_cost, build_trainable
from ramet.policy.objective import Objective
from ramet.policy.optim import OffloadedState, make_optimizer
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec

GIB = 2**30
BUDGET = 8192  # tokens of a micro-batch


@contextmanager
def one_rank() -> Iterator[None]:
    """A group of this process alone: models are sharded over it as over several."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    join_ranks(rank=0, world_size=1, address=f"tcp://127.0.0.1:{port}", timeout_s=60)
    try:
        yield
    finally:
        dist.destroy_process_group()


def start_and_reserve(config: ModelConfig, size: Size, attention: Attention) -> str:
    """A rank's start with this attention, an update, and what it holds before and after it is at rest."""
    cuda, device = config.device == "cuda", torch.device(config.device)
    options = PolicyConfig(activation_checkpointing=True)
    own = ModelConfig(path=config.path, dtype=config.dtype, device=config.device, attention=attention)
    with one_rank():
        started = time.perf_counter()
        model = build_trainable(own, options, LogprobModel, seed=1, world_size=2)
        synchronise()
        seconds = time.perf_counter() - started
        optimizer = make_optimizer(model.parameters(), options)
        rows = random_rows(size.sequences, size.prompt, [size.response], size.shape["vocab_size"])
        for batch in micro_batches(rows, budget=BUDGET, cost=attention_cost(model.model, device)):
            model(batch.to(device), 1.0, Entropy.DETACHED).logprobs.mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        text = f"starts in {seconds:.1f} s, one update"
        if cuda:
            before = torch.cuda.memory_reserved()
            reshard(model)
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            held = f"{torch.cuda.memory_allocated() / GIB:.1f} of {torch.cuda.memory_reserved() / GIB:.1f}"
            text += f"; reserved {before / GIB:.1f} GiB, at rest {held}"
    return text


def transports(config: ModelConfig) -> str:
    """GB/s of what `host` and `ipc` do on the policy's side with 2 GiB of weights."""
    device, count = torch.device(config.device), 2**30 if config.device == "cuda" else 2**18
    weights = [(f"layer {i}", torch.ones(count // 16, dtype=torch.bfloat16, device=device)) for i in range(16)]
    size = sum(tensor.nbytes for _, tensor in weights)

    def to_host() -> None:
        for _ in buckets(weights, size // 4):
            pass

    def packed() -> None:
        for group in grouped(weights, size // 4):
            pieces, width = laid_out(group)
            pack(group, pieces, torch.empty(width, dtype=torch.uint8, device=device))

    def pageable() -> None:
        for _, tensor in weights:
            tensor.to("cpu", copy=True)

    names = {"pinned buckets": to_host, "pageable": pageable, "packed on the device": packed}
    return ", ".join(f"{name} {size / _seconds(work) / 1e9:.1f} GB/s" for name, work in names.items())


def draws(config: ModelConfig) -> str:
    """A step of 256 requests drawn row by row, as seeds need it, and together."""
    device, shape = torch.device(config.device), (256, 151_936) if config.device == "cuda" else (8, 304)
    noise = torch.empty(shape, device=device)
    generators = [torch.Generator(device=device).manual_seed(i) for i in range(shape[0])]

    def by_row() -> None:
        for row, generator in zip(noise, generators, strict=True):
            row.exponential_(generator=generator)

    def together() -> None:
        noise.exponential_()

    return f"seeded {1e3 * _seconds(by_row):.2f} ms a step, together {1e3 * _seconds(together):.2f} ms"


def pinned(config: ModelConfig) -> str:
    """How much of the host a pinned block of 272 MiB takes: torch rounds up to powers of two."""
    if config.device != "cuda":
        return "needs a GPU"
    before = _pinned_bytes()  # of earlier parts
    block = torch.empty(272 * 2**20, dtype=torch.uint8, pin_memory=True)
    return f"{block.nbytes / 2**20:.0f} MiB take {(_pinned_bytes() - before) / 2**20:.0f} MiB"


def _pinned_bytes() -> int:
    return int(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))


def checkpoint(config: ModelConfig) -> str:
    """Writing and hashing 1 GiB from the device."""
    device, count = torch.device(config.device), 2**28 if config.device == "cuda" else 2**16
    tensors = {f"t{i}": torch.ones(count // 8, device=device) for i in range(8)}
    with tempfile.TemporaryDirectory(prefix="ramet-gpu-") as folder:
        started = time.perf_counter()
        write_tensors(Path(folder), tensors, None)
        written = time.perf_counter()
        for file in Path(folder).iterdir():
            with file.open("rb") as opened:
                hashlib.file_digest(opened, "sha256")
        hashed = time.perf_counter()
    size = 4 * count / 1e9
    return f"written {size / (written - started):.2f} GB/s, hashed {size / (hashed - written):.2f} GB/s"


def exported(config: ModelConfig) -> str:
    """GB/s at which another process copies memory of this one, as an engine does with `ipc`, and what is left of it."""
    device, count = torch.device(config.device), 2**30 if config.device == "cuda" else 2**16
    cuda = device.type == "cuda"
    with _fixed():
        buffer = torch.arange(count, device=device, dtype=torch.int64).to(torch.uint8)
    processes = torch.multiprocessing.get_context("spawn")
    given, answers = processes.Queue(), processes.Queue()
    process = processes.Process(target=_copy, args=(given, answers))
    process.start()
    try:
        given.put(buffer)
        total, seconds = answers.get(timeout=120)
    finally:
        process.join(30)
        process.kill()
    if total != int(buffer.sum(dtype=torch.int64)):
        raise AssertionError(f"the other process read {total}, not {int(buffer.sum(dtype=torch.int64))}")
    text = f"{count / seconds / 1e9:.1f} GB/s, all bytes equal"
    if cuda:
        del buffer
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        text += f"; left afterwards {torch.cuda.memory_reserved() / GIB:.2f} GiB"
    return text


@contextmanager
def _fixed() -> Iterator[None]:
    """As a run does it; a torch before 2.13 cannot say its settings, which are then those of run.sh."""
    if hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        with _fixed_segments():
            yield
        return
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    try:
        yield
    finally:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")


def _copy(given: torch.multiprocessing.Queue, answers: torch.multiprocessing.Queue) -> None:
    """In the other process, which lets go of the memory before it ends."""
    buffer = given.get()
    found = int(buffer.sum(dtype=torch.int64)), _seconds(buffer.clone)
    del buffer
    gc.collect()
    answers.put(found)


def recorder(config: ModelConfig) -> str:
    """What the recorder of an engine's worker costs a step of 256 requests; a wait for the device is an error."""
    device, (rows, vocabulary) = torch.device(config.device), (256, 151_936) if config.device == "cuda" else (8, 304)
    noted, requests = LogprobRecorder(), [BatchedRequest(str(i), 1.0, []) for i in range(rows)]
    logits = torch.randn(rows, vocabulary, device=device)
    tokens = torch.arange(rows, device=device)

    def step() -> None:
        noted.measure(logits, on_device([1.0] * rows, device), requests)
        noted.sampled(tokens)
        for request in requests:
            request.output.append(-1)  # a placeholder, as vLLM's

    steps = 20
    step()  # makes the pinned memory
    synchronise()
    started = time.perf_counter()
    with _waits_are_errors(device):
        for _ in range(steps):
            step()
    scheduled = time.perf_counter() - started
    synchronise()
    seconds = time.perf_counter() - started
    found = noted.get([("1", steps)])[0][0]
    exact = float(torch.log_softmax(logits[1].double(), -1)[1])
    if len(found) != steps or abs(found[-1] - exact) > 1e-3:
        raise AssertionError(f"it noted {found[-1:]} in {len(found)} of {steps} steps; exact is {exact}")
    mode = "no wait for the device" if device.type == "cuda" else "waits need a GPU"
    return f"{1e3 * scheduled / steps:.2f} ms a step to schedule, {1e3 * seconds / steps:.2f} to compute; {mode}"


def update(config: ModelConfig) -> str:
    """What an update's micro-batches take, prefixes once; a wait for the device is an error."""
    device, length = torch.device(config.device), 1024 if config.device == "cuda" else 16
    policy = PolicyConfig(
        activation_checkpointing=2, share_prefixes=SharePrefixes.ALWAYS, max_microbatch_tokens=4 * length
    )
    spec = PolicySpec(
        model=config, policy=policy, train=TrainConfig(), policy_loss=PpoClip(PpoClipConfig()), temperature=1.0,
        max_response_tokens=length, total_steps=1, seed=1,
    )  # fmt: skip
    worker, rows = PolicyRank(spec), forked_rows(4, 4, length // 4, length, 256)
    batch = TrainBatch(rows=rows).with_advantages(torch.ones(len(rows), length))
    worker.update(batch, 1)  # makes the pinned memory
    batches = worker.policy.micro_batches(rows)
    objective = Objective(spec, worker.policy, batch, MetricAccumulator())
    step = OptimizerStep(rows=range(len(rows)), is_first=True)
    synchronise()
    started = time.perf_counter()
    with _waits_are_errors(device):
        for micro_batch in batches:
            objective(micro_batch, micro_batch.rows, step).backward()
    scheduled = time.perf_counter() - started
    synchronise()
    seconds = time.perf_counter() - started
    mode = "no wait for the device" if device.type == "cuda" else "waits need a GPU"
    return (
        f"{len(batches)} micro-batches in {1e3 * scheduled:.0f} ms to schedule, {1e3 * seconds:.0f} to compute; {mode}"
    )


@contextmanager
def _waits_are_errors(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def host_copies(config: ModelConfig) -> str:
    """GB/s of an optimiser's state to the host and back, and of a checkpoint's copy; the first time memory is made."""
    device, count = torch.device(config.device), 2**28 if config.device == "cuda" else 2**14
    cuda = device.type == "cuda"
    parameters = [torch.nn.Parameter(torch.zeros(count // 16, device=device)) for _ in range(16)]
    optimizer = make_optimizer(parameters, PolicyConfig())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state, buffers = OffloadedState(optimizer, device, pin=cuda), HostBuffers(pin=cuda)
    weights = {str(i): parameter.detach() for i, parameter in enumerate(parameters)}
    moved: dict[str, tuple[Callable[[], object], int]] = {
        "optimiser out": (state.to_host, 8),
        "back": (state.to_device, 8),
        "out again": (state.to_host, 8),
        "a save's copy": (lambda: buffers.copies(weights), 4),
        "again": (lambda: buffers.copies(weights), 4),
    }
    texts = []
    for name, (work, size) in moved.items():
        synchronise()
        started = time.perf_counter()
        work()
        synchronise()
        texts.append(f"{name} {size * count / max(time.perf_counter() - started, 1e-9) / 1e9:.1f}")
    return f"{', '.join(texts)} GB/s"


def _seconds(work: Callable[[], None]) -> float:
    """Of the second time."""
    work()
    synchronise()
    started = time.perf_counter()
    work()
    synchronise()
    return max(time.perf_counter() - started, 1e-9)
