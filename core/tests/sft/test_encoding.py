"""Many rows: encoded in several processes, and kept for the next run on the same rows."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.models.loading import load_tokenizer
from ramet.sft import encoding
from ramet.sft import prepare as prepare_module
from ramet.sft.encoding import encode_rows, identity_of
from ramet.sft.prepare import CheckedSft, check_data, prepare, trace_encoder


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Ten rows are many, for two processes with few rows at a time; the cache is the test's."""
    monkeypatch.setattr(encoding, "MANY", 10)
    monkeypatch.setattr(encoding, "CHUNK", 4)
    monkeypatch.setattr(encoding, "_workers", lambda: 2)
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    return tmp_path / "assets"


@pytest.fixture
def checked(sft_arguments: list[str]) -> CheckedSft:
    return check_data(compose(sft_arguments, job="sft"), [])


def test_processes_give_the_rows_in_their_order(sft_arguments: list[str], checked: CheckedSft, many: Path) -> None:
    config = compose(sft_arguments, job="sft").config
    encoder = trace_encoder(config, checked, load_tokenizer(config.model))
    rows = encode_rows(encoder, checked.conversations, None)
    assert rows == [list(encoder.examples(conversation)) for conversation in checked.conversations]
    assert len({row[0].where for row in rows}) == 50 and not many.exists()


def test_tokens_are_kept_and_taken_while_rows_and_settings_are_the_same(
    sft_arguments: list[str], many: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepared(*more: str) -> tuple[list[object], bool]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            examples = prepare(compose([*sft_arguments, *more], job="sft")).examples
        return list(examples), "are taken from" in caplog.text

    first, taken = prepared()
    [file] = many.rglob("*.npz")
    assert not taken
    assert prepared() == (first, True)
    assert prepared("sft.lr=1e-3", "sft.max_tokens=999")[1] is True
    other, taken = prepared("rollout_step.system_prompt=auto")
    assert not taken and other != first and len(list(many.rglob("*.npz"))) == 2
    assert prepared("sft.max_samples=20")[1] is False
    file.write_bytes(file.read_bytes()[:1000])
    assert prepared() == (first, False)
    left = file.with_name(f".{file.name}.0123.tmp")  # as a killed process leaves it
    left.write_bytes(b"")
    os.utime(left, (0, 0))
    monkeypatch.setattr(encoding, "KEPT", 2)  # what was used last
    assert prepared() == (first, True)
    assert file.exists() and len(list(file.parent.iterdir())) == 2 and not left.exists()
    monkeypatch.setattr(prepare_module, "code_hash", lambda module: f"changed {module}")
    assert prepared() == (first, False)


def test_tokens_that_the_encoder_would_not_make_now_are_not_taken(
    sft_arguments: list[str], checked: CheckedSft, many: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a change of a step's code that nothing in its configuration shows."""
    config = compose(sft_arguments, job="sft").config
    encoder = trace_encoder(config, checked, load_tokenizer(config.model))
    encode_rows(encoder, checked.conversations, "x")
    changed = compose([*sft_arguments, "rollout_step.system_prompt=auto"], job="sft").config
    encoder = trace_encoder(changed, checked, load_tokenizer(config.model))
    rows = encode_rows(encoder, checked.conversations, "x")
    assert "contains other tokens than these rows have now" in caplog.text
    assert rows == [list(encoder.examples(conversation)) for conversation in checked.conversations]
    caplog.clear()
    assert encode_rows(encoder, checked.conversations, "x") == rows
    assert "other tokens" not in caplog.text


def test_a_mistake_in_a_row_keeps_its_place(tiny_model: Path, tmp_path: Path, sft_arguments: list[str]) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% if messages[0].content == '30+30?' %}{{ raise_exception('not thirty') }}{% endif %}")
    with pytest.raises(encoding.ConfigError, match=r"row 31: model\.chat_template: .*not thirty"):
        prepare(compose([*sft_arguments, f"model.chat_template={template}"], job="sft"))


def test_the_identity_has_the_template_and_the_steps_options(sft_arguments: list[str]) -> None:
    def identity(*more: str) -> str | None:
        config = compose([*sft_arguments, *more], job="sft").config
        return identity_of(config, load_tokenizer(config.model))

    assert identity() == identity("sft.lr=1") is not None
    assert len({identity(), identity("rollout_step.params.answer=a"), identity("rollout_step.instruction=Hi")}) == 3


def test_few_rows_are_not_kept(sft_arguments: list[str], many: Path) -> None:
    assert len(prepare(compose([*sft_arguments, "sft.max_samples=9"], job="sft")).examples) == 9
    assert not many.exists()
