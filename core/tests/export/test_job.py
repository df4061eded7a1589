"""From a run directory to a Hugging Face folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ramet.cli import main
from ramet.config.schema import Dtype
from ramet.errors import ConfigError, InfraError
from ramet.export import job
from ramet.export.check import LONGEST, Comparison, SampleSequence, different_weights, logprobs, recorded_sequences
from ramet.export.job import export_run
from ramet.policy.checkpoint.state import Progress, stage_state, write_state
from ramet.policy.checkpoint.store import Checkpoints, CheckpointScore
from ramet.policy.host_memory import HostBuffers
from ramet.policy.lora import add_adapter, merged_weights
from ramet.runs.selection import Selection, read_selection


def test_the_newest_checkpoint_becomes_a_folder_that_transformers_loads(run, tmp_path: Path, policy: PreTrainedModel):
    exported = export_run(run, tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert different_weights(policy, loaded) == []
    assert (exported.dtype, exported.recorded) == (Dtype.FLOAT32, True)
    assert exported.source == run / "checkpoints" / "step_000002"
    assert exported.comparison.largest <= 1e-6
    assert (exported.comparison.n_sequences, exported.comparison.n_tokens) == (4, 16)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == {stat.S_IMODE((tmp_path / "out").stat().st_mode) & 0o666}  # another account can serve all of it


def test_tokenizer_chat_template_and_generation_config_come_along(run: Path, tmp_path: Path, base: Path):
    export_run(run, tmp_path / "out")
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path / "out"), AutoTokenizer.from_pretrained(base)
    message = [{"role": "user", "content": "2+2?"}]
    assert ours.apply_chat_template(message) == theirs.apply_chat_template(message)
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["top_p"] == 0.9 and generation["eos_token_id"] == theirs.eos_token_id


def test_the_chat_template_that_the_run_named_is_the_one_that_is_written(run: Path, tmp_path: Path):
    (tmp_path / "template.jinja").write_text("{{ messages[0]['content'] }}!")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("model:", f"model:\n  chat_template: {tmp_path / 'template.jinja'}"))
    export_run(run, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == "a!"


def test_bfloat16_holds_the_rounded_weights_and_says_how_far_they_are(run: Path, tmp_path: Path, policy):
    exported = export_run(run, tmp_path / "out", dtype=Dtype.BFLOAT16)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert loaded.dtype is torch.bfloat16
    assert all(torch.equal(t.bfloat16(), loaded.state_dict()[name]) for name, t in policy.state_dict().items())
    assert 0 < exported.comparison.largest < 0.1 and exported.comparison.read_back == 0.0


def test_rounding_refuses_nothing_however_far_it_moves_a_rare_token(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As with a pretrained model, whose rare tokens move by several nats."""
    found = []

    def of_a_sharp_model(model: Any, sequences: Any, temperature: float) -> torch.Tensor:
        found.append(logprobs(model, sequences, temperature) * (1 if model.dtype is torch.float32 else 10))
        return found[-1]

    monkeypatch.setattr(job, "logprobs", of_a_sharp_model)
    exported = export_run(run, tmp_path / "out", dtype=Dtype.BFLOAT16)
    assert exported.comparison.largest > 5 and exported.comparison.passed


def test_a_step_can_be_chosen(run: Path, tmp_path: Path, base: Path):
    exported = export_run(run, tmp_path / "out", step=1)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert different_weights(AutoModelForCausalLM.from_pretrained(base), loaded) == []
    assert not exported.recorded  # the only recorded rollouts are those of step 2


def test_the_best_checkpoint_brings_how_it_was_chosen(run: Path, tmp_path: Path) -> None:
    (run / "config.yaml").open("a").write("data:\n  valid: ['benchmark:sums/test', /home/me/own.jsonl]\n")
    for step, value in ((1, 0.75), (2, 0.5)):
        CheckpointScore(metric="valid/sums/accuracy", value=value).write(run / f"checkpoints/step_{step:06d}")
    export_run(run, tmp_path / "newest")
    assert read_selection(tmp_path / "newest") is None
    export_run(run, tmp_path / "best", step=1)
    assert read_selection(tmp_path / "best") == Selection(
        step=1, metric="valid/sums/accuracy", value=0.75, data=("benchmark:sums/test", "own.jsonl")
    )


def test_a_trained_adapter_is_merged_into_the_base(run: Path, tmp_path: Path, base: Path):
    pytest.importorskip("peft")
    model = add_adapter(AutoModelForCausalLM.from_pretrained(base), 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.1 * ("lora_B" in name))
    write = stage_state(
        model, torch.optim.AdamW([torch.zeros(1)]), Progress(), HostBuffers(pin=False), rank=0, world_size=1
    )
    Checkpoints(run / "checkpoints", keep=2).save(3, lambda folder: write_state(folder, write))
    export_run(run, tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    expected = dict(merged_weights(model))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    assert not torch.equal(
        loaded["model.layers.0.mlp.up_proj.weight"], model.get_submodule("model.layers.0.mlp.up_proj").weight
    )


def test_a_broken_newest_checkpoint_is_passed_over_and_refused_when_it_is_asked_for(run: Path, tmp_path: Path):
    (run / "checkpoints" / "step_000002" / "__0_0.distcp").write_bytes(b"cut")
    assert export_run(run, tmp_path / "out").source.name == "step_000001"
    with pytest.raises(ConfigError, match=r"no complete checkpoint of step 2; .*__0_0\.distcp"):
        export_run(run, tmp_path / "other", step=2)
    with pytest.raises(ConfigError, match=r"step 7: no such checkpoint .*; there: 1, 2"):
        export_run(run, tmp_path / "other", step=7)
    assert not (tmp_path / "other").exists()


def test_what_a_run_under_way_is_writing_is_left_alone(run: Path, tmp_path: Path):
    (writing := run / "checkpoints" / ".tmp_step_000003_1").mkdir()
    export_run(run, tmp_path / "out")
    assert writing.is_dir()


def test_the_base_model_may_have_moved(run: Path, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(base), "models/gone"))
    with pytest.raises(ConfigError, match=r"model\.path: models/gone has no config\.json .*by --model"):
        export_run(run, tmp_path / "out")
    moved = shutil.copytree(base, tmp_path / "moved", ignore=shutil.ignore_patterns("*.safetensors"))
    export_run(run, tmp_path / "out", model=Path(moved))
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_another_architecture_is_refused_with_the_shapes(run: Path, tmp_path: Path, base: Path):
    other = Path(shutil.copytree(base, tmp_path / "other"))
    values = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(values | {"intermediate_size": 44}))
    with pytest.raises(ConfigError, match=r"6 shapes do not fit .*config\.json: .*\[60, 32\], must be \[44, 32\]"):
        export_run(run, tmp_path / "out", model=other)


def test_a_generation_config_that_contradicts_itself_is_named(run: Path, tmp_path: Path, base: Path):
    other = Path(shutil.copytree(base, tmp_path / "other"))
    (other / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.7}')
    with pytest.raises(ConfigError, match=r"generation_config\.json: transformers does not write .*temperature"):
        export_run(run, tmp_path / "out", model=other)


def test_a_folder_that_holds_something_is_never_touched(run: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_run(run, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_an_empty_folder_is_filled(run: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    export_run(run, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_file()


def test_only_a_training_run_has_a_policy(run: Path, tmp_path: Path, set_job: Callable[[Path, str], None]):
    set_job(run, "eval")
    with pytest.raises(ConfigError, match="is a `ramet eval` run"):
        export_run(run, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"not a run directory: it has no config\.yaml and no manifest\.json"):
        export_run(tmp_path, tmp_path / "out")


def test_a_folder_that_answers_differently_is_not_left_behind(run: Path, tmp_path: Path, monkeypatch):
    """A chat model whose positions are encoded otherwise has the same weights and other log-probabilities."""
    load = job.load_model

    def load_changed(config):
        file = Path(config.path) / "config.json"
        values = json.loads(file.read_text())
        values["rope_parameters"]["rope_theta"] = 2.0
        file.write_text(json.dumps(values))
        return load(config)

    monkeypatch.setattr(job, "load_model", load_changed)
    with pytest.raises(InfraError, match=r"not written: read back, .* differ by up to .* at most 1e-05"):
        export_run(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_weights_that_come_back_otherwise_are_not_left_behind(run: Path, tmp_path: Path, monkeypatch):
    load = job.load_model

    def load_changed(config):
        model = load(config)
        with torch.no_grad():
            model.get_input_embeddings().weight[271, 0] += 1e-6
        return model

    monkeypatch.setattr(job, "load_model", load_changed)
    with pytest.raises(InfraError, match=r"2 weights differ, such as lm_head\.weight"):
        export_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_comes_back_otherwise_is_not_left_behind(run: Path, tmp_path: Path, monkeypatch):
    load = job.load_tokenizer

    def load_changed(config):
        tokenizer = load(config)
        if Path(config.path).parent == tmp_path:
            tokenizer.add_tokens(["naïve"])
        return tokenizer

    monkeypatch.setattr(job, "load_tokenizer", load_changed)
    with pytest.raises(InfraError, match="read back, the tokenizer makes other tokens"):
        export_run(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_folder_without_its_card_is_not_left_behind(run: Path, tmp_path: Path, monkeypatch):
    """A card that cannot be written, or a kill there, would leave a folder that no export writes into again."""

    def full(folder: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(job, "write_card", full)
    with pytest.raises(InfraError, match=r"out: not written: .*No space left"):
        export_run(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_nan_does_not_pass():
    nan = Comparison(n_sequences=1, n_tokens=1, largest=0.0, mean=0.0, read_back=float("nan"), threshold=1.0)
    assert not nan.passed


def test_recorded_sequences_compare_what_was_sampled(run: Path):
    found = recorded_sequences(run, 2)
    assert found[0] == SampleSequence(ids=[258, 63, 257, 65, 70, 71, 257], sampled=[3, 4, 5, 6])
    assert all(len(one.ids) <= LONGEST for one in found) and recorded_sequences(run, 1) == []


def test_the_command_says_what_it_wrote_and_how_far_it_is(run: Path, tmp_path: Path, capsys):
    assert main(["export", str(run), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    out = capsys.readouterr().out
    assert "parameters in bfloat16, from" in out and "step_000002, rounded to bfloat16" in out
    assert "log-probabilities of 16 tokens in 4 recorded sequences: largest difference" in out


def test_the_command_ends_with_2_if_the_folder_is_not_the_policy(run: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setitem(job.compare.__globals__["THRESHOLDS"], Dtype.BFLOAT16, -1.0)
    assert main(["export", str(run), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 2
    assert "error: " in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/x"], "give a run and the folder to write"),
        (["nowhere", "out"], "no run 'nowhere'"),
        (["a", "b", "--from-verl", "--step", "1"], "--step chooses a checkpoint of a run"),
        (["a", "b", "--dtype", "float16"], "invalid choice: 'float16'"),
    ],
)
def test_mistakes_in_the_arguments_are_named(arguments: list[str], message: str, capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_the_help_shows_both_uses(capsys: pytest.CaptureFixture[str]):
    assert main(["export", "--help"]) == 0
    out = capsys.readouterr().out
    assert "ramet export RUN DIR" in out and "ramet export --from-verl SHARDS DIR" in out


def test_what_lies_where_the_export_once_wrote_first_is_kept(run: Path, tmp_path: Path):
    taken = tmp_path / f".out.{os.getpid()}.tmp"
    taken.mkdir()
    (taken / "thesis.tex").write_text("precious")
    export_run(run, tmp_path / "out")
    assert (taken / "thesis.tex").read_text() == "precious"


HOSTILE = """
from pathlib import Path
from transformers import Qwen2Config
Path({mark!r}).touch()
class Config(Qwen2Config):
    model_type = "hostile"
"""


@pytest.fixture
def hostile(run: Path, base: Path, tmp_path: Path) -> Path:
    """A run that somebody gave away: its model brings code, and its configuration says that the code may run."""
    mark = tmp_path / "it_ran"
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "hostile", "auto_map": {"AutoConfig": "hostile.Config"}}
    given = tmp_path / "base"
    shutil.copytree(base, given)
    (given / "config.json").write_text(json.dumps(config))
    (given / "hostile.py").write_text(HOSTILE.format(mark=str(mark)))
    file = run / "config.yaml"
    text = file.read_text().replace(f"path: {base}", f"path: {given}")
    file.write_text(text.replace("model:", "model:\n  trust_remote_code: true"))
    return mark


def test_a_run_that_was_given_runs_no_code(
    run: Path, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["export", str(run), str(tmp_path / "out")]) == 1
    assert not hostile.exists()
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'base'} brings Python code of its own; read that, and give --trust-remote-code to let it "
        "run\n"
    )


def test_the_command_line_may_let_the_code_of_a_run_run(run: Path, hostile: Path, tmp_path: Path):
    main(["export", str(run), str(tmp_path / "out"), "--trust-remote-code"])
    assert hostile.exists()
