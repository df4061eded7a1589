"""One rank of `ramet sft`, started by it: `python -m ramet.sft.rank FILE`, with the environment of a torchrun process.

It ends when the process that started it does, however that ended: it holds the other end of this one's input.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it
from torch.distributed.distributed_c10d import PrefixStore, Store

from ramet.models.loading import resolve_device
from ramet.models.torch_setup import set_up_torch
from ramet.runs.stopped import StopListener, Stopped
from ramet.sft.job import work
from ramet.sft.rank_messages import ARRIVED, RankFailure, RankInputs
from ramet.sft.strategies import prepare_process
from ramet.sft.world import World, world_here
from ramet.tracking.log import set_up_logging


def main(file: str) -> int:
    """Returns the exit code. An error is reported to the process that started this one, which prints it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    task, world = RankInputs.load(Path(file)), world_here()
    _set_up_logging(task.log_level, world)
    patience = timedelta(seconds=task.config.cluster.timeout_s)
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False, patience)
    try:
        _train(task, world, store)
    except Stopped as stopped:
        return stopped.code
    except BaseException as error:  # the boundary of the process: whatever it is, the other process shows it
        RankFailure.report(store, world.rank, error)
        return 1
    return 0


def _train(task: RankInputs, world: World, store: Store) -> None:
    config, stop = task.config, StopListener()
    with stop.listening():
        prepare_process(config)
        set_up_torch(config.run)
        store.set(ARRIVED.format(world.rank), "")
        gpus = resolve_device(config.model).type == "cuda"
        with world.joined(config.cluster.timeout_s, gpus=gpus, store=PrefixStore("ranks", store)):
            work(config, task.prepared(), task.run, stop, world)


def _set_up_logging(level: int, world: World) -> None:
    """The first rank speaks for all of them, the others of what is wrong only."""
    set_up_logging(level if world.first else max(level, logging.WARNING))
    # accelerate is told 1 on purpose by Trainer, which counts the batches of a step itself.
    logging.getLogger("accelerate.accelerator").addFilter(
        lambda record: "accumulation steps mismatch" not in record.msg
    )
    warnings.filterwarnings(
        "ignore", message=r"`torch\.distributed\.\w+` is deprecated"
    )  # DeepSpeed 0.19 on torch 2.13


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written: this returns when the other end is closed
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a group whose other ranks are gone may hang while the interpreter takes it down
