"""Held-out rows: their loss, the model of the lowest, early stopping, and a resume that changes none of it."""

from __future__ import annotations

import json
import random
import shutil
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ramet.config.compose import compose
from ramet.config.schema import Config
from ramet.errors import ConfigError, ConfigErrors
from ramet.export.job import export_run
from ramet.sft.checkpoints import chosen_checkpoint
from ramet.sft.encode import Example
from ramet.sft.prepare import prepare
from ramet.sft.trainer import VALID_CURVE, Trained, train
from ramet.tracking.jsonl import read_metrics


def example(seed: int, letters: str) -> Example:
    rng = random.Random(seed)
    ids = [ord(rng.choice(letters)) for _ in range(12)]
    return Example(token_ids=array("i", [*ids, *ids]), trained=array("b", [0] * len(ids) + [1] * len(ids)))


TRAINED = [example(seed, "abcd") for seed in range(24)]
HELD_OUT = [example(seed, "abcdefgh") for seed in range(100, 107)]  # of which a training on TRAINED knows half


def loss_of(model: torch.nn.Module, examples: Sequence[Example]) -> float:
    """The mean over trained tokens, from all logits of one sequence after another."""
    total, count = 0.0, 0
    with torch.no_grad():
        for one in examples:
            logprobs = model(torch.tensor([list(one.token_ids)])).logits.log_softmax(-1)[0]
            for position in range(1, len(one)):
                if one.trained[position]:
                    total -= logprobs[position - 1, one.token_ids[position]].item()
                    count += 1
    return total / count


def configured(**trainer: Any) -> Config:
    config = Config()
    config.run.seed = 7
    config.sft.lr, config.sft.sequences_per_step = 2e-2, 4
    config.sft.trainer = {"max_steps": 30, "logging_steps": 10, "save_steps": 1000, "eval_steps": 2, **trainer}
    return config


def trained(model: Path, run: Path, tracker: Any, config: Config) -> tuple[torch.nn.Module, Trained]:
    torch.set_num_threads(1)
    network, plain = (AutoModelForCausalLM.from_pretrained(model) for _ in range(2))
    result = train(network, TRAINED, config, run, tracker=tracker, valid=HELD_OUT)
    plain.load_state_dict(network.state_dict())  # whose forward pass is its own
    return plain, result


def test_the_model_of_the_lowest_held_out_loss_is_left(tiny_model: Path, tmp_path: Path, recorded: Any) -> None:
    network, result = trained(tiny_model, tmp_path, recorded, configured())
    losses = {step: one["sft/valid_loss"] for step, one in recorded.entries if "sft/valid_loss" in one}
    assert list(losses) == list(range(0, 31, 2))
    assert losses[0] == pytest.approx(loss_of(AutoModelForCausalLM.from_pretrained(tiny_model), HELD_OUT), rel=1e-5)
    best = min(list(losses)[1:], key=losses.__getitem__)
    assert 0 < best < 30, losses  # the training must go on after it for this test to say anything
    assert (result.best_step, result.steps) == (best, 30)
    assert result.valid_loss == losses[best]
    assert loss_of(network, HELD_OUT) == pytest.approx(losses[best], rel=1e-5)
    assert result.curves[VALID_CURVE] == ([float(step) for step in losses], list(losses.values()))
    assert chosen_checkpoint(tmp_path / "checkpoints").name == f"checkpoint-{best}"


def test_the_training_ends_when_the_held_out_loss_falls_no_more(
    tiny_model: Path, tmp_path: Path, recorded: Any
) -> None:
    _, whole = trained(tiny_model, tmp_path / "whole", recorded, configured())
    best = whole.best_step
    assert best is not None
    network, result = trained(tiny_model, tmp_path / "early", recorded, configured(early_stopping_patience=2))
    assert result.stopped is None
    assert (result.best_step, result.steps) == (best, best + 4)
    assert loss_of(network, HELD_OUT) == pytest.approx(result.valid_loss, rel=1e-5)


def test_a_resume_keeps_the_best_and_the_patience(tiny_model: Path, tmp_path: Path, recorded: Any) -> None:
    options = {"early_stopping_patience": 3, "save_steps": 1}
    network, whole = trained(tiny_model, tmp_path / "whole", recorded, configured(**options))
    assert whole.best_step is not None and whole.steps == whole.best_step + 6
    assert not (tmp_path / "whole/checkpoints" / f"checkpoint-{whole.steps}").exists()  # a resume would train on
    again = tmp_path / "again" / "checkpoints"
    again.mkdir(parents=True)
    for step in (whole.best_step, whole.steps - 1):  # the best, and the newest before the last evaluation
        shutil.copytree(tmp_path / "whole/checkpoints" / f"checkpoint-{step}", again / f"checkpoint-{step}")
    shutil.rmtree(tmp_path / "whole")  # whose paths the copies hold
    other, result = trained(tiny_model, tmp_path / "again", recorded, configured(**options))
    assert result.resumed_step == whole.steps - 1
    assert (result.best_step, result.steps, result.curves[VALID_CURVE]) == (
        whole.best_step, whole.steps, whole.curves[VALID_CURVE],
    )  # fmt: skip
    pairs = zip(network.state_dict().values(), other.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_a_share_of_the_rows_is_held_out_and_a_finished_run_is_known(
    sft_run: Callable[..., Path], sft_arguments: list[str], losses: Any
) -> None:
    more = ["sft.valid_share=0.2", "sft.lr=3e-2", "sft.epochs=40", "sft.trainer.early_stopping_patience=1"]
    more += ["sft.trainer.max_steps=null", "run.name=share"]
    run = sft_run("share", *more)
    summary = json.loads((run / "sft.json").read_text())
    assert (summary["rows"], summary["rows_held_out"]) == (40, 10)
    assert summary["steps"] < summary["planned_steps"] == 200
    measured = [one.step for one in read_metrics(run / "metrics.jsonl") if "sft/valid_loss" in one.metrics]
    assert measured == list(range(0, summary["steps"] + 1, 5))  # after each pass of 40 rows
    prepared = prepare(compose([*sft_arguments, *more], job="sft"))
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    assert loss_of(model, prepared.valid) == pytest.approx(summary["valid_loss"], rel=1e-4)
    before = (run / "model/model.safetensors").stat().st_mtime_ns
    sft_run("share", *more)
    assert (run / "model/model.safetensors").stat().st_mtime_ns == before


def test_what_a_killed_training_saved_can_be_exported(sft_run: Callable[..., Path], tmp_path: Path) -> None:
    run = sft_run("killed", "sft.trainer.max_steps=10", "sft.trainer.save_steps=4")
    shutil.rmtree(run / "model")
    (run / "sft.json").unlink()
    exported = export_run(run, tmp_path / "out")
    assert exported.source == run / "checkpoints/checkpoint-8"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    saved = AutoModelForCausalLM.from_pretrained(exported.source)
    pairs = zip(loaded.state_dict().values(), saved.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    templates = [AutoTokenizer.from_pretrained(one).chat_template for one in (tmp_path / "out", exported.source)]
    assert templates[0] == templates[1] is not None
    assert "ramet sft" in (tmp_path / "out/README.md").read_text()


def test_a_finished_training_is_exported_from_its_model(sft_run: Callable[..., Path], tmp_path: Path) -> None:
    run = sft_run("done", "sft.trainer.max_steps=3")
    exported = export_run(run, tmp_path / "out")
    assert exported.source == run / "model"
    assert (tmp_path / "out/model.safetensors").read_bytes() == (run / "model/model.safetensors").read_bytes()


def test_a_held_out_loss_that_is_no_number_leaves_no_model(tiny_model: Path, tmp_path: Path, recorded: Any) -> None:
    config = configured(max_steps=1, warmup_ratio=0.0, lr_scheduler_type="constant_with_warmup")
    config.sft.lr = 1e30
    with pytest.raises(ConfigError, match=r"^sft: the held-out loss is nan at step 1; "):
        trained(tiny_model, tmp_path, recorded, config)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["sft.trainer.eval_steps=5"], r"sft\.trainer\.eval_steps=5: has no effect without held-out rows"),
        (["sft.valid_share=1.0"], r"sft\.valid_share=1\.0: must be at least 0 and under 1"),
        (["sft.valid=[nowhere.jsonl]"], r"sft\.valid: nowhere\.jsonl"),
    ],
)
def test_what_cannot_be_held_out_is_refused(sft_run: Callable[..., Path], options: list[str], problem: str) -> None:
    with pytest.raises(ConfigErrors, match=problem):
        sft_run("wrong", *options)


def test_files_and_a_share_contradict_each_other(sft_run: Callable[..., Path], traces: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"sft\.valid_share=0\.1: sft\.valid names held-out files already"):
        sft_run("wrong", f"sft.valid=[{traces}]", "sft.valid_share=0.1")
