"""The core's own checks: versions, torch, the engine, disk, shared memory, Ray."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ramet
from ramet.config.needs import extras_of
from ramet.config.schema import Config
from ramet.planning.run_plan import nearest_folder
from ramet.rollout.config import McpConfig
from ramet.types import Finding, Severity

GIB = 1 << 30
LITTLE_DISK = 20 * GIB  # a checkpoint of a model of 1.5 billion parameters with its optimiser
LITTLE_SHARED = 2 * GIB
SHARED = Path("/dev/shm")
CUDA_13_DRIVER = 580  # of NVIDIA, the first for CUDA 13, which vLLM 0.32.0 and its torch are built for


def check_host(config: Config) -> Iterator[Finding]:
    """Findings on this machine, and on what the configuration asks of it."""
    yield _versions()
    yield from _torch()
    yield from _driver(config)
    yield from _engine(config)
    yield from _ray(config)
    yield from _disk("runs", nearest_folder(Path(config.run.root)), "run.root")
    yield from _disk("temporary files", Path(tempfile.gettempdir()), "TMPDIR")
    yield from _shared_memory(config)
    yield from _mcp_servers(config)


def _found(what: str, text: str, severity: Severity = Severity.OK, fix: str | None = None) -> Finding:
    return Finding(what=what, severity=severity, text=text, fix=fix)


def _versions() -> Finding:
    return _found("versions", f"ramet {ramet.__version__}, Python {platform.python_version()}, {platform.platform()}")


def _installed(name: str) -> str | None:
    """Return the version of the package. Builds for other hardware are distributions of other names."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "installed" if importlib.util.find_spec(name.replace("-", "_")) is not None else None


def _torch() -> Iterator[Finding]:
    missing = [name for name in extras_of("ramet").get("train", ()) if _installed(name) is None]
    if missing:
        fix = "pip install 'ramet[train]'"
        yield _found(
            "packages", f"not installed: {', '.join(missing)}; `ramet train` cannot run", Severity.PROBLEM, fix
        )
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        memory = torch.cuda.get_device_properties(0).total_memory / GIB
        yield _found("torch", f"{torch.__version__}, {len(names)} x {names[0]} of {memory:.0f} GiB")
    elif not _lists_gpu():
        text = f"{torch.__version__}, {os.cpu_count()} cores, no GPU"
        if shutil.which("nvidia-smi") is None:
            yield _found("torch", text)
        else:
            fix = "if this machine has one, repair its driver first"
            yield _found("torch", f"{text} (nvidia-smi -L lists none)", Severity.NOTE, fix)
    elif hidden is not None and hidden.strip() in ("", "-1"):
        text = f"{torch.__version__}, {os.cpu_count()} cores; CUDA_VISIBLE_DEVICES={hidden!r} hides the GPUs"
        yield _found("torch", text, Severity.NOTE, "unset CUDA_VISIBLE_DEVICES to use them")
    else:
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        fix = "install the build of torch for this driver: docs/install.md#cuda-torch-and-drivers"
        fix = f"correct CUDA_VISIBLE_DEVICES={hidden}, or {fix}" if hidden and torch.version.cuda else fix
        yield _found("torch", f"{torch.__version__} sees no GPU, {built}", Severity.PROBLEM, fix)


def _lists_gpu() -> bool:
    """Whether NVIDIA's driver lists a GPU, also one that is hidden from this process."""
    return _said_by_driver("-L").startswith("GPU ")


def _said_by_driver(*options: str) -> str:
    """Return what nvidia-smi prints; nothing where it is not installed or fails."""
    asked = ["nvidia-smi", *options]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""


def _driver(config: Config) -> Iterator[Finding]:
    """NVIDIA's, where there is one: vLLM's wheels need a new one."""
    driver = _said_by_driver("--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0].strip()
    if not driver.partition(".")[0].isdecimal():
        return
    major = int(driver.partition(".")[0])
    if major >= CUDA_13_DRIVER:
        yield _found("driver", f"NVIDIA {driver}")
        return
    text = f"NVIDIA {driver}; ramet[vllm] is built for CUDA 13, which needs {CUDA_13_DRIVER} or later"
    wanted = config.engine.name == "vllm"
    fix = "update the driver of this machine (docs/install.md#cuda-torch-and-drivers)"
    yield _found("driver", text, Severity.PROBLEM if wanted else Severity.NOTE, fix)


def _engine(config: Config) -> Iterator[Finding]:
    name = config.engine.name
    if name not in ("vllm", "torch") or importlib.util.find_spec("torch") is None:
        return
    from ramet.components.engines import check_engine

    for problem in check_engine(config):
        yield _found("engine", problem, Severity.PROBLEM, "see docs/engines.md")
    if _installed("vllm") is None and name != "vllm":
        yield _found(
            "vllm", "not installed; engine=torch works", Severity.NOTE, "with a GPU: pip install 'ramet[vllm]'"
        )
    elif _installed("vllm") is not None:
        yield _found("vllm", str(_installed("vllm")))


def _ray(config: Config) -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is not None:
        from ramet.cluster.check import check_cluster

        for problem in check_cluster(config):
            yield _found("cluster", problem, Severity.PROBLEM, "see docs/scaling.md")
    if _installed("ray") is not None:
        yield _found("ray", str(_installed("ray")))
    elif config.cluster.name != "ray":
        yield _found("ray", "not installed; one process works", Severity.NOTE, "for clusters: pip install 'ramet[ray]'")


def _disk(what: str, folder: Path, key: str) -> Iterator[Finding]:
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        yield _found(what, f"{folder} cannot be written to", Severity.PROBLEM, f"set {key} to a folder that can")
        return
    free = shutil.disk_usage(folder).free
    text, little = f"{free / GIB:.0f} GiB free in {folder}", free < LITTLE_DISK
    fix = f"make room, or set {key} to a folder on a larger disk" if little else None
    yield _found(what, text, Severity.WARNING if little else Severity.OK, fix)


def _shared_memory(config: Config) -> Iterator[Finding]:
    """Ray keeps objects there, and so do several processes of vLLM and torch."""
    if not SHARED.is_dir():
        return
    total = shutil.disk_usage(SHARED).total
    little = total < LITTLE_SHARED
    needed = config.cluster.name == "ray" or config.engine.name == "vllm"
    severity = (Severity.WARNING if needed else Severity.NOTE) if little else Severity.OK
    fix = "start the container with --shm-size=8g (Kubernetes: an emptyDir of medium Memory)" if little else None
    yield _found("shared memory", f"{total / GIB:.1f} GiB in {SHARED}", severity, fix)


def _mcp_servers(config: Config) -> Iterator[Finding]:
    """Check the programs of servers without starting them: that may be slow, and a run begins with it."""
    servers = {name: tool.params for name, tool in config.tools.items() if isinstance(tool.params, McpConfig)}
    if servers and importlib.util.find_spec("mcp") is None:
        yield _found("mcp", "the package is not installed", Severity.PROBLEM, "pip install 'ramet[mcp]'")
    for name, options in servers.items():
        if options.command and shutil.which(options.command[0]) is None:
            text = f"there is no program {options.command[0]!r}"
            yield _found(f"tools.{name}", text, Severity.PROBLEM, f"install it, or correct tools.{name}.params.command")
