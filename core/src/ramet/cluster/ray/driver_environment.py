"""Parts of the driver's process that workers take over: settings, keys, modules, folder, plugins, log level.

Settings that must apply from the start of a process go into Ray's `runtime_env`, which Ray writes to its logs. All
other variables of the driver, secrets among them, come with the actor's arguments, and are set where the node has no
value.
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
NODE_SPECIFIC = ("RAY_", "CUDA_VISIBLE", "NVIDIA_VISIBLE", "ROCR_", "HIP_", "SLURM_", OWNER, TAG)
PluginRow = tuple[str, str, str]  # name, distribution, version


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEnvironment:
    """Captured on the driver, applied first in every actor."""

    variables: dict[str, str]
    sys_path: tuple[str, ...]
    folder: str
    plugins: tuple[PluginRow, ...]
    log_level: int
    hidden: tuple[str, ...]  # variables that the configuration names and whose values no log may show
    umask: int  # so that workers' files are as private as the driver's

    @classmethod
    def capture(cls) -> DriverEnvironment:
        return cls(
            variables={name: value for name, value in os.environ.items() if not name.startswith(NODE_SPECIFIC)},
            sys_path=tuple(os.path.abspath(entry) for entry in sys.path),
            folder=os.getcwd(),
            plugins=_plugins(),
            log_level=logging.getLogger("ramet").getEffectiveLevel(),
            hidden=remembered(),
            umask=umask(),
        )

    @property
    def settings(self) -> dict[str, str]:
        """Variables for `runtime_env`: no secrets."""
        return {
            name: value
            for name, value in self.variables.items()
            if name.startswith(SETTINGS) and not is_secret_variable(name, value)
        }

    def apply(self) -> None:
        """Make relative paths, modules and variables mean what they mean on the driver."""
        for name, value in self.variables.items():
            os.environ.setdefault(name, value)
        os.environ.update(self.settings)
        remember_environment(self.hidden)
        os.umask(self.umask)
        sys.path += [entry for entry in self.sys_path if entry not in sys.path]
        if os.path.isdir(self.folder):
            os.chdir(self.folder)

    def check(self, node: str) -> None:
        """Raise `ConfigErrors` with all differences between this node (its address is `node`) and the driver's."""
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
                    f"cluster: plugin {name!r} is {_version(mine.get(name))} on node {node} and "
                    f"{_version(theirs.get(name))} where this command runs; install the same on all nodes"
                )
        raise_all(problems)


def _plugins() -> tuple[PluginRow, ...]:
    return tuple((info.name, info.distribution, info.version) for info in load_plugins().infos)


def _version(version_parts: tuple[str, str] | None) -> str:
    return "missing" if version_parts is None else " ".join(part for part in version_parts if part)
