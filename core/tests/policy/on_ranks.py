"""One of several ranks: runs the tasks that it is sent through an inherited pipe, until that is closed.

    python on_ranks.py FILE_DESCRIPTOR RANK WORLD_SIZE tcp://HOST:PORT

A task is (file, name, arguments, named arguments): the function of that name in that file is called, and its result
is sent back.
"""

from __future__ import annotations

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


def module(file: Path, loaded: dict[Path, ModuleType]) -> ModuleType:
    if file not in loaded:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        loaded[file] = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = loaded[file]
        spec.loader.exec_module(loaded[file])
    return loaded[file]


def main(connection: Connection, rank: int, world_size: int, address: str) -> None:
    torch.set_num_threads(1)
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
    os._exit(0)  # leaving dozens of groups in order takes seconds


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
