"""Everything that can be known of all stages before the first begins, and which of them are finished.

A stage is finished if its last process has ended well, as its own manifest says, with the settings and the model that
it would have now. The model of a stage that is not finished is not there yet: what takes it is checked with the model
that this stage begins with, which has the same shape, tokenizer and chat template.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ramet.config.checks import check
from ramet.config.compose import compose
from ramet.config.hydra_adapter import parse
from ramet.config.keys import resume_of
from ramet.config.resolved import Resolved
from ramet.config.schema import ModelConfig
from ramet.config.trust import code_options, untrusted_file
from ramet.errors import ConfigError, MissingHere, collected, raise_all
from ramet.pipeline.export import RECORD, is_exported
from ramet.pipeline.stages import EXPORT, REPORT, Pipeline, Stage
from ramet.planning.run_plan import plan_run
from ramet.runs.hub_inputs import fetched, recorded_folder
from ramet.runs.manifest import MANIFEST, Manifest, make_manifest, model_files, model_sha256, read_run
from ramet.runs.own_files import LOCK, has_saved, is_lock
from ramet.runs.resume import RunState, check_resume, config_differences
from ramet.types.option import Resume

CHECKS = {"train": "ramet.train.prepare:prepare", "sft": "ramet.sft.prepare:check_sft",
          "eval": "ramet.evaluate.evaluation:prepare"}  # fmt: skip
PLANS = {"train": "ramet.train.dry_run:plan", "sft": "ramet.sft.dry_run:plan", "eval": "ramet.evaluate.dry_run:plan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPipeline:
    finished: frozenset[str]  # names of stages
    plans: tuple[str, ...]  # of a dry run


def check_pipeline(pipeline: Pipeline, *, dry_run: bool = False, on: str | None = None) -> CheckedPipeline:
    """Check all stages. `dry_run` plans those that are not finished, for the machine `on` or this one.

    Raises `ConfigErrors` with every problem found, each with its stage; mistakes in keys before torch is imported.
    """
    _check_folder(pipeline)
    composed: dict[str, Resolved] = {}
    _each(pipeline, lambda stage: _compose(pipeline, stage, composed))
    checks = _Checks(pipeline=pipeline, composed=composed, dry_run=dry_run, on=on)
    _each(pipeline, checks.add)
    return CheckedPipeline(finished=frozenset(checks.finished), plans=tuple(checks.plans))


def _each(pipeline: Pipeline, check_stage: Callable[[Stage], None]) -> None:
    """Check every stage. Problems of a model are reported for the first stage that has it."""
    problems: list[str] = []
    reported: set[str] = set()
    for stage in pipeline.stages:
        found: list[str] = []
        with collected(found):
            check_stage(stage)
        problems += [f"stage {stage.name}: {text}" for text in found if not (stage.sources and text in reported)]
        reported.update(found)
    raise_all(problems)


def _check_folder(pipeline: Pipeline) -> None:
    """Raise `ConfigError` for a folder with anything that no pipeline has written."""
    folder = pipeline.folder
    if (folder / MANIFEST).exists():
        raise ConfigError(f"run.name: {folder} is the directory of one run; choose another run.name")
    if folder.is_dir() and not is_lock(folder / LOCK):
        there, stages = {path.name for path in folder.iterdir()}, {stage.name for stage in pipeline.stages}
        written = stages | {REPORT} if there & stages else stages  # a lock may have been deleted, as its message says
        if foreign := sorted(there - written):
            raise ConfigError(
                f"run.name: {folder} has files that no pipeline has written ({foreign[0]}); choose another"
            )


def _compose(pipeline: Pipeline, stage: Stage, composed: dict[str, Resolved]) -> None:
    """Add the stage's configuration to `composed`. Raises `ConfigErrors` for problems of its values."""
    if stage.job == EXPORT:
        return
    resolved = compose(stage.overrides(pipeline.handed_on), job=stage.job, config_dir=pipeline.config_dir)
    problems = [problem for problem in check(resolved, stage.job) if not isinstance(problem, MissingHere)]
    if stage.job != "train" and resolved.config.run.out is not None:
        problems.append(f"run.out={resolved.config.run.out}: the pipeline decides where a stage writes; leave it out")
    raise_all([*_untrusted(pipeline, stage, resolved), *problems])
    composed[stage.name] = resolved


def _untrusted(pipeline: Pipeline, stage: Stage, resolved: Resolved) -> list[str]:
    """Return why the file may not name these programs: the user has to allow them, as in other recipes."""
    if not pipeline.is_users:
        return []
    settings = [parse(text) for text in stage.typed]
    typed = {setting.key_or_group for setting in settings if not isinstance(setting.value(), dict)}  # those are merged
    code = {
        key: named for key, named in code_options(resolved.components).items() if stage.sets(key) and key not in typed
    }
    return untrusted_file(pipeline.file.absolute(), code)


@dataclass(slots=True, kw_only=True)
class _Checks:
    pipeline: Pipeline
    composed: Mapping[str, Resolved]
    dry_run: bool
    on: str | None
    finished: set[str] = field(default_factory=set)
    plans: list[str] = field(default_factory=list)
    models: dict[str, ModelConfig] = field(default_factory=dict)  # models for the checks, in place of the stages' own

    def add(self, stage: Stage) -> None:
        """Check one stage, those before it being checked. Raises `RametError`."""
        waits = sorted(stage.sources - self.finished)
        if any(name not in self.models for name in waits):
            return  # that stage's own mistakes come first
        if waits and _has_begun(stage):
            raise ConfigError(
                f"{stage.folder} was made of what stage {waits[0]} had left, and that stage would run now: undo what "
                f"changed, delete {stage.folder}, or choose another run.name"
            )
        if stage.job == EXPORT:
            self._export(stage)
            return
        resolved = fetched(self._resolved(stage, waits), weights=self.on is None)
        finished = not waits and _is_finished(stage, resolved)
        self.models[stage.name] = resolved.config.model
        if finished:
            self._finish(stage)
        elif self.dry_run:
            self.plans.append(f"stage {stage.name}: {_function(PLANS[stage.job])(resolved, self.on)}")
        else:
            _function(CHECKS[stage.job])(resolved)
            raise_all(plan_run(resolved, _manifest(resolved)).problems)

    def _export(self, stage: Stage) -> None:
        options = stage.options(self.pipeline.handed_on)
        run = Path(str(options["run"]))
        stages = (earlier for earlier in self.pipeline.stages if earlier.name in stage.sources)
        source = next((earlier for earlier in stages if earlier.folder == run), None)
        if source is None:
            saved = read_run(run)
            job, model = saved.job, replace(saved.model, path=str(recorded_folder(saved.model.path)))
        else:
            job, model = source.job, self.models[source.name]
        if job == "eval":
            raise ConfigError(f"run: {run} is a `ramet eval` run, and only `ramet train` and `ramet sft` train a model")
        finished = is_exported(stage, options)
        self.models[stage.name] = model
        if finished:
            self._finish(stage)
        elif self.dry_run:
            self.plans.append(f"stage {stage.name}: ramet export would write {stage.model}/ of {run}")

    def _finish(self, stage: Stage) -> None:
        self.finished.add(stage.name)
        self.plans.append(f"stage {stage.name}: is finished, in {stage.folder}")

    def _resolved(self, stage: Stage, waits: list[str]) -> Resolved:
        """Return the configuration with existing models in place of those that later stages make."""
        if not waits:
            return self.composed[stage.name]
        handed_on = self.pipeline.handed_on
        there = {f"${{stages.{name}.model}}": self.models[name] for name in waits}
        paths = handed_on | {reference: model.path for reference, model in there.items()}
        resolved = compose(stage.overrides(paths), job=stage.job, config_dir=self.pipeline.config_dir)
        model, own = resolved.config.model, self.composed[stage.name].config.model.path
        for base in (base for reference, base in there.items() if handed_on.get(reference) == own):
            tokenizer, template = model.tokenizer or base.tokenizer, model.chat_template or base.chat_template
            model = replace(model, tokenizer=tokenizer, chat_template=template)
        return replace(resolved, config=replace(resolved.config, model=model))


def _function(name: str) -> Callable[..., object]:
    """Import a function of a job, which imports torch."""
    module, _, function = name.partition(":")
    imported: Callable[..., object] = getattr(importlib.import_module(module), function)
    return imported


def _has_begun(stage: Stage) -> bool:
    if stage.job == EXPORT:
        return (stage.folder / RECORD).exists()
    return (stage.folder / MANIFEST).exists() and has_saved(stage.folder, stage.job)


def _is_finished(stage: Stage, resolved: Resolved) -> bool:
    """Whether the stage need not run. Raises `ConfigErrors` if it is finished with other settings."""
    if not (stage.folder / MANIFEST).exists() or not stage.output.exists():
        return False
    old = RunState.read(stage.folder)
    if not old.manifest.attempts or old.manifest.attempts[-1].status != "done":
        return False
    new = RunState(config=resolved.text, manifest=_manifest(resolved))
    allow = resolved.config.run.allow_config_change
    raise_all(f"is finished, and {problem}" for problem in check_resume(old, new, allow=allow))
    changed = [key for key, _, _ in config_differences(old.config, new.config)]
    if stage.job == "eval":
        return not changed  # the job compares its results with the settings, and refuses or completes them
    return all(resume_of(key) is not Resume.SCHEDULE for key in changed)  # otherwise it is to become longer


def _manifest(resolved: Resolved) -> Manifest:
    """Return what the job would record, without its data: a stage that has begun compares its data as it starts."""
    is_there = all(path.exists() for path in model_files(resolved.config.model))
    return make_manifest(resolved, model=model_sha256(resolved) if is_there else None)
