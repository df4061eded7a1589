from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ramet.config.resolved import Resolved
from ramet.config.schema import Config, RolloutStepConfig
from ramet.errors import ConfigError, ConfigErrors
from ramet.rollout.config import TagsConfig
from ramet.sft.prepare import prepare

TRACE = "<think>6*7</think><answer>42</answer>"


def row(reply: str = TRACE) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": "6*7?"}, {"from": "gpt", "value": reply}]}


def resolved(config: Config) -> Resolved:
    return Resolved(job="sft", config=config, text="", overrides=[], set_by_user=frozenset())


def configured(model: Path, folder: Path, *rows: dict[str, Any]) -> Resolved:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    config = Config(rollout_step=RolloutStepConfig(params=TagsConfig()))
    config.model.path = str(model)
    config.sft.data = [str(file)]
    return resolved(config)


def test_rows_become_examples_with_the_steps_system_prompt(tiny_model: Path, tmp_path: Path) -> None:
    prepared = prepare(configured(tiny_model, tmp_path, row(), row()))
    text = prepared.tokenizer.decode(prepared.examples[0].token_ids)
    assert "Solve the task step by step." in text
    assert text.endswith(TRACE + prepared.tokenizer.eos_token)
    assert (prepared.rows, prepared.too_long, prepared.unread, len(prepared.examples)) == (2, 0, 0, 2)
    learned = prepared.tokenizer.encode(TRACE, add_special_tokens=False)
    assert prepared.trained_tokens == 2 * (len(learned) + 1)


def test_rows_over_the_token_limit_are_left_out_and_counted(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tiny_model, tmp_path, row(), row("x" * 3000), row("y" * 4000))
    config.config.sft.max_tokens = 2000
    with caplog.at_level(logging.WARNING):
        prepared = prepare(config)
    assert (prepared.rows, prepared.too_long) == (1, 2)
    assert "left out 2 of 3 rows longer than sft.max_tokens=2000" in caplog.text


def test_nothing_left_under_the_token_limit_is_an_error(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, row())
    config.config.sft.max_tokens = 20
    with pytest.raises(ConfigError, match=r"all 1 rows are longer than sft.max_tokens=20; longest: \d+"):
        prepare(config)


def test_results_of_tools_that_are_not_configured_are_reported(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = "<python>6*7</python> <result>\n42\n</result><answer>42</answer>"
    with caplog.at_level(logging.WARNING):
        prepared = prepare(configured(tiny_model, tmp_path, row(), row(trace)))
    assert prepared.unread == 1
    assert "train.jsonl, row 1. Name their tools in `tools`" in caplog.text


def test_everything_that_is_wrong_is_reported_together(tmp_path: Path) -> None:
    config = configured(tmp_path / "no_model", tmp_path, {"conversations": []}, row(), {"x": 1})
    config.config.rollout_step.name = "tag"
    config.config.trackers = ["jsonlines"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    config.config.sft.out = str(tmp_path / "full")
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    text = str(caught.value)
    assert "model.path" in text
    assert "train.jsonl, row 0: 'conversations' is empty" in text
    assert "train.jsonl, row 2: no key 'conversations' or 'messages'; found x" in text
    assert "rollout_step: no rollout step named 'tag'. Did you mean 'tags'?" in text
    assert "trackers: no tracker 'jsonlines'. Did you mean 'jsonl'? Trackers: console, jsonl" in text
    assert f"sft.out: '{tmp_path / 'full'}' is there already, and not written by `ramet sft`; give a new folder" in text


def test_the_model_that_is_trained_is_never_overwritten(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, row())
    config.config.sft.out = str(tiny_model)
    with pytest.raises(ConfigErrors) as caught:
        prepare(config)
    assert caught.value.problems == [
        f"sft.out: '{tiny_model}' is model.path={tiny_model}; nothing of yours is overwritten, so name another path",
        f"sft.out: '{tiny_model}' is there already, and not written by `ramet sft`; give a new folder",
    ]


def test_an_output_that_cannot_be_made_is_found_before_the_training(tiny_model: Path, tmp_path: Path) -> None:
    config = configured(tiny_model, tmp_path, row())
    config.config.sft.out = str(tmp_path / "train.jsonl" / "model")
    with pytest.raises(ConfigErrors, match=r"train\.jsonl' is no folder that can be written to"):
        prepare(config)


def test_a_row_that_the_chat_template_refuses_is_named(tiny_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}")
    config = configured(tiny_model, tmp_path, {**row(), "system": "be brief"})
    config.config.model.chat_template = str(template)
    with pytest.raises(ConfigError, match=r"train\.jsonl, row 0: model\.chat_template: .*no system"):
        prepare(config)
