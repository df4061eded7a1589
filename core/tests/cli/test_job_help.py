from __future__ import annotations

import pytest

from ramet.cli import main
from ramet.cli.common_keys import COMMON, EXAMPLES

LINES, COLUMNS = 60, 100


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("job", COMMON)
def test_the_help_of_a_job_fits_a_screen_with_keys_presets_and_an_example(job: str, capsys: pytest.CaptureFixture[str]):
    lines = printed(capsys, job, "--help").splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    for key in COMMON[job]:
        assert any(line.startswith(f"  {key}=") for line in lines), key
    assert f"  {EXAMPLES[job][0]}" in lines
    assert any(line.startswith("experiment= ") for line in lines)
    assert any(line.startswith("algorithm= ") for line in lines) == (job == "train")
    assert any(line.startswith("  --show N ") for line in lines) == (job == "sft")


def test_keys_on_the_line_set_the_values_and_the_chosen_components(capsys: pytest.CaptureFixture[str]):
    assert "  train.minibatches=1 " in printed(capsys, "train", "--help")
    assert "  train.minibatches=16 " in printed(capsys, "train", "algorithm=grpo", "--help")
    page = printed(capsys, "train", "engine=vllm", "--help", "engine")
    assert "engine.params.tensor_parallel=1 " in page
    assert "(3 options: --help engine.torch)" in " ".join(page.split())


def test_a_section_lists_the_cores_keys_and_folds_what_is_not_chosen(capsys: pytest.CaptureFixture[str]):
    page = printed(capsys, "train", "--help", "tools")
    assert "  tools.NAME.retries=2 " in page
    assert "--help tools.mcp)" in " ".join(page.split()) and "tools.mcp.params.command" not in page
    assert "tools.mcp.params.command" in printed(capsys, "train", "--help", "tools.mcp")


def test_a_key_shows_its_type_range_default_and_other_names(capsys: pytest.CaptureFixture[str]):
    page = printed(capsys, "train", "policy.lr=1e-5", "--help", "policy.lr")
    assert page.splitlines()[:2] == ["policy.lr=1e-05", "  learning rate of AdamW"]
    facts = dict(line.split(maxsplit=1) for line in page.splitlines()[2:] if line and not line.startswith("  read by"))
    assert facts["type"] == "float" and facts["allowed"] == "at least 0" and facts["default"] == "1e-06"
    assert "learning_rate" in page
    assert printed(capsys, "train", "--help", "tools.python.retries").startswith("tools.python.retries=2\n")
    page = printed(capsys, "train", "tools=[mcp]", "tools.mcp.retries=5", "--help", "tools.mcp.retries")
    assert page.startswith("tools.mcp.retries=5\n")


def test_an_option_of_a_component_that_is_not_chosen_has_its_own_default(capsys: pytest.CaptureFixture[str]):
    page = printed(capsys, "train", "engine.params.slots=8", "--help", "engine.params.slots")
    slots = {block.split("option of")[1].split()[0]: block.split()[0] for block in page.split("\n\n") if block.strip()}
    assert slots == {
        "engine.openai": "engine.params.slots=256",
        "engine.torch": "engine.params.slots=8",
        "engine.vllm": "engine.params.slots=256",
    }


def test_any_other_word_is_searched_in_keys_texts_and_names_of_other_trainers(capsys: pytest.CaptureFixture[str]):
    assert "  policy.lora_rank=0 " in printed(capsys, "train", "--help", "LoRA")
    assert printed(capsys, "train", "--help", "learning_rate").startswith("  policy.lr=")
    assert "of advantage.gae]" in " ".join(printed(capsys, "train", "--help", "critic").split())


def test_all_shows_every_option_once(capsys: pytest.CaptureFixture[str]):
    lines = printed(capsys, "train", "--help", "all").splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert sum("a lost connection" in line for line in lines) == 1  # of every judge and server
    assert any(line.startswith("    policy_loss.params.clip_low=0.2 ") for line in lines)


@pytest.mark.parametrize(
    ("job", "word", "hint"),
    [
        ("train", "rewrads", "--help rewrads: no section, key, component or text has it. Did you mean 'rewards'"),
        ("train", "sft.lr", "--help sft.lr: `ramet train` has no section 'sft'; see `ramet sft --help sft.lr`"),
        ("eval", "policy", "--help policy: `ramet eval` has no section 'policy'; see `ramet train --help policy`"),
        ("eval", "rollout.temperature", "set evaluate.sampling.temperature"),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest(job: str, word: str, hint: str, capsys):
    assert hint in refused(capsys, job, "--help", word)


def test_presets_are_referred_to_their_commands(capsys: pytest.CaptureFixture[str]):
    assert "`ramet algorithms`" in printed(capsys, "train", "--help", "algorithm")
    assert "`ramet recipes`" in printed(capsys, "sft", "--help", "experiment")


def test_a_narrow_terminal_gets_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, printed(capsys, "train", "--help", "policy").splitlines())) <= 80


def test_keys_that_cannot_be_composed_are_errors_of_the_help_too(capsys: pytest.CaptureFixture[str]):
    assert "Did you mean 'grpo'" in refused(capsys, "train", "algorithm=GRPO", "--help")
