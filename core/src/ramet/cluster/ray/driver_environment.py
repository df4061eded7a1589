"""What of the driver's process its workers must have too: settings, keys, modules, folder, plugins, the log's level.

Settings that must hold from the first moment go into Ray's `runtime_env`, which Ray writes to its logs. Everything else
of the driver's environment, keys and secrets among it, comes with the actor's arguments, where the node has nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass

from ramet.config.secrets import is_secret_variable, remember_environment, remembered
from ramet.errors import raise_all
from ramet.plugins import load_plugins
from ramet.processes import OWNER, TAG
from ramet.runs.own_files import umask

SETTINGS = (
    "RAMET_", "OMP_", "MKL_", "OPENBLAS_", "CUBLAS_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "VLLM_", "HF_",
    "TRANSFORMERS_", "TOKENIZERS_", "PYTHON",
)  # fmt: skip
NODES_OWN = ("RAY_", "CUDA_VISIBLE", "NVIDIA_VISIBLE", "ROCR_", "HIP_", "SLURM_", OWNER, TAG)
PluginRow = tuple[str, str, str]  # name, distribution, version


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEnvironment:
    """Taken on the driver (`here`), put on in every actor before it does anything else."""

    environment: dict[str, str]
    sys_path: tuple[str, ...]
    folder: str
    plugins: tuple[PluginRow, ...]
    log_level: int
    hidden: tuple[str, ...]  # variables whose values no log may show, as the configuration named them
    umask: int  # whose files are private, workers' are too

    @classmethod
    def here(cls) -> DriverEnvironment:
        return cls(
            environment={name: value for name, value in os.environ.items() if not name.startswith(NODES_OWN)},
            sys_path=tuple(os.path.abspath(entry) for entry in sys.path),
            folder=os.getcwd(),
            plugins=_plugins(),
            log_level=logging.getLogger("ramet").getEffectiveLevel(),
            hidden=remembered(),
            umask=umask(),
        )

    @property
    def settings(self) -> dict[str, str]:
        """For `runtime_env`: no secrets."""
        return {
            name: value
            for name, value in self.environment.items()
            if name.startswith(SETTINGS) and not is_secret_variable(name, value)
        }

    def put_on(self) -> None:
        """Relative paths, modules and variables mean what they mean on the driver."""
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        os.environ.update(self.settings)
        remember_environment(self.hidden)
        os.umask(self.umask)
        sys.path += [entry for entry in self.sys_path if entry not in sys.path]
        if os.path.isdir(self.folder):
            os.chdir(self.folder)

    def check(self, node: str) -> None:
        """Raise `ConfigErrors` with everything in which this node differs from the driver's."""
        problems = []
        if os.getcwd() != os.path.realpath(self.folder) and os.getcwd() != self.folder:
            problems.append(
                f"cluster: node {node} has no folder {self.folder}, where this command runs; every node needs the same "
                "files under the same paths"
            )
        mine = {name: (distribution, version) for name, distribution, version in _plugins()}
        theirs = {name: (distribution, version) for name, distribution, version in self.plugins}
        for name in sorted({*mine, *theirs}):
            if mine.get(name) != theirs.get(name):
                problems.append(
                    f"cluster: plugin {name!r} is {_said(mine.get(name))} on node {node} and {_said(theirs.get(name))} "
                    "where this command runs; install the same on all nodes"
                )
        raise_all(problems)


def _plugins() -> tuple[PluginRow, ...]:
    return tuple((info.name, info.distribution, info.version) for info in load_plugins().infos)


def _said(found: tuple[str, str] | None) -> str:
    return "missing" if found is None else " ".join(part for part in found if part)
