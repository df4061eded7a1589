"""The 14 published benchmarks: their samples, the published files where they are, and what perturbed answers score."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import ConfigError, Task, user_prompt
from ramet.plugins import load_plugins
from ramet.testing.benchmark import check_benchmark
from ramet.types import Benchmark
from ramet_benchmarks import PUBLISHED
from ramet_benchmarks.config import JudgeConfig, PublishedConfig
from ramet_benchmarks.rows import SAMPLES

REAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "eval"
Scores = Callable[..., list[dict[str, float]]]
README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
FOLDERS = {
    "aime24": 30, "aime25": 30, "math500": 500, "gsm8k": 1319, "hotpotqa": 200, "two_wiki": 200, "bamboogle": 125,
    "webwalker": 200,
}  # fmt: skip
OWN_SCORERS = ("gsm8k", "gaia")
PERTURBED = re.findall(r"^\| (\w+) \| `(.+?)` \| (\w+) \| `(.+?)` \| ([a-z]\w* [\d.]+.*?) \|$", README, re.MULTILINE)
needs_rewards = pytest.mark.skipif(
    "qa_em" not in load_plugins().registries.rewards, reason="ramet-benchmarks[scorers] is not installed"
)


def names(*chosen: str) -> list[object]:
    return [pytest.param(name, marks=() if name in OWN_SCORERS else needs_rewards) for name in chosen or PUBLISHED]


def built(name: str, **options: object) -> Benchmark:
    benchmark: Benchmark = load_plugins().registries.benchmarks.get(name).build(PublishedConfig(**options))  # type: ignore[arg-type]
    return benchmark


@pytest.mark.parametrize("name", names())
def test_the_samples_keep_the_contract(name: str) -> None:
    benchmark = built(name)
    assert check_benchmark(benchmark, splits=["sample"], n_scored=None) == {"sample": 3}
    info = benchmark.info
    assert info.tools == ("python", "search") and info.limits == {"python": 5, "search": 10}
    assert info.contamination and info.source.startswith("https://") and (info.n_tasks or 0) >= 30
    assert "test" in info.splits and not info.judged


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/eval")
@pytest.mark.parametrize("name", names(*FOLDERS))
def test_the_published_files_are_read_and_every_gold_answer_of_them_is_right(name: str) -> None:
    benchmark = built(name, path=str(REAL))
    assert check_benchmark(benchmark, splits=["test"], n_scored=None) == {"test": FOLDERS[name]}
    assert benchmark.info.n_tasks == FOLDERS[name]


def test_every_benchmark_has_a_sample() -> None:
    assert {path.stem for path in SAMPLES.iterdir()} == set(PUBLISHED)


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/eval")
def test_the_samples_are_no_tasks_of_the_published_sets() -> None:
    """They are written for this package: no other author's questions are shipped."""
    published = "".join(path.read_text(encoding="utf-8") for path in REAL.rglob("*.jsonl"))
    for path in SAMPLES.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            assert json.dumps(row.get("question") or row.get("problem") or row["Question"]) not in published


@pytest.mark.parametrize("name", names("aime24", "gsm8k"))
def test_a_wrong_split_names_those_that_there_are(name: str) -> None:
    benchmark = built(name)
    with pytest.raises(ConfigError) as caught:
        benchmark.load("valid", None)
    assert str(caught.value) == f"benchmarks.{name} has no split 'valid'; allowed: {', '.join(benchmark.info.splits)}"


def test_a_package_without_the_rewards_says_what_to_install() -> None:
    code = (
        "from ramet.plugins import load_plugins\n"
        "from ramet import ConfigError\n"
        "entry = load_plugins().registries.benchmarks.get('aime24')\n"
        "try: entry.build()\n"
        "except ConfigError as error: print(error)\n"
    )
    environment = {"RAMET_BLOCK_PLUGINS": "rewards"} if "math" in load_plugins().registries.rewards else {}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "benchmarks.aime24 is scored by the reward 'math' of ramet-rewards" in done.stdout, done.stderr
    assert "(pip install 'ramet-benchmarks[scorers]'): rewards: no reward named 'math'" in done.stdout


@needs_rewards
def test_the_page_has_perturbed_answers_of_every_benchmark() -> None:
    assert {name for name, *_ in PERTURBED} == set(PUBLISHED)
    assert {what for _, _, what, _, _ in PERTURBED} == {"form", "unit", "order", "paraphrase", "sign", "language"}


@needs_rewards
@pytest.mark.parametrize("name", PUBLISHED)
def test_perturbed_gold_answers_score_what_the_page_says(name: str, scores: Scores) -> None:
    rows = [row for row in PERTURBED if row[0] == name]
    answers = [(_task(gold), answer) for _, gold, _, answer, _ in rows]
    measured = scores(built(name), *answers)
    found = [
        ", ".join(f"{metric} {value:.2f}".rstrip("0").rstrip(".") for metric, value in one.items()) for one in measured
    ]
    assert found == [said for *_, said in rows]


def _task(golds: str) -> Task:
    kind = "multipleChoice" if golds == "B" else "exactMatch"
    return Task(id="t", prompt=user_prompt("?"), answer=tuple(golds.split("` or `")), metadata={"answer_type": kind})


@needs_rewards
def test_a_letter_of_hle_is_that_of_a_choice_where_no_column_says_so(scores: Scores) -> None:
    letter, number = (Task(id="t", prompt=user_prompt("?"), answer=(gold,)) for gold in ("B", "12"))
    measured = scores(built("hle"), (letter, "B. Paris"), (letter, "C. Paris"), (number, "12.0"), (number, "13"))
    assert [score["em"] for score in measured] == [1.0, 0.0, 1.0, 0.0]


@needs_rewards
@pytest.mark.parametrize("name", ["webwalker", "gaia"])
def test_a_judge_is_the_main_metric_and_decides_plain_cases_without_being_asked(name: str) -> None:
    pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
    benchmark = built(name, judge=JudgeConfig(ask=True))
    assert benchmark.info.judged and benchmark.info.metrics[0] == "judge" and len(benchmark.info.metrics) > 1
    assert check_benchmark(benchmark, splits=["sample"], n_scored=None) == {"sample": 3}


@needs_rewards
def test_options_of_a_judge_are_those_of_llm_judge() -> None:
    pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
    judge = JudgeConfig(ask=True, max_tokens=4000, extra={"reasoning_effort": "low"})
    made = built("gaia", judge=judge).metrics.rewards["judge"].config  # type: ignore[attr-defined]
    assert (made.max_tokens, made.extra) == (4000, {"reasoning_effort": "low"})
    with pytest.raises(ConfigError, match=r"^benchmarks\.gaia\.params\.judge: reward 'llm_judge' .*: max_tokens .* 0$"):
        built("gaia", judge=JudgeConfig(ask=True, max_tokens=0))


def test_samples_have_gold_answers_of_all_kinds() -> None:
    rows = [json.loads(line) for path in SAMPLES.iterdir() for line in path.read_text(encoding="utf-8").splitlines()]
    assert {"int", "list", "str"} <= {type(row.get("answer")).__name__ for row in rows}
