"""Keys of the version before: the error for one says what to write, on the command line, in a file and in a sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.config.compose import compose
from ramet.config.gone import GONE, carried
from ramet.config.keys import ENTRIES, FIELDS
from ramet.errors import ConfigErrors

MODEL = "model.path=m"
Problems = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("job", "typed", "said"),
    [
        ("train", "train.max_bad_steps=5", "3 is in force, so leave it out"),
        ("train", "data.min_difficulty=2", "write data.difficulty.min=2"),
        ("train", "data.curriculum=true", "write data.order=curriculum"),
        ("train", "train.token_band=[0.5,5.0]", "write train.off_policy.token_band=[0.5,5.0]"),
        ("train", "train.kl_in=reward", "write train.kl_estimator=k1-reward"),
        ("train", "data.shuffle=true", "true is in force, so leave it out"),
        ("eval", "evaluate.temperature=0.7", "write evaluate.sampling.temperature=0.7"),
        ("eval", "evaluate.out=r.json", "write run.out=r.json"),
        ("sft", "sft.schedule=constant", "write sft.trainer.lr_scheduler_type=constant_with_warmup"),
    ],
)
def test_a_key_that_is_gone_leads_to_what_says_the_same(problems: Problems, job: str, typed: str, said: str) -> None:
    expected = f"{typed}: not a key any more (the last version with it was 0.1.0); {said}"
    assert problems(MODEL, typed, job=job) == [expected]


def test_a_file_with_one_is_refused_with_the_same_words(workdir: Path) -> None:
    path = workdir / "hydra_configs/experiment/old.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("# @package _global_\ntrain:\n  kl_horizon: 9\n")
    with pytest.raises(ConfigErrors, match=r"^train\.kl_horizon: not a key any more .*; 10000 is in force"):
        compose([MODEL, "experiment=old"], job="train")


def test_a_sweep_over_one_is_refused_before_its_first_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", MODEL, "train.kl_horizon=5,6"]) == 1
    assert "train.kl_horizon=5: not a key any more" in capsys.readouterr().err


def test_every_one_is_gone_and_leads_to_a_key_that_is_there() -> None:
    assert not [key for key in GONE if key in FIELDS]
    assert [one.now for one in GONE.values() if one.now is not None and one.now not in {*FIELDS, *ENTRIES}] == []


def test_recorded_keys_get_todays_names() -> None:
    old = {"sft.schedule": "constant", "sft.log_every": 10, "evaluate.top_p": 0.9, "wandb.mode": "auto", "run.seed": 3}
    assert carried(old) == {
        "sft.trainer.lr_scheduler_type": "constant_with_warmup", "evaluate.sampling.top_p": 0.9, "run.seed": 3,
    }  # fmt: skip
