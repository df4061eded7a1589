"""One rank of `ramet sft`, started by it: `python -m ramet.sft.rank FILE`, with the environment of a torchrun process.

It ends when the process that started it does, however that ended.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it
from torch.distributed.distributed_c10d import PrefixStore, Store

from ramet.models.loading import resolve_device
from ramet.models.torch_setup import set_up_torch
from ramet.processes import end_with_owner
from ramet.runs.run_dir import RUN_LOG
from ramet.runs.stopped import StopListener, Stopped
from ramet.sft.job import train_and_save
from ramet.sft.rank_messages import READY, RankFailure, RankInputs
from ramet.sft.strategies import prepare_process
from ramet.sft.world import World, world_of_environment
from ramet.tracking.heartbeat import heartbeat
from ramet.tracking.log import set_up_logging
from ramet.tracking.run_log import recording


def main(file: str) -> int:
    """Returns the exit code. An error is reported to the process that started this one, which prints it."""
    end_with_owner()
    inputs, world = RankInputs.load(Path(file)), world_of_environment()
    _set_up_logging(inputs.log_level, world)
    with recording() if world.first else nullcontext() as log:
        if log is not None:
            log.write_to(inputs.run / RUN_LOG)
        with heartbeat() if world.first else nullcontext():
            return _run(inputs, world)


def _run(inputs: RankInputs, world: World) -> int:
    timeout = timedelta(seconds=inputs.config.cluster.timeout_s)
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False, timeout)
    try:
        _train(inputs, world, store)
    except Stopped as stopped:
        return stopped.code
    except BaseException as error:  # the boundary of the process: whatever it is, the launching process shows it
        RankFailure.report(store, world.rank, error)
        return 1
    return 0


def _train(inputs: RankInputs, world: World, store: Store) -> None:
    config, signals = inputs.config, StopListener()
    with signals.listening():
        prepare_process(config)
        set_up_torch(config.run)
        store.set(READY.format(world.rank), "")
        gpus = resolve_device(config.model).type == "cuda"
        with world.joined(config.cluster.timeout_s, gpus=gpus, store=PrefixStore("ranks", store)):
            train_and_save(config, inputs.prepared(), inputs.run, signals, world)


def _set_up_logging(level: int, world: World) -> None:
    """The first rank logs for all of them, the others only warnings."""
    set_up_logging(level if world.first else max(level, logging.WARNING))
    # Trainer passes 1 to accelerate on purpose, and counts the batches of a step itself.
    logging.getLogger("accelerate.accelerator").addFilter(
        lambda record: "accumulation steps mismatch" not in record.msg
    )
    warnings.filterwarnings(
        "ignore", message=r"`torch\.distributed\.\w+` is deprecated"
    )  # DeepSpeed 0.19 on torch 2.13


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a group whose other ranks are gone may hang while the interpreter takes it down
