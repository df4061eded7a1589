"""`import ramet`, `ramet --help` and `ramet plugins` load nothing heavy: they answer at once, on any laptop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "ray", "vllm", "transformers", "numpy", "accelerate", "pyarrow", "matplotlib", "aiohttp")
RUN = "from ramet.cli import main\ncode = main({arguments!r})\nassert code == 0, code"
CODE = {
    "import ramet": "import ramet",
    "ramet --help": RUN.format(arguments=["--help"]),
    "ramet --version": RUN.format(arguments=["--version"]),
    "ramet new --help": RUN.format(arguments=["new", "--help"]),
    "ramet plugins": RUN.format(arguments=["plugins"]),
    "ramet plugins --json": RUN.format(arguments=["plugins", "--json"]),
    "ramet train --help": RUN.format(arguments=["train", "--help"]),
    "ramet eval --help": RUN.format(arguments=["eval", "--help"]),
    "ramet play --help": RUN.format(arguments=["play", "--help"]),
    "ramet demo": RUN.format(arguments=["demo", "--fast"]),
    "ramet recipes": RUN.format(arguments=["recipes"]),
    "ramet completion --words train rollout.": RUN.format(arguments=["completion", "--words", "train", "rollout."]),
    "what ramet pipeline forks": "import ramet.pipeline.job\n"
    "from ramet.pipeline.stages import read_pipeline\nread_pipeline('quickstart', [])",
    "import ramet.testing": "from ramet.testing import check_branch_policy, check_reward, check_tool, echo_tool",
}


@pytest.mark.parametrize("what", CODE)
def test_nothing_heavy_is_loaded_by(what: str, tmp_path: Path) -> None:
    probe = f"import sys\n{CODE[what]}\nloaded = [m for m in {HEAVY} if m in sys.modules]\nassert not loaded, loaded"
    ran = subprocess.run([sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


def test_the_command_is_installed_and_speaks(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("ramet")
    ran = subprocess.run([command, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "ramet" in ran.stdout and "plugins" in ran.stdout
