"""A pipeline as its file and the command line write it: stages in order, each with what `ramet JOB` would be given.

```yaml
stages:
  sft: {job: sft, experiment: mine, model.path: models/base}
  rl: {job: train, experiment: mine, model.path: "${stages.sft.model}"}
```

A stage has the keys of the command line. `${stages.NAME.model}` is the model folder of a stage before it, and
`${stages.NAME.run}` its run directory. Other `${…}` are left to the configuration. The file may come from another
person: only the command line lets the code of a model run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramet.config.catalog import suggest
from ramet.config.checks import RUN_NAME, RUN_NAME_RULE
from ramet.config.hydra_adapter import (
    CHOSEN_FOLDER,
    OWN,
    ConfigFile,
    files_of,
    override,
    parse,
    register,
    running,
    shipped_recipes,
)
from ramet.config.keys import unused_key
from ramet.config.schema import Dtype, RunConfig
from ramet.errors import ConfigError, raise_all
from ramet.io.os_errors import os_error_text
from ramet.runs.manifest import BROKEN_CONFIG, read_values
from ramet.runs.own_files import LOCK

GROUP = "pipeline"  # folder of the search path
EXPORT = "export"
REPORT = "report.html"  # in the folder of the pipeline
HANDS_ON = {"sft": ("run", "model"), "train": ("run", "model"), "eval": ("run",), EXPORT: ("model",)}  # by job
TRUST_CODE = "trust_remote_code"
EXPORT_KEYS = ("run", "dtype", TRUST_CODE)
PLACES = ("run.root", "run.name")  # decided by the pipeline
KEY = re.compile(r"\w[\w.-]*")  # of a file; the marks of the command line, such as `+`, would hide which key it is
STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
PLAIN_NAME = re.compile(r"[\w-]+")
REFERENCE = re.compile(r"\$\{stages\.[^{}]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage. Its folder is a run directory; an export's has the model and a record."""

    name: str
    job: str  # train, sft, eval or export
    folder: Path
    written: Mapping[str, Any]  # keys of the file, dotted
    typed: tuple[str, ...]  # of the command line, which win

    @property
    def model(self) -> Path:
        """The Hugging Face folder that it leaves, if it does."""
        return self.folder / "model"

    @property
    def output(self) -> Path:
        """The output of a finished one."""
        return self.folder / "results.json" if self.job == "eval" else self.model

    @property
    def references(self) -> list[str]:
        """Each `${stages.…}` in its keys, once. Typed keys replace the file's."""
        typed = self.typed_keys
        written = [value for key, value in self.written.items() if key not in typed]
        return list(dict.fromkeys(REFERENCE.findall(f"{written} {self.typed}")))

    @property
    def sources(self) -> frozenset[str]:
        """Names of the stages that hand it something."""
        return frozenset(reference.split(".")[1] for reference in self.references)

    @property
    def typed_keys(self) -> list[str]:
        return [_key(text) for text in self.typed]

    def overrides(self, handed_on: Mapping[str, str]) -> list[str]:
        """Return what `ramet JOB` is given. `handed_on`: what each reference stands for."""
        written = [_override(key, _filled(value, handed_on)) for key, value in self.written.items()]
        typed = [str(_filled(text, handed_on)) for text in self.typed]
        return [*written, *typed, _override("run.root", str(self.folder.parent)), f"run.name={self.name}"]

    def options(self, handed_on: Mapping[str, str]) -> dict[str, Any]:
        """Return the options of an export. Raises `ConfigError` for what cannot be read."""
        typed = [parse(str(_filled(text, handed_on))) for text in self.typed]
        return {key: _filled(value, handed_on) for key, value in self.written.items()} | {
            setting.key_or_group: setting.value() for setting in typed
        }

    def sets(self, key: str) -> bool:
        """Whether the file sets this key, a part of it, or a section that it is in."""
        return any(f"{own}.".startswith(f"{key}.") or f"{key}.".startswith(f"{own}.") for own in self.written)

    def reads(self, key: str) -> bool:
        """Whether a typed key without a stage is for this one: not where the file takes it from another stage."""
        takes = REFERENCE.search(str(self.written.get(key)))
        return self.job != EXPORT and unused_key(key, self.job) is None and takes is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages that are run one after the other, below one folder."""

    file: Path
    is_users: bool  # of the user's folders, and so may have been passed on; False: it comes with ramet or a plugin
    folder: Path
    stages: tuple[Stage, ...]
    config_dir: Path | None = None

    @property
    def handed_on(self) -> dict[str, str]:
        """The value of each reference when its stage is finished."""
        return {
            f"${{stages.{stage.name}.{what}}}": str(stage.folder if what == "run" else stage.model)
            for stage in self.stages
            for what in HANDS_ON[stage.job]
        }


def pipelines(config_dir: Path | None = None) -> dict[str, list[ConfigFile]]:
    """Name -> the files `pipeline/NAME.yaml` that are found, the one that counts first."""
    register()
    with running(config_dir):
        return files_of(GROUP)


def read_pipeline(name: str, words: Sequence[str], config_dir: Path | None = None) -> Pipeline:
    """Read the pipeline of this name, or in this file. `words`: `key=value` for all stages that read the key, and
    `STAGE:key=value`. Raises `ConfigErrors` with what can be said without composing its stages.
    """
    file, is_users = _find(name, config_dir)
    places, rest = {"run.root": RunConfig().root, "run.name": file.stem}, list[str]()
    for word in words:
        key = word.partition("=")[0]
        if key in places:
            places[key] = str(parse(word).value())
        else:
            rest.append(word)
    folder = Path(places["run.root"]) / places["run.name"]
    problems: list[str] = []
    if not RUN_NAME.fullmatch(places["run.name"]):
        problems.append(f"run.name={places['run.name']}: {RUN_NAME_RULE}")
    stages = [_stage(file, folder, name, keys, problems) for name, keys in _stages_of(file).items()]
    if all(stage.job == EXPORT for stage in stages):
        problems.append(f"{file}: has only exports; `ramet export` does that")
    raise_all(problems)
    stages = _with_typed(stages, rest, problems)
    problems += [f"stage {stages[i].name}: {text}" for i in range(len(stages)) for text in _key_problems(stages, i)]
    raise_all(problems)
    return Pipeline(file=file, is_users=is_users, folder=folder, stages=tuple(stages), config_dir=config_dir)


def _find(name: str, config_dir: Path | None) -> tuple[Path, bool]:
    """Return the file, and whether it is one of the user's."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        file, is_users = Path(name), True
        if file.suffix != ".yaml" or not file.is_file():
            raise ConfigError(f"pipeline: no file {name!r} that ends in .yaml (working directory: {Path.cwd()})")
    else:
        files = pipelines(config_dir)
        if name not in files:
            there = ", ".join(sorted(files)) or "none"
            raise ConfigError(
                f"no pipeline {name!r}.{suggest(name, files)} Pipelines: {there}. A file is given by its path, as in "
                "./mine.yaml"
            )
        file, is_users = files[name][0].path, files[name][0].provider in (OWN, CHOSEN_FOLDER)
    shipped = shipped_recipes()
    return file, is_users and (shipped is None or not file.resolve().is_relative_to(shipped.resolve()))


def _stages_of(file: Path) -> dict[str, dict[str, Any]]:
    """Return the keys of each stage as they are written. Raises `ConfigError` for a file of another form."""
    try:
        body = read_values(file)
    except OSError as error:
        raise ConfigError(f"pipeline: {os_error_text(error)}") from error
    except BROKEN_CONFIG as error:
        raise ConfigError(f"{file}: cannot be read as a pipeline: {' '.join(str(error).split())}") from error
    stages = body.get("stages")
    if set(body) != {"stages"} or not isinstance(stages, dict) or not stages:
        there = ", ".join(map(str, body))
        raise ConfigError(f"{file}: must have one key, `stages`, with a mapping of at least one stage; got {there}")
    if wrong := [str(name) for name, keys in stages.items() if not isinstance(keys, dict)]:
        raise ConfigError(f"{file}: stages that are not a mapping of keys: {', '.join(wrong)}")
    return {str(name): {str(key): value for key, value in keys.items()} for name, keys in stages.items()}


def _stage(file: Path, folder: Path, name: str, keys: Mapping[str, Any], problems: list[str]) -> Stage:
    """Return a stage as the file has it; its problems are added to `problems`."""
    dotted = [(key, value) for key, value in _dotted(keys) if key != "job"]
    job = str(keys.get("job"))
    wrong = [f"{key}: is there more than once" for key, n in Counter(key for key, _ in dotted).items() if n > 1]
    wrong += [f"{key!r}: must be a key as on the command line" for key, _ in dotted if not KEY.fullmatch(key)]
    if not STAGE_NAME.fullmatch(name) or name == LOCK:
        wrong.append(f"a name has letters, digits, '_' and '-', a letter or digit first, and is not {LOCK}")
    if job not in HANDS_ON:
        wrong.append(f"job: {job!r}; allowed: {', '.join(HANDS_ON)}")
    problems += [f"{file}: stage {name}: {text}" for text in wrong]
    return Stage(name=name, job=job, folder=folder / name, written=dict(dotted), typed=())


def _with_typed(stages: Sequence[Stage], words: Sequence[str], problems: list[str]) -> list[Stage]:
    """Return the stages with the keys that were typed for them.

    A key without a stage is for every stage that `reads` it.
    """
    typed: dict[str, list[str]] = {stage.name: [] for stage in stages}
    listed = ", ".join(f"{stage.name} ({stage.job})" for stage in stages)
    for word in words:
        name, colon, _ = word.partition("=")[0].partition(":")
        if colon:
            names = [name] if name in typed else []
        else:
            names = [stage.name for stage in stages if stage.reads(_key(word))]
        for each in names:
            typed[each].append(word.removeprefix(f"{name}:"))
        if not names:
            why = "no such stage" if colon else "no stage reads it, or each takes it from another stage"
            problems.append(f"{word.partition('=')[0]}: {why}; stages: {listed}")
    return [replace(stage, typed=tuple(typed[stage.name])) for stage in stages]


def _key_problems(stages: Sequence[Stage], number: int) -> Iterator[str]:
    """Yield problems of the keys of one stage, and of its references to earlier stages."""
    stage = stages[number]
    keys = [*stage.written, *stage.typed_keys]
    if places := [key for key in keys if key in PLACES]:
        yield (
            f"{', '.join(places)}: the pipeline decides where a stage writes: run.root=… and run.name=… without a "
            "stage belong to the pipeline"
        )
    trust = TRUST_CODE if stage.job == EXPORT else f"model.{TRUST_CODE}"
    if stage.sets(trust) and trust not in stage.typed_keys:
        yield (
            f"{trust}: a file that is passed on may not let code run; read the model's code, and type "
            f"{stage.name}:{trust}=true"
        )
    before = {
        f"${{stages.{earlier.name}.{what}}}": earlier for earlier in stages[:number] for what in HANDS_ON[earlier.job]
    }
    for reference in stage.references:
        if reference not in before:
            yield f"{reference}: no stage before it hands this on; there: {', '.join(before) or 'nothing'}"
    if stage.job == EXPORT:
        yield from _export_problems(stage, keys)


def _export_problems(stage: Stage, keys: Sequence[str]) -> Iterator[str]:
    if unknown := [key for key in keys if key not in EXPORT_KEYS]:
        yield f"{', '.join(unknown)}: an export reads {', '.join(EXPORT_KEYS)}"
    if "run" not in keys:
        yield "run: missing; name the stage that it writes the model of, as in run: ${stages.rl.run}"
    dtype = stage.options({}).get("dtype")
    if dtype is not None and dtype not in list(Dtype):
        yield f"dtype={dtype}: allowed: {', '.join(Dtype)}"


def _key(text: str) -> str:
    """Return the key of `key=value` as it was typed."""
    return text.partition("=")[0].lstrip("+~")


def _override(key: str, value: Any) -> str:
    """Return `key=value`, text without quotes where it is read as that text."""
    if isinstance(value, str):
        try:
            if parse(f"{key}={value}").value() == value:
                return f"{key}={value}"
        except ConfigError:
            pass
    return override(key, value)


def _filled(value: Any, handed_on: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return REFERENCE.sub(lambda match: handed_on.get(match[0], match[0]), value)
    if isinstance(value, list):
        return [_filled(item, handed_on) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, handed_on) for key, item in value.items()}
    return value


def _dotted(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with their values. A mapping with names that contain dots, such as data sources, stays one."""
    for key, value in values.items():
        if isinstance(value, dict) and value and all(PLAIN_NAME.fullmatch(str(name)) for name in value):
            yield from _dotted(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
