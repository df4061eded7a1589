"""The devices that a plan is made for: those of this machine, or others that were named with `--on 8x80GiB`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch

from ramet.config.schema import Config
from ramet.errors import ConfigError
from ramet.models.loading import resolve_device

UNITS = {"GB": 10**9, "GIB": 2**30, "MIB": 2**20}
_WRITTEN = re.compile(r"(\d+)x(\d+(?:\.\d+)?)(GiB|GB|MiB)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """None: not known. On a CPU the one device is the host and its memory is all processes'."""

    cuda: bool
    devices: int | None  # over all nodes
    device_bytes: int | None  # of each
    free_bytes: int | None = None  # of the one that is looked at; others may differ
    host_bytes: int | None = None


def machine_of(config: Config, written: str | None = None) -> Machine:
    """`written` (`8x80GiB`: devices over all nodes, memory of each) stands for GPUs that this machine need not have.

    Without it this machine is asked; how many devices a running Ray cluster (`cluster.address`) has is not known here.
    Raises `ConfigError`.
    """
    if written is not None:
        found = _WRITTEN.fullmatch(written)
        if found is None or not int(found[1]) or not float(found[2]):
            raise ConfigError(
                f"--on: {written!r} is no machine; allowed: DEVICESxMEMORY, such as 8x80GiB (GiB, GB, MiB)"
            )
        return Machine(cuda=True, devices=int(found[1]), device_bytes=int(float(found[2]) * UNITS[found[3].upper()]))
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    device = resolve_device(config.model)
    if device.type != "cuda":
        return Machine(cuda=False, devices=1, device_bytes=host, host_bytes=host)
    free, total = torch.cuda.mem_get_info(device)
    known = None if config.cluster.address else torch.cuda.device_count()
    return Machine(cuda=True, devices=known, device_bytes=total, free_bytes=free, host_bytes=host)
