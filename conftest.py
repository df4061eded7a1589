"""Files whose tests take longest come first, so that two workers end at about the same time (`--dist loadfile`)."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
LONGEST = (
    "tests/e2e/test_ray.py",
    "core/tests/sft/test_ranks_deepspeed.py",
    "tests/test_wheels.py",
    "core/tests/engines/test_vllm_parallel.py",
    "tests/faults/test_ray_faults.py",
    "core/tests/sft/test_ranks.py",
    "core/tests/cluster/test_ray_place.py",
    "core/tests/cluster/test_ray_rollouts.py",
    "tests/e2e/test_published_data.py",
    "tests/e2e/test_deterministic.py",
    "tests/e2e/test_signals.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {str(ROOT / file): rank for rank, file in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(str(item.path), len(ranks)))
