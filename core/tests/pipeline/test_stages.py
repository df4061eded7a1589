"""A pipeline's file: what each stage is given, and what is refused before anything is composed or run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.config.trust import trusting
from ramet.errors import ConfigError, ConfigErrors
from ramet.pipeline.check import check_pipeline
from ramet.pipeline.export import ExportRecord, is_exported
from ramet.pipeline.stages import Pipeline, pipelines, read_pipeline
from ramet.runs.manifest import make_manifest, write_manifest

TWO = """# SFT, then RL.
stages:
  sft: {job: sft, model.path: models/base, sft: {lr: 1e-5, data: [a.jsonl]}}
  rl:
    job: train
    model.path: ${stages.sft.model}
    data.train: ["${oc.env:TASKS}"]
    train.steps: 3
"""
EXPORTED = "  out:\n    job: export\n    run: ${stages.rl.run}\n"


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str, *words: str) -> Pipeline:
    file = Path("hydra_configs/pipeline/mine.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return read_pipeline("mine", words)


def problems(text: str, *words: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(text, *words)
    return raised.value.problems if isinstance(raised.value, ConfigErrors) else [str(raised.value)]


def test_a_stage_has_the_keys_of_the_file_then_those_that_were_typed_and_its_folder(workdir: Path) -> None:
    pipeline = read(TWO, "run.name=other", "run.seed=7", "rl:train.steps=5", "train.tasks_per_step=2")
    sft, rl = (stage.overrides(pipeline.handed_on) for stage in pipeline.stages)
    assert sft == [
        "model.path=models/base", "sft.lr=1e-05", "sft.data=['a.jsonl']", "run.seed=7", "run.root=runs/other",
        "run.name=sft",
    ]  # fmt: skip
    assert rl == [
        "model.path=runs/other/sft/model", "data.train=['${oc.env:TASKS}']", "train.steps=3", "run.seed=7",
        "train.steps=5", "train.tasks_per_step=2", "run.root=runs/other", "run.name=rl",
    ]  # fmt: skip
    assert [sorted(stage.sources) for stage in pipeline.stages] == [[], ["sft"]]


def test_pipelines_are_found_by_name_and_by_path(workdir: Path) -> None:
    assert read(TWO).folder == Path("runs/mine")
    assert [file.path for file in pipelines()["mine"]] == [workdir / "hydra_configs/pipeline/mine.yaml"]
    (workdir / "here.yaml").write_text(TWO)
    assert read_pipeline("./here.yaml", []).folder == Path("runs/here")
    with pytest.raises(ConfigError, match=r"no pipeline 'mime'\. Did you mean 'mine'\?"):
        read_pipeline("mime", [])
    with pytest.raises(ConfigError, match=r"no file './none\.yaml'"):
        read_pipeline("./none.yaml", [])


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("steps: {}", [], "must have one key, `stages`"),
        ("stages: {}", [], "at least one stage"),
        ("stages: [a]", [], "at least one stage"),
        ("stages: {a: train}", [], "not a mapping of keys: a"),
        ("{1: 2, a: 3}", [], "must have one key"),
        ("stages: {a: {job: trian}}", [], "stage a: job: 'trian'; allowed: sft, train, eval, export"),
        ("stages: {a.b: {job: sft}}", [], "stage a.b: a name has letters"),
        ("stages: {LOCK: {job: sft}}", [], "stage LOCK: a name has letters"),
        ("stages: {a: {job: export, run: runs/x}}", [], "has only exports"),
        ("stages: {a: &b {job: sft}, c: *b}", [], "has YAML aliases"),
        ("stages: {a: {job: sft, run.name: x}}", [], "stage a: run.name: the pipeline decides"),
        ("stages: {a: {job: sft, run: {root: x}}}", [], "stage a: run.root: the pipeline decides"),
        ("stages: {a: {job: sft, ++run.name: x}}", [], "stage a: '++run.name': must be a key"),
        ("stages: {a: {job: sft, run.seed: 1, run: {seed: 2}}}", [], "stage a: run.seed: is there more than once"),
        ("stages: {a: {job: sft, ++model.trust_remote_code: true}}", [], "'++model.trust_remote_code': must be a key"),
        (
            TWO.replace("train.steps: 3", "model: {trust_remote_code: true}"),
            [],
            "stage rl: model.trust_remote_code: a file",
        ),
        (TWO + EXPORTED + "    trust_remote_code: true\n", [], "stage out: trust_remote_code: a file"),
        (TWO + EXPORTED + "    dtype: float99\n", [], "stage out: dtype=float99: allowed: float32"),
        (TWO.replace("sft.model", "stf.model"), [], "${stages.stf.model}: no stage before it hands this on"),
        (TWO.replace("sft.model", "rl.model"), [], "${stages.rl.model}: no stage before it hands this on"),
        (TWO + "  out: {job: export, step: 3}\n", [], "stage out: step: an export reads run, dtype"),
        (TWO + "  out: {job: export}\n", [], "stage out: run: missing"),
        (TWO, ["x:train.steps=1"], "x:train.steps: no such stage; stages: sft (sft), rl (train)"),
        (TWO, ["evaluate.k=3"], "evaluate.k: no stage reads it"),
        (TWO, ["rl:run.root=x"], "stage rl: run.root: the pipeline decides"),
        (TWO, ["run.name=a/b"], "run.name=a/b: allowed"),
    ],
)
def test_a_mistake_names_the_stage_and_what_is_allowed(workdir: Path, text: str, words: list[str], said: str) -> None:
    assert any(said in problem for problem in problems(text, *words)), problems(text, *words)


CODE = """stages:
  sft:
    job: sft
    model.path: m
    sft.data: [a.jsonl]
    tools.clock.use: mcp
    tools: {clock: {params: {command: [sh, -c, touch RAN]}}}
    tools.clock.params.env.LD_PRELOAD: theirs.so
"""


def test_a_file_that_is_passed_on_lets_no_code_run_unless_it_is_trusted(workdir: Path) -> None:
    for typed in ([], ["sft:tools.clock.params.env={MINE: x}"]):  # a mapping is merged with the file's
        with pytest.raises(ConfigErrors) as raised:
            check_pipeline(read(CODE, *typed))
        [problem] = raised.value.problems
        assert problem.startswith("stage sft: hydra_configs/pipeline/mine.yaml: has a program or file of code run by ")
        assert "tools.clock.params.command" in problem and "tools.clock.params.env" in problem
    assert not Path("RAN").exists()
    with trusting([Path("hydra_configs/pipeline/mine.yaml")]), pytest.raises(ConfigErrors) as raised:
        check_pipeline(read(CODE))
    assert "has a program" not in str(raised.value) and "model.path" in str(raised.value)


def test_the_command_line_lets_a_models_code_run(workdir: Path) -> None:
    assert "model.trust_remote_code=true" in read(TWO, "sft:model.trust_remote_code=true").stages[0].overrides({})
    out = read(TWO + EXPORTED, "out:trust_remote_code=true").stages[-1]
    assert out.options({})["trust_remote_code"] is True


def test_a_key_without_a_stage_does_not_take_the_place_of_what_another_stage_hands_on(workdir: Path) -> None:
    pipeline = read(TWO, "model.path=models/mine")
    sft, rl = (stage.overrides(pipeline.handed_on) for stage in pipeline.stages)
    assert "model.path=models/mine" in sft and "model.path=models/mine" not in rl
    rl = read(TWO, "rl:model.path=models/mine").stages[1]
    assert "model.path=models/mine" in rl.overrides({}) and not rl.sources  # it need not wait for `sft` any more


def test_no_folder_and_no_export_of_the_user_is_taken(workdir: Path) -> None:
    pipeline = read(TWO + EXPORTED)
    mine = pipeline.folder / "LOCK"
    mine.parent.mkdir(parents=True)
    mine.write_text("a lock of mine")
    with pytest.raises(ConfigError, match=r"runs/mine has files that no pipeline has written \(LOCK\)"):
        check_pipeline(pipeline)
    assert mine.read_text() == "a lock of mine"

    mine.rename(pipeline.folder / "report.html")
    with pytest.raises(ConfigError, match=r"has files that no pipeline has written \(report\.html\)"):
        check_pipeline(pipeline)
    (pipeline.folder / "sft").mkdir()  # the report is of the pipeline's, whose lock was deleted
    with pytest.raises(ConfigErrors, match=r"stage rl: data\.train"):
        check_pipeline(pipeline)

    stage = pipeline.stages[-1]
    assert not is_exported(stage, {"run": "runs/mine/rl"})
    stage.folder.mkdir()
    (stage.folder / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no pipeline made it"):
        is_exported(stage, {"run": "runs/mine/rl"})
    ExportRecord(run="x", model=None, dtype=None).write(stage.folder)
    assert not is_exported(stage, {"run": "runs/mine/rl"})  # begun, and not finished


def test_an_export_of_a_run_that_was_trained_further_is_not_taken_for_its_model(workdir: Path) -> None:
    stage = read(TWO + EXPORTED).stages[-1]
    run, options = stage.folder.with_name("rl"), {"run": "runs/mine/rl"}
    for folder in (run / "model", stage.model):
        folder.mkdir(parents=True)
    (run / "model/model.safetensors").write_text("after 3 steps")
    resolved = compose(["model.path=m", "data.train=[t]"], job="train")
    write_manifest(run / "manifest.json", make_manifest(resolved))
    replace(ExportRecord.of(options), finished=True).write(stage.folder)
    assert is_exported(stage, options)
    with pytest.raises(ConfigError, match=r"is finished, and runs/mine/out/model is the dtype .* to be bfloat16"):
        is_exported(stage, options | {"dtype": "bfloat16"})
    (run / "model/model.safetensors").write_text("after 9 steps")
    with pytest.raises(ConfigError, match=r"is finished, and runs/mine/out/model is .* with the model"):
        is_exported(stage, options)


def test_mistakes_in_keys_are_reported_of_all_stages(workdir: Path) -> None:
    with pytest.raises(ConfigErrors) as raised:
        check_pipeline(read(TWO, "sft:sft.lrr=1", "rl:train.steps=0", "rl:data.train=[t.jsonl]"))
    assert {problem.partition(":")[0] for problem in raised.value.problems} == {"stage sft", "stage rl"}
    assert not Path("runs").exists()
