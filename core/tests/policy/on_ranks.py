"""Several ranks: each runs the tasks that it is sent through an inherited pipe, until that is closed.

    python on_ranks.py tcp://HOST:PORT FILE_DESCRIPTOR ...

The ranks, one for each file descriptor, are forks of this process, which has imported what takes seconds, and waits for
them. A task is (file, name, arguments, named arguments): the function of that name in that file is called, and its
result is sent back.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import torch

from ramet.policy.distributed.ranks import join_ranks

IMPORTED = (  # by a first step, after the workers themselves
    "ramet.policy.rank", "torch._dynamo", "transformers.models.qwen2.modeling_qwen2",
)  # fmt: skip


def module(file: Path, loaded: dict[Path, ModuleType]) -> ModuleType:
    if file not in loaded:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        loaded[file] = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = loaded[file]
        spec.loader.exec_module(loaded[file])
    return loaded[file]


def serve(connection: Connection, rank: int, world_size: int, address: str) -> None:
    loaded: dict[Path, ModuleType] = {}
    join_ranks(rank=rank, world_size=world_size, address=address, timeout_s=240)
    connection.send_bytes(pickle.dumps(rank))
    while True:
        try:
            file, name, arguments, named = pickle.loads(connection.recv_bytes())
        except EOFError:
            break
        try:
            reply = pickle.dumps((getattr(module(file, loaded), name)(*arguments, **named), None))
        except Exception:
            reply = pickle.dumps((None, traceback.format_exc()))
        connection.send_bytes(reply)


def main(address: str, descriptors: list[int]) -> None:
    torch.set_num_threads(1)
    for name in IMPORTED:
        importlib.import_module(name)
    for rank, descriptor in enumerate(descriptors):
        if os.fork() == 0:
            try:
                serve(Connection(descriptor), rank, len(descriptors), address)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)  # leaving dozens of groups in order takes seconds
    for descriptor in descriptors:
        os.close(descriptor)  # so that a rank that ends closes its pipe
    for _ in descriptors:
        os.wait()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], [int(text) for text in sys.argv[2:]])
