"""The record of a run: `manifest.json`, enough to repeat it and to refuse a resume that would be another run, and
`config.yaml`, from which later jobs read the model and how it was sampled.

Values of the environment are never stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ramet.config.choices import accept_enum_values
from ramet.config.keys import JOBS
from ramet.config.resolved import Resolved
from ramet.config.schema import ComponentConfig, ModelConfig
from ramet.config.secrets import hide_argument
from ramet.errors import ConfigError, PluginError
from ramet.hub import cached_name, model_name
from ramet.io.atomic import write_file
from ramet.plugins import OBJECTS, load_plugins
from ramet.plugins.plugin_code import code_hash, object_hash

MANIFEST = "manifest.json"
FORMAT = 1
PACKAGES = (
    "ramet", "torch", "transformers", "tokenizers", "accelerate", "numpy", "pyarrow", "pluggy", "hydra-core", "ray",
    "peft", "deepspeed",
)  # fmt: skip
STATE = (
    "A, exact state: after a kill at any time the resumed run sees the same prompts in the same order, the same seeds, "
    "step, learning rate, optimiser and random states."
)
NUMBERS = "B, exact numbers: the steps after a resume are bit-identical on the same machine and versions."
NOISE = "C, statistical: numbers after a resume agree within noise; run.deterministic=true makes them exact on CPU."
BY_SEED = "by seed: run.seed and the place of a request decide its draws."
BY_SERVER = "by the server: requests bring seeds, which a server may ignore."
UNSEEDED = (
    "not repeatable: vLLM draws without the seeds of requests (engine.params.seeds=false), so with the same run.seed "
    "it samples other tokens in every process."
)
TEACHER = "train.teacher"
WHOLE = 16 * 2**20  # bytes: larger files are fingerprinted by size, beginning and end
EDGE = 2**20
BROKEN_CONFIG = (OSError, ValueError, TypeError, AttributeError, RecursionError, yaml.YAMLError, OmegaConfBaseException)


@dataclass(slots=True, kw_only=True)
class DataRecord:
    """One data set of a run."""

    files: list[str]
    fingerprint: str  # over the tasks of the run, in order
    tasks: int  # too long ones included
    skipped: int = 0  # bad rows
    repaired: int = 0  # tasks with a corrupted `\boxed` that was repaired
    too_long: int = 0  # tasks left out by data.max_prompt_tokens
    by_difficulty: int = 0  # tasks left out by data.difficulty


@dataclass(slots=True, kw_only=True)
class PluginRecord:
    name: str
    distribution: str
    version: str
    contract: str
    offers: dict[str, list[str]]
    broken: str | None
    code: str | None = None  # sha256 of its package's code; None: not known

    @property
    def release(self) -> str:
        """Distribution and version; a module of `RAMET_PLUGINS` has no version."""
        return f"{self.distribution} {self.version}".rstrip()


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One process that worked on the run."""

    started: str
    host: str
    pid: int
    argv: list[str]
    ended: str | None = None
    status: str = "running"  # running, done, failed, interrupted; a killed one stays "running"


@dataclass(slots=True, kw_only=True)
class Manifest:
    job: str
    seed: int
    deterministic: bool
    resume_level: str
    sampling: str | None = None  # what the seeds of requests decide; None: nothing is sampled, or an earlier version
    git: dict[str, Any] | None  # sha, and whether the tree was dirty (None: not known); None outside a repository
    versions: dict[str, str]
    plugins: list[PluginRecord]
    data: dict[str, DataRecord] = field(default_factory=dict)  # "train", "valid" -> data set
    model: str | None = None  # fingerprint of the model's folder
    hub: dict[str, str] = field(default_factory=dict)  # names of the hub (keys, if from the environment) -> commit
    prompt: dict[str, Any] | None = None  # how the model is asked, for a model card; None: not known
    files: dict[str, str] = field(default_factory=dict)  # sha256 of what options of components name, and of objects
    attempts: list[Attempt] = field(default_factory=list)
    id: str = field(default_factory=lambda: secrets.token_hex(6))  # of the run, for trackers; kept when it is resumed
    format: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    job: str  # train, sft or eval
    model: ModelConfig
    temperature: float  # of the rollouts
    valid: tuple[str, ...] = ()  # `data.valid`


def make_manifest(
    resolved: Resolved,
    *,
    data: Mapping[str, DataRecord] | None = None,
    model: str | None = None,
    prompt: dict[str, Any] | None = None,
) -> Manifest:
    """The manifest of a run that starts or resumes now, with one attempt: this process."""
    run = resolved.config.run
    return Manifest(
        job=resolved.job,
        seed=run.seed,
        deterministic=run.deterministic,
        resume_level=f"{STATE} {NUMBERS if run.deterministic else NOISE}",
        sampling=_sampling(resolved.config.engine) if "engine" in JOBS[resolved.job] else None,
        git=git_state(Path.cwd()),
        versions=_versions(),
        plugins=_plugins(),
        data=dict(data or {}),
        model=model,
        prompt=prompt,
        hub=dict(resolved.hub),
        files=input_files(resolved),
        attempts=[
            Attempt(
                started=now(),
                host=socket.gethostname(),
                pid=os.getpid(),
                argv=[hide_argument(text) for text in sys.argv],
            )
        ],
    )


def _sampling(engine: ComponentConfig) -> str:
    if not getattr(engine.params, "seeds", True):
        return UNSEEDED
    return BY_SERVER if engine.name == "openai" else BY_SEED


def write_manifest(path: Path, manifest: Manifest) -> None:
    write_file(path, json.dumps(asdict(manifest), indent=2) + "\n")


def read_manifest(path: Path) -> Manifest:
    """Raise `ConfigError` for a file that is not a manifest of this format."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.get("format") != FORMAT:
            raise ConfigError(f"{path}: format {values.get('format')!r}; this ramet reads format {FORMAT}")
        values.setdefault("id", "")  # of a run that began before ids were recorded; it gets one now
        values.setdefault("files", {})  # of one that began before these were
        values.setdefault("hub", {})
        values.setdefault("prompt", None)
        manifest = Manifest(**{known_field.name: values[known_field.name] for known_field in fields(Manifest)})
        manifest.plugins = [PluginRecord(**plugin) for plugin in values["plugins"]]
        manifest.data = {name: DataRecord(**record) for name, record in values["data"].items()}
        manifest.hub = {str(name): str(commit) for name, commit in values["hub"].items()}
        manifest.attempts = [Attempt(**attempt) for attempt in values["attempts"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a manifest: {error!r}") from error
    return manifest


def read_config(file: Path) -> DictConfig:
    """A run's `config.yaml`. Raises `BROKEN_CONFIG`."""
    text = file.read_text(encoding="utf-8")
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
        raise ValueError("has YAML aliases, few of which may expand to millions of values; Ramet writes none")
    config = OmegaConf.create(text)
    if not isinstance(config, DictConfig):
        raise ValueError("has no sections")
    return config


def read_values(file: Path) -> dict[Any, Any]:
    """Return what `read_config` reads as plain values, `${…}` as it is written. Raises `BROKEN_CONFIG`."""
    values = OmegaConf.to_container(read_config(file), resolve=False)
    assert isinstance(values, dict)
    return values


def read_run(run: Path) -> SavedRun:
    """Read `manifest.json` and `config.yaml`. Raises `ConfigError` if this is not a run directory, or they are broken.

    `model.trust_remote_code` is false whatever the file has: runs are given away, and whether a model's own code may
    run is decided on the command line of the user who runs it.
    """
    file = run / "config.yaml"
    if missing := [name for name in (file.name, MANIFEST) if not (run / name).is_file()]:
        has = f"it has no {' and no '.join(missing)}" if run.is_dir() else "no such directory"
        raise ConfigError(f"{run} is not a run directory: {has} (working directory: {Path.cwd()})")
    accept_enum_values()
    try:
        config = read_config(file)
        section = OmegaConf.select(config, "model", throw_on_missing=True)
        model: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), section))
        temperature = float(OmegaConf.select(config, "rollout.temperature", default=1.0))
        valid = tuple(map(str, OmegaConf.select(config, "data.valid", default=())))
        model.trust_remote_code = False
    except BROKEN_CONFIG as error:
        raise ConfigError(f"{file}: not the configuration of a run: {error}") from error
    manifest = read_manifest(run / MANIFEST)
    for name in ("path", "tokenizer"):  # names from the environment have no commit in the file
        if commit := manifest.hub.get(f"model.{name}"):
            setattr(model, name, _at_commit(getattr(model, name), commit))
    return SavedRun(job=manifest.job, model=model, temperature=temperature, valid=valid)


def _at_commit(text: str, commit: str) -> str:
    name = model_name(text)
    return text if name is None else replace(name, revision=commit).uri


def model_files(model: ModelConfig) -> list[Path]:
    """The folders and files that a model, its tokenizer and its prompts come from."""
    named = (model.path, model.tokenizer, model.chat_template)
    return [Path(name) for name in dict.fromkeys(named) if name is not None]


def input_files(resolved: Resolved) -> dict[str, str]:
    """sha256 by option, of files that decide what components give (their options have `input_files()`), and by key, of
    the teacher's folder and of the code of objects that `ramet.api` was given.
    """
    teacher = resolved.config.train.teacher
    hashes = {TEACHER: model_fingerprint(Path(teacher))} if teacher is not None and Path(teacher).exists() else {}
    for key, component in resolved.components.items():
        group, _, name = key.partition(".")
        passed_object = load_plugins().given(group, component.use or name) if group in OBJECTS else None
        if passed_object is not None and (code := object_hash(passed_object)) is not None:
            hashes[key] = code
        named: dict[str, str] = getattr(component.params, "input_files", dict)()
        if not isinstance(named, Mapping):
            raise PluginError(f"{key}: input_files of its options returned {named!r:.80}: return {{option: path}}")
        for option, path in named.items():
            if not Path(path).exists():
                raise ConfigError(f"{key}.params.{option}: no file or folder {str(path)!r}")
        hashes |= {f"{key}.params.{option}": model_fingerprint(Path(path)) for option, path in named.items()}
    return hashes


def model_sha256(resolved: Resolved) -> str:
    """Return the fingerprint of a run's model, tokenizer and chat template."""
    return model_fingerprint(*model_files(resolved.config.model), commits=resolved.hub.values())


def model_fingerprint(*paths: Path, commits: Collection[str] = ()) -> str:
    """sha256 over files and the files of folders; of large files their size, beginning and end.

    Of copies of these commits of the hub their names: where a cache is, and which files it has, does not matter.
    """
    digest = hashlib.sha256()
    copies = {path: name for path in paths if (name := cached_name(path)) is not None and name.revision in commits}
    for text in sorted(map(str, copies.values())):
        digest.update(f"{text}\0".encode())
    for source in sorted({*paths} - {*copies}):
        for path in sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else [source]:
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                digest.update(file.read(WHOLE if size <= WHOLE else EDGE))
                if size > WHOLE:
                    file.seek(-EDGE, os.SEEK_END)
                    digest.update(file.read())
    return digest.hexdigest()


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether any file is changed, None without repository or git.

    The repository may be another person's: no command in its configuration is run.
    """
    sha = _git(folder, "rev-parse", "HEAD")
    if sha is None:
        return None
    named = _git(folder, "config", "--includes", "--show-scope", "--name-only", "--get-regexp", r"^filter\.") or ""
    filters = (line.partition("\t") for line in named.splitlines())
    of_repository = [f"{name}=" for scope, _, name in filters if scope in ("local", "worktree")]
    settings = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", *of_repository)
    inert = [word for setting in settings for word in ("-c", setting)]
    status = ("status", "--porcelain", "--ignore-submodules=dirty")
    changed = _git(folder, "--no-optional-locks", *inert, *status)
    return {"sha": sha.strip(), "dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    installed = {package: version_of(package) for package in PACKAGES}
    return versions | {package: number for package, number in installed.items() if number is not None}


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _plugins() -> list[PluginRecord]:
    return [
        PluginRecord(name=i.name, distribution=i.distribution, version=i.version, contract=i.contract,
                     offers=i.offers, broken=i.broken, code=code_hash(i.module))
        for i in load_plugins().infos
    ]  # fmt: skip


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
