"""Launch scripts as readers of verl's documentation write them, with expectations that were written by hand.

Of `launches/NAME.sh`, `launches/NAME.yaml` says what our keys have to be. Shares are counted over all of them: recipes
that compose and plan as they are, and values that are right.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from ramet.api import compose
from ramet.cli import main
from ramet.config.trust import trusting

LAUNCHES = Path(__file__).with_name("launches")
NAMES = sorted(path.stem for path in LAUNCHES.glob("*.sh"))
TO_DECIDE = {"megatron_moe", "search_r1", "tools_hermes"}  # what their reader has to say is in the report
MODELS = ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2-7B-Instruct", "models/Qwen2.5-Math-7B",
          "models/tiny", "models/Llama-3.2-3B-Instruct", "Qwen/Qwen3-1.7B")  # fmt: skip
QWEN = {  # the form of the family, with few weights
    "model_type": "qwen2", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip
DATA = {  # file -> its rows and their data source
    "gsm8k/train": (4096, "openai/gsm8k"), "gsm8k/test": (60, "openai/gsm8k"),
    "math/train": (3000, "DigitalLearningGmbH/MATH-lighteval"), "math/test": (60, "DigitalLearningGmbH/MATH-lighteval"),
    "dapo-math-17k": (2048, "math_dapo"), "aime-2024": (30, "math_dapo"), "arpo/train": (640, "DR_grpo_mix"),
    "arpo/valid": (20, "DR_grpo_mix"), "mine/a": (200, "mine"), "mine/b": (120, "mine"),
    "searchR1_processed_direct/train": (3000, "searchR1_nq"), "searchR1_processed_direct/test": (60, "searchR1_nq"),
}  # fmt: skip

REWARD = "def score_it(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with models, data and the scripts, and all recipes that `ramet migrate` makes of them."""
    home = tmp_path_factory.mktemp("home")
    for name in MODELS:
        (home / name).mkdir(parents=True)
        (home / name / "config.json").write_text(json.dumps(QWEN))
    for name, (n, source) in DATA.items():
        file = home / "data" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"data_source": source, "kind": source, "prompt": [{"role": "user", "content": f"{name}: {i} + 1?"}],
             "reward_model": {"style": "rule", "ground_truth": str(i + 1)}}
            for i in range(n)
        ]  # fmt: skip
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    (home / "my_reward.py").write_text(REWARD)
    shutil.copytree(LAUNCHES, home / "scripts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.chdir(home)
        for name in (
            "WANDB_API_KEY",
            "MODEL_PATH",
            "NNODES",
            "N_GPUS",
            "CUDA_VISIBLE_DEVICES",
            "DEBUG",
            "SIZE",
            "RESUME",
        ):
            patch.delenv(name, raising=False)
        for name in NAMES:
            assert main(["migrate", "verl", f"scripts/{name}.sh"]) == 0
        yield home


def value_at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


def trusted(name: str, home: Path) -> list[Path]:
    """The recipe that the report tells a reader to trust, where it names code."""
    recipe = home / "hydra_configs" / "experiment" / f"{name}.yaml"
    return [recipe] if "rewards:\n  custom:" in recipe.read_text() else []


def wrong_values(name: str, home: Path) -> list[str]:
    """The keys that have another value than the expectation says."""
    expected = yaml.safe_load((LAUNCHES / f"{name}.yaml").read_text())
    text = json.dumps(expected).replace('"~/', f'"{home}/')
    with trusting(trusted(name, home)):
        config = compose([f"experiment={name}"]).config
    wrong = []
    for key, value in json.loads(text).items():
        found = value_at(config, key)
        found = list(found) if key in ("rewards", "tools") else found
        if found != value:
            wrong.append(f"{name}: {key} is {found!r}, not {value!r}")
    return wrong


def test_each_has_its_expectations() -> None:
    assert len(NAMES) == 22 and NAMES == sorted(path.stem for path in LAUNCHES.glob("*.yaml"))


def test_values_are_right(home: Path) -> None:
    """At least 95 in 100 of the values, of all scripts together."""
    n = sum(len(yaml.safe_load((LAUNCHES / f"{name}.yaml").read_text())) for name in NAMES)
    wrong = [problem for name in NAMES for problem in wrong_values(name, home)]
    assert len(wrong) <= 0.05 * n, f"{n - len(wrong)} of {n} values are right: {wrong}"
    assert n > 300


def test_most_recipes_plan_as_they_are(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At least 18 of 22, for the GPUs that the launch names; those to decide say what."""
    failed = {}
    for name in NAMES:
        with trusting(trusted(name, home)):
            gpus = compose([f"experiment={name}"]).config.cluster.policy_workers
            if main(["train", f"experiment={name}", "--dry-run", "--on", f"{gpus}x80GiB"]) != 0:
                failed[name] = capsys.readouterr().err
    assert len(failed) <= 4 and failed.keys() <= TO_DECIDE, f"{len(NAMES) - len(failed)} of {len(NAMES)} plan: {failed}"


@pytest.mark.parametrize("name", sorted(TO_DECIDE))
def test_what_is_to_decide_is_in_the_recipe(name: str, home: Path) -> None:
    text = (home / "hydra_configs" / "experiment" / f"{name}.yaml").read_text()
    decision = "not by megatron" if name == "megatron_moe" else "name the tools that the model may call"
    assert decision in text.partition("# To decide before the first run:")[2].partition("\n# Translated")[0]


def test_no_secret_of_a_config_file_is_written(home: Path) -> None:
    text = (home / "hydra_configs" / "experiment" / "arpo_reasoning.yaml").read_text()
    assert "not-for-anyone" not in text and "api_key=***" in text
    assert "set the variable BRIGHTDATA_API_KEY" in text
