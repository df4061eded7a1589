"""Files whose tests take longest come first, so that two workers end at about the same time (`--dist loadfile`).

Their tests are marked `slow`, which `make light` leaves out. At the end one line counts the tests that were skipped
because published data is not next to the checkout.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
LONGEST = (  # each takes about ten seconds or more
    "tests/e2e/test_ray.py",
    "tests/e2e/test_ray_agent.py",
    "tests/e2e/test_ray_release.py",
    "core/tests/sft/test_torchrun.py",
    "tests/test_wheels.py",
    "tests/test_recipes.py",
    "core/tests/engines/test_vllm_parallel.py",
    "core/tests/engines/test_vllm_engine.py",
    "tests/e2e/test_vllm_serve.py",
    "tests/faults/test_judge.py",
    "tests/faults/test_ray_faults.py",
    "core/tests/sft/test_ranks.py",
    "core/tests/cluster/test_ray_backend.py",
    "core/tests/cluster/test_ray_rollouts.py",
    "tests/e2e/test_published_data.py",
    "tests/e2e/test_quickstart.py",
    "tests/e2e/test_recipe_twins.py",
    "tests/e2e/test_smollm2.py",
    "tests/test_docs_site.py",
    "tests/e2e/test_real_quickstart.py",
    "tests/test_real_quickstart.py",
    "tests/e2e/test_deterministic.py",
    "tests/e2e/test_signals.py",
    "core/tests/cli/test_sweep.py",
    "core/tests/policy/test_ulysses.py",
    "core/tests/cluster/test_ray_limits.py",
    "core/tests/cluster/test_weight_transfers.py",
    "core/tests/engines/test_vllm_recorder.py",
    "core/tests/sft/test_job.py",
    "core/tests/policy/test_critic.py",
    "core/tests/policy/test_state.py",
    "tests/faults/test_resume.py",
    "tests/e2e/test_sweep.py",
    "tests/e2e/test_hub.py",
    "tests/test_bench_gpu.py",
    "tests/test_bench_branching.py",
    "core/tests/policy/test_ranks.py",
    "core/tests/policy/test_sharding.py",
    "core/tests/policy/test_shared_ranks.py",
    "core/tests/policy/test_worker_shared.py",
    "core/tests/train/test_validation.py",
    "tests/e2e/test_all_benchmarks.py",
    "core/tests/evaluate/test_evaluation.py",
    "core/tests/evaluate/test_openai_evaluation.py",
    "core/tests/planning/test_memory_traced.py",
    "core/tests/check/test_logprobs.py",
    "core/tests/report/test_browser.py",
    "core/tests/train/test_loop.py",
    "core/tests/train/test_algorithms.py",
    "plugins/rewards/tests/test_math.py",
    "core/tests/engines/test_torch_engine.py",
    "core/tests/models/test_encoder.py",
    "plugins/rewards/tests/test_answers.py",
    "plugins/rewards/tests/test_custom.py",
    "tests/faults/test_search_faults.py",
    "plugins/tools_bing/tests/test_cache_processes.py",
    "plugins/tools_bing/tests/test_fetch.py",
    "tests/test_tool_security.py",
    "plugins/aepo/tests/test_training.py",
    "plugins/release/tests/test_training.py",
    "plugins/tools_python/tests/test_hostile.py",
    "tests/test_docs_mistakes.py",
    "core/tests/check/test_vllm.py",
    "core/tests/cli/test_completion.py",
    "core/tests/sft/test_trainer.py",
    "core/tests/tracking/test_wandb.py",
    "core/tests/testing/test_check_rollout_step.py",
    "core/tests/cluster/test_ray_session.py",
    "core/tests/sft/test_launch.py",
    "core/tests/api/test_api.py",
    "core/tests/rollout/test_mcp.py",
    "core/tests/train/test_hermes.py",
    "core/tests/components/test_checks.py",
    "core/tests/components/test_prompts.py",
    "core/tests/config/test_provenance.py",
    "core/tests/policy/test_models.py",
    "plugins/benchmarks/tests/test_benchmarks_command.py",
    "plugins/tools_python/tests/test_kept_states.py",
    "plugins/tools_python/tests/test_limits.py",
    "plugins/tools_python/tests/test_recovery.py",
)


@pytest.fixture(autouse=True)
def same_log_level() -> Iterator[None]:
    """The command line sets the level of Ramet's log, which later tests in the same process would see."""
    log = logging.getLogger("ramet")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """`ramet.testing.registered`, until the test ends."""
    from ramet.testing import registered

    with ExitStack() as stack:
        yield lambda *given, **options: stack.enter_context(registered(*given, **options))


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own, of 64 MB, that can be filled and made read-only."""

    folder: Path

    @property
    def ballast(self) -> Path:
        return self.folder / "ballast"

    def fill(self) -> None:
        """Until nothing more fits."""
        with self.ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError:
                return

    def make(self, access: str) -> None:
        """`ro` or `rw`."""
        subprocess.run(["mount", "-o", f"remount,{access}", str(self.folder)], check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the command mount")
    if mounted.returncode:
        pytest.skip("needs the right to mount a disk")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--published", action="store_true", help="only tests that need published data in ../shared")
    parser.addoption("--all-recipes", action="store_true", help="a tiny twin of every recipe, not of each kind of job")


def needs_published(item: pytest.Item) -> bool:
    return any("../shared" in mark.kwargs.get("reason", "") for mark in item.iter_markers("skipif"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--published"):
        config.hook.pytest_deselected(items=[item for item in items if not needs_published(item)])
        items[:] = [item for item in items if needs_published(item)]
    if not config.getoption("--all-recipes"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("recipes")])
        items[:] = [item for item in items if not item.get_closest_marker("recipes")]
    ranks = {str(ROOT / file): rank for rank, file in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(str(item.path), len(ranks)))
    for item in items:
        if str(item.path) in ranks:
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With xdist the reports of all workers are here too."""
    missing: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = re.fullmatch(r"Skipped: needs (\.\./shared/\S+)", str(report.longrepr[2]))
        if reason:
            missing[f"{reason[1]} for {Path(report.nodeid.partition('::')[0]).name}"] += 1
    if missing:
        named = ", ".join(f"{what} ({n})" for what, n in sorted(missing.items()))
        terminalreporter.write_line(f"skipped for want of ../shared: {missing.total()} tests, which need {named}")
