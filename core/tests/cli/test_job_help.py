from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest

from ramet.cli import main
from ramet.cli.job_help import keys
from ramet.plugins import load_plugins


@pytest.mark.parametrize("job", ["train", "sft", "eval"])
def test_the_help_of_a_job_lists_its_sections_with_types_and_defaults(job: str, capsys: pytest.CaptureFixture[str]):
    assert main([job, "--help"]) == 0
    out = capsys.readouterr().out
    assert "run.seed" in out and "int = 1" in out
    assert "model.path" in out and "str = required" in out
    assert ("rollout_step.params.think" in out) and "# a Hugging Face folder" in out
    assert ("train.minibatches" in out) == (job == "train")
    assert ("sft.lr" in out) == (job == "sft")
    assert ("  --show 3          print the first 3 sequences: what is trained and what is masked" in out) == (
        job == "sft"
    )


def test_the_help_lists_every_option_of_every_installed_plugin(capsys: pytest.CaptureFixture[str]):
    main(["train", "--help"])
    out = capsys.readouterr().out
    for entry in [*load_plugins().registries.branch_policies, *load_plugins().registries.tools]:
        assert f"  {entry.name}  — {entry.plugin} ({entry.distribution})" in out
        names = [f.name for f in dataclasses.fields(entry.config)] if entry.config else []
        assert all(f".params.{name} " in out or f".params.{name}." in out for name in names)  # options of options too


@dataclass(kw_only=True, slots=True)
class Options:
    most: int = 3  # as a comment
    least: int = field(default=1, metadata={"help": "as metadata"})
    path: str


def test_a_plugin_says_what_an_option_is_in_a_comment_or_in_the_fields_metadata() -> None:
    assert [" ".join(line.split()) for line in keys(Options, "params")] == [
        "params.most int = 3 # as a comment",
        "params.least int = 1 # as metadata",
        "params.path str = required",
    ]
