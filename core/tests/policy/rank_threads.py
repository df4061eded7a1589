"""Many ranks as threads of this process: a checkpoint of 64 ranks, read by 32.

    python rank_threads.py MODEL FOLDER WRITERS READERS

The collectives are those of torch's own tests (`multi_threaded_pg`). It changes torch for the process, which is why
this is one of its own. Fails with an `AssertionError`, or the error of a rank.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed import multi_threaded_pg as threaded
from transformers import PreTrainedModel

from ramet.config.schema import ModelConfig
from ramet.models.loading import load_model
from ramet.policy.checkpoint.dcp import read_whole
from ramet.policy.checkpoint.state import MODEL, OPTIMIZER, Progress, load_state, stage_state, write_state
from ramet.policy.checkpoint.store import Checkpoints, verify_part
from ramet.policy.distributed.sharding import shard
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.models import blocks_of

T = TypeVar("T")


def on_ranks(world_size: int, work: Callable[[int], T]) -> list[T]:
    """What `work` returns on each rank, all at once."""
    threaded.ProcessLocalGroup.reset()
    store, results, errors = dist.HashStore(), dict[int, T](), list[BaseException]()

    def run(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=world_size, store=store)
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
            threaded.ProcessLocalGroup.exception_handle(error)
        finally:
            dist.destroy_process_group()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(world_size)]


def sharded(model: PreTrainedModel) -> tuple[nn.Module, torch.optim.Optimizer]:
    shard(LogprobModel(model), blocks_of(model), torch.device("cpu"))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step whose result does not depend on how the parameters are cut."""
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()


def contents(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """This process's part of weights and moments."""
    found = {}
    for name, parameter in model.named_parameters():
        found[MODEL + name] = parameter.detach()
        for key, value in optimizer.state[parameter].items():
            found[f"{OPTIMIZER}{name}.{key}"] = value
    return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in found.items()}


def main(model: str, root: Path, writers: int, readers: int) -> None:
    loaded = load_model(ModelConfig(path=model)).float()
    copies = [deepcopy(loaded) for _ in range(writers + readers)]  # transformers cannot load in threads
    whole, optimizer = loaded, torch.optim.AdamW(loaded.parameters(), lr=1e-3)
    stepped(whole, optimizer)
    expected = contents(whole, optimizer)

    def save_on_all(folder: Path) -> None:
        on_ranks(writers, lambda rank: save(rank, folder))

    def save(rank: int, folder: Path) -> None:
        own, own_optimizer = sharded(copies[rank])
        stepped(own, own_optimizer)
        staged = stage_state(own, own_optimizer, Progress(step=3), None, rank=rank, world_size=writers)
        write_state(folder, staged, dist.group.WORLD)

    def load(rank: int) -> dict[str, Tensor]:
        assert verify_part(checkpoint.folder, rank, readers) == []
        own, own_optimizer = sharded(copies[writers + rank])
        progress = load_state(
            checkpoint.folder, own, own_optimizer, rank=rank, world_size=readers, seed=1, group=dist.group.WORLD
        )
        assert progress.step == 3
        return contents(own, own_optimizer)

    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    threaded._install_threaded_pg()
    checkpoint = Checkpoints(root, keep=1).save(3, save_on_all)
    assert len(list(checkpoint.folder.glob("rank_*.pt"))) == writers
    parts = on_ranks(readers, load)
    threaded._uninstall_threaded_pg()
    saved = read_whole(checkpoint.folder, "")
    assert saved.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(saved[name], tensor), name
        read = torch.cat([part[name] for part in parts]) if tensor.dim() else parts[-1][name]
        assert torch.equal(read, tensor), name
    print(len(list(checkpoint.folder.glob("__*"))), "files,", len(expected), "tensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
