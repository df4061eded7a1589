"""Secrets are known by their names and by their looks, and no message or record shows the value of one."""

from __future__ import annotations

import pytest

from ramet.cli import main
from ramet.config.compose import compose
from ramet.config.secrets import hide, written_secrets
from ramet.errors import ConfigErrors

MODEL = "model.path=m"


@pytest.fixture(autouse=True)
def _of_this_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are remembered for the whole process: those of a test must not hide words of others."""
    monkeypatch.setattr("ramet.config.secrets._values", {})


ADVICE = (
    "a secret must not be written down, since configurations are recorded; put it into an environment variable and "
    "write {0}='${{oc.env:VARIABLE}}'"
)


@pytest.mark.parametrize(
    "text",
    [
        "https://user:hunter2@example.org/v1",
        "postgres://me:p%40ss@db/x",
        "https://0123456789abcdef0123@errors.example.org/1",
        "https://example.org/v1?api_key=0123456789abcdef",
        "https://example.org/blob?sv=1&sig=0123456789abcdef",
        "sk-proj-0123456789abcdefghijklmn",
        "hf_0123456789abcdefghijklmnopqrstuvwx",
        "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
        "AKIA0123456789ABCDEF",
    ],
)
def test_a_secret_is_known_by_its_looks_under_any_name(text: str):
    assert list(written_secrets([("engine.params.base_url", text)])) == [
        f"engine.params.base_url: {ADVICE.format('engine.params.base_url')}"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/v1",
        "http://127.0.0.1:8000/v1",
        "https://user:${oc.env:PASSWORD}@example.org/v1",
        "${oc.env:URL}",
        "me@example.org:8080",
        "sk-learn",
        "runs/hf_model",
        "https://example.org/?q=key",
        "ssh://git@example.org/x.git",
        "https://first.last-of-all@example.org/v1",
        "https://host:8080/a@b",
    ],
)
def test_what_holds_no_secret_may_be_written(text: str):
    assert list(written_secrets([("engine.params.base_url", text)])) == []


def test_no_message_shows_a_value_that_came_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("RAMET_TEST_VALUE", "correct horse")
    assert main(["train", "--cfg", "job", MODEL, "train.steps=${oc.env:RAMET_TEST_VALUE}"]) == 1
    err = capsys.readouterr().err
    assert "correct horse" not in err
    assert "train.steps" in err and "${oc.env:RAMET_TEST_VALUE}" in err


def test_passwords_and_known_values_are_hidden_in_any_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAMET_TEST_JUDGE_KEY", "tiny")
    monkeypatch.setenv("RAMET_TEST_SHORT", "cpu")
    compose([MODEL, "run.root=${oc.env:RAMET_TEST_JUDGE_KEY}", "model.device=${oc.env:RAMET_TEST_SHORT}"], job="train")
    assert hide(
        "401 for tiny on cpu: https://me:swordfish@example.org/?token=0123456789ab&x=1, sk-0123456789abcdefghijkl"
    ) == ("401 for ${oc.env:RAMET_TEST_JUDGE_KEY} on cpu: https://me:***@example.org/?token=***&x=1, ***")


def test_a_configuration_with_a_password_in_a_url_is_refused():
    with pytest.raises(ConfigErrors) as caught:
        compose([MODEL, "run.root='https://me:hunter2@example.org/x'"], job="train")
    assert caught.value.problems == [f"run.root: {ADVICE.format('run.root')}"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:p@ss:w@rd@host/x", "https://me:***@host/x"),
        ("https://me:secret@[::1]:80/?a@b", "https://me:***@[::1]:80/?a@b"),
        ("http://a:1/x,http://b:2/@y", "http://a:1/x,http://b:2/@y"),
        ("[https://a:x@h,https://b:y@h]", "[https://a:***@h,https://b:***@h]"),
        ("https://0123456789abcdef0123@host/1", "https://***@host/1"),
    ],
)
def test_all_of_a_password_is_hidden_and_nothing_else(text: str, shown: str) -> None:
    assert hide(text) == shown
