"""What `run.sh` needs of this machine: prints what is missing, exits with 2. Imports torch last, since it is slow."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = {  # and the oldest that is known to do
    "torch": (2, 8),
    "transformers": (5, 16, 1),
    "numpy": (1, 26),
    "pluggy": (1, 5),
    "omegaconf": (2, 3),
    "accelerate": (1, 10),
}
MEMORY_GIB = 38  # the 1.5B model with its optimiser alone takes 23


def missing(*, cpu: bool) -> list[str]:
    problems = [] if sys.version_info >= (3, 11) else [f"Python 3.11 or newer; this is {sys.version.split()[0]}"]
    for name, oldest in PACKAGES.items():
        wanted = ".".join(map(str, oldest))
        try:
            found = version(name)
        except PackageNotFoundError:
            problems.append(f"{name} {wanted} or newer (pip install {name}); it is not installed")
            continue
        numbers = tuple(int(part) for part in found.partition("+")[0].split(".") if part.isdigit())
        if numbers < oldest:
            problems.append(f"{name} {wanted} or newer; {found} is installed")
    return problems if problems or cpu else _cuda()


def _cuda() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return [
            f"a CUDA device that torch sees; torch {torch.__version__} is built for {torch.version.cuda or 'the CPU'}"
        ]
    capability, memory = torch.cuda.get_device_capability(), torch.cuda.mem_get_info()[0] / 2**30
    problems = []
    if capability < (8, 0):
        problems.append(
            f"a device with bfloat16 (compute capability 8.0); this one has {capability[0]}.{capability[1]}"
        )
    if memory < MEMORY_GIB:
        problems.append(f"{MEMORY_GIB} GiB of free GPU memory; {memory:.1f} are free")
    return problems


if __name__ == "__main__":
    found = missing(cpu="--cpu-rehearsal" in sys.argv[1:])
    if found:
        print("this cannot run here; it needs", file=sys.stderr)
        print("\n".join(f"  {problem}" for problem in found), file=sys.stderr)
        sys.exit(2)
