"""The commands. Each reads its own arguments; jobs are imported only when they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.job import JobCommand
from ramet.cli.terminal import Parser, say
from ramet.errors import ConfigError

if TYPE_CHECKING:
    from ramet.config.provenance import ValueOrigin
    from ramet.scaffold import Package

ARCHITECTURES = ("qwen2", "qwen3", "llama")  # of `ramet tiny-model`


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    summary: str
    run: Callable[[Sequence[str]], int]  # arguments -> exit code; raises RametError


def _report(arguments: Sequence[str]) -> int:
    parser = Parser(prog="ramet report", add_help=False, description="One self-contained HTML file of a run.")
    parser.add_argument("run", nargs="?", type=Path, help="the run's directory, or its name under runs/")
    parser.add_argument("--out", type=Path, help="the file to write; default: report.html in the run's directory")
    found = parser.read(arguments)
    if found is None:
        return 0
    if found.run is None:
        raise ConfigError("which run? give its directory, or its name under runs/")
    html = importlib.import_module("ramet.report.html")
    say(str(html.write_report(_run_folder(found.run), found.out)))
    return 0


def _run_folder(run: Path) -> Path:
    for folder in (run, Path("runs") / run):
        if folder.is_dir():
            return folder
    raise ConfigError(
        f"no run {str(run)!r}: neither a directory nor a name under runs/ (working directory: {Path.cwd()})"
    )


def _plugins(arguments: Sequence[str]) -> int:
    parser = Parser(prog="ramet plugins", add_help=False, description="What is installed, and what failed to load.")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    found = parser.read(arguments)
    if found is None:
        return 0
    from ramet.cli.plugin_list import as_json, as_table, listing

    rows = listing()
    say(as_json(rows) if found.json else as_table(rows))
    return 0


def _config(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet config",
        add_help=False,
        usage="ramet config [--job train|sft|eval] [--why KEY] [--config-dir DIR] [key=value …]",
        description="The configuration that a job would get with these keys, or where one of its values comes from.",
    )
    parser.add_argument("overrides", nargs="*", help="as for the job itself")
    parser.add_argument("--job", choices=[job.name for job in _JOBS], default="train", help="default: train")
    parser.add_argument("--why", metavar="KEY", help="everything that sets KEY; the last one counts")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    found = parser.read(arguments)
    if found is None:
        return 0
    from ramet.config.compose import compose, layers

    if found.why is None:
        say(compose(found.overrides, job=found.job, config_dir=found.config_dir).text.rstrip("\n"))
    else:
        composed = layers(found.overrides, job=found.job, config_dir=found.config_dir)
        say(_origins_text(found.why, composed.origins(found.why)))
    return 0


def _origins_text(key: str, origins: Sequence[ValueOrigin]) -> str:
    """Every file, preset or argument that set a key, one a line; the last one counts."""
    widths = [max(len(getattr(origin, part)) for origin in origins) for part in ("kind", "value")]
    lines = [f"  {one.kind:{widths[0]}}  {one.value:{widths[1]}}  {one.where}" for one in origins]
    return "\n".join([f"{key} = {origins[-1].value}", *lines])


def _play(arguments: Sequence[str]) -> int:
    code: int = importlib.import_module("ramet.cli.play").run(arguments)
    return code


def _tool(arguments: Sequence[str]) -> int:
    code: int = importlib.import_module("ramet.cli.tool").run(arguments)
    return code


def _benchmarks(arguments: Sequence[str]) -> int:
    code: int = importlib.import_module("ramet.cli.benchmarks").run(arguments)
    return code


def _doctor(arguments: Sequence[str]) -> int:
    code: int = importlib.import_module("ramet.cli.doctor").run(arguments)
    return code


def _compare(arguments: Sequence[str]) -> int:
    code: int = importlib.import_module("ramet.cli.results").run_compare(arguments)
    return code


def _judge(arguments: Sequence[str]) -> int:
    code: int = importlib.import_module("ramet.cli.results").run_judge(arguments)
    return code


def _recipes(arguments: Sequence[str]) -> int:
    code: int = importlib.import_module("ramet.cli.recipes").run(arguments)
    return code


def _completion(arguments: Sequence[str]) -> int:
    code: int = importlib.import_module("ramet.cli.completion").run(arguments)
    return code


def _data(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet data",
        add_help=False,
        usage="ramet data inspect FILE… [--model DIR] [--prompts N] [key=value …]",
        description="What is in data files: schema, sources, prompt lengths, duplicates, bad rows, prompts.",
        epilog="Keys of data, model, rollout_step, tools and sft count, as in data.columns.prompt=question "
        "tools=[python]. Ends with exit code 1 if there are problems.",
    )
    parser.add_argument("what", nargs="?", choices=["inspect"])
    parser.add_argument(
        "files", nargs="*", help="parquet, JSON lines or JSON arrays; default: data.train, data.valid and sft.data"
    )
    parser.add_argument("--model", type=Path, help="a model's folder: lengths in tokens, prompts as it sees them")
    parser.add_argument("--prompts", type=int, default=1, help="how many prompts to print of each file (default: 1)")
    found = parser.read(arguments if arguments else ["--help"])
    if found is None:
        return 0
    if found.prompts < 0:
        raise ConfigError(f"--prompts={found.prompts}: must be at least 0")
    overrides = [text for text in found.files if "=" in text and not Path(text).exists()]
    files = [text for text in found.files if text not in overrides]
    data = importlib.import_module("ramet.cli.data")
    report = data.inspect(files, overrides, model=found.model, prompts=found.prompts)
    say(report.text)
    return 0 if report.sound else 1


def _checkpoints(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet checkpoints",
        add_help=False,
        description="What a run could go on from. Every file is read, and its hash or checksum compared.",
        epilog="Ends with exit code 1 if no checkpoint verifies.",
    )
    parser.add_argument("run", nargs="?", type=Path, help="the run's directory, or its name under runs/")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    found = parser.read(arguments)
    if found is None:
        return 0
    if found.run is None:
        raise ConfigError("which run? give its directory, or its name under runs/")
    checkpoints = importlib.import_module("ramet.cli.checkpoints")
    run = _run_folder(found.run)
    entries = checkpoints.inventory(run)
    say(checkpoints.as_json(entries) if found.json else checkpoints.as_table(run, entries))
    return 0 if any(entry.verified for entry in entries) else 1


def _check_logprobs(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet check-logprobs",
        add_help=False,
        usage="ramet check-logprobs [--tasks N] [--rollouts N] [--threshold NATS] [--config-dir DIR] [key=value …]",
        description="Do engine and trainer agree? Plays a few tasks and computes their log-probabilities with both, "
        "with the engines and policy ranks that `ramet train` would start. Writes nothing.",
        epilog="Keys are those of `ramet train`. Ends with exit code 1 if the two disagree.",
    )
    parser.add_argument("overrides", nargs="*", help="as for the run that is to be trained")
    parser.add_argument("--tasks", type=int, default=8, help="how many tasks of data.train (default: 8)")
    parser.add_argument("--rollouts", type=int, default=2, help="rollouts of each task (default: 2)")
    parser.add_argument(
        "--threshold", type=float, help="default: 1e-3 in float32, 0.1 in bfloat16; see docs/engines.md"
    )
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    found = parser.read(arguments)
    if found is None:
        return 0
    from ramet.config.compose import compose

    resolved = compose(found.overrides, job="train", config_dir=found.config_dir)
    job = importlib.import_module("ramet.check.logprobs")
    options = job.Options(tasks=found.tasks, rollouts=found.rollouts, threshold=found.threshold)
    code: int = job.run(resolved, options)
    return code


def _new(arguments: Sequence[str]) -> int:
    from ramet.scaffold import KINDS, write_package

    parser = Parser(
        prog="ramet new",
        add_help=False,
        usage="ramet new KIND NAME [--dir DIR]",
        description="A plugin package of your own, with tests that pass.",
    )
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"{', '.join(KINDS)} (what each is: docs/plugins.md)")
    parser.add_argument("name", nargs="?", metavar="NAME", help="as in the configuration: count_words, exact_match")
    parser.add_argument("--dir", type=Path, help="the folder to make; default: ramet-NAME in the working directory")
    found = parser.read(arguments)
    if found is None:
        return 0
    if found.kind is None or found.name is None:
        raise ConfigError("new: give a kind and a name, as in `ramet new tool count_words`; see `ramet new --help`")
    if found.kind == "command" and found.name in COMMANDS:
        raise ConfigError(f"name: {found.name!r} is a command of Ramet itself; choose another")
    say(_made(write_package(found.kind, found.name, found.dir)))
    return 0


def _made(package: Package) -> str:
    files = "\n".join(f"  {file}" for file in package.files)
    return f"""made {package.folder}/ ({package.distribution}: the {package.kind.noun} {package.name!r}) with
{files}

next:
  cd {package.folder}
  python -m pip install -e ".[test]"    # add --find-links FOLDER where Ramet's wheels are in a folder
  python -m pytest        # what it does, and that it keeps the contract
  ramet {package.kind.use.format(name=package.name)} …
README.md says how to publish it."""


def _tiny_model(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet tiny-model",
        add_help=False,
        usage="ramet tiny-model DIR [--arch ARCH] [--seed N]",
        description="A random model of 1.1 million parameters with a byte-level tokenizer, to try things with.",
        epilog="It is the quickstart's: one token per byte, and one per tag of think, python, search, result, answer.",
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="the folder to make")
    parser.add_argument("--arch", default="qwen2", choices=ARCHITECTURES, help="default: qwen2")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights (default: 1)")
    found = parser.read(arguments)
    if found is None:
        return 0
    if found.folder is None:
        raise ConfigError("tiny-model: give the folder to make, as in `ramet tiny-model models/tiny`")
    if found.folder.exists() and (not found.folder.is_dir() or any(found.folder.iterdir())):
        raise ConfigError(f"tiny-model: {str(found.folder)!r} is there already; nothing was written")
    tiny = importlib.import_module("ramet.models.tiny")
    say(f"made {tiny.make_tiny_model(found.folder, architecture=found.arch, seed=found.seed)}")
    return 0


def _export(arguments: Sequence[str]) -> int:
    code: int = importlib.import_module("ramet.cli.export").run(arguments, _run_folder)
    return code


_JOBS = (
    JobCommand("train", "ramet.train.training", "teach a model by reinforcement learning"),
    JobCommand("sft", "ramet.sft.job", "teach a model from traces"),
    JobCommand("eval", "ramet.evaluate.evaluation", "measure a model on benchmarks"),
)
COMMANDS: dict[str, Command] = {job.name: Command(summary=job.summary, run=job.run) for job in _JOBS} | {
    "play": Command(summary="play one prompt with tools, and print every turn", run=_play),
    "tool": Command(summary="call one tool, with the settings of a run", run=_tool),
    "doctor": Command(summary="see what of this machine and its keys does not work, and how to mend it", run=_doctor),
    "recipes": Command(summary="list whole experiments to begin with, and what they need", run=_recipes),
    "config": Command(summary="print a configuration, or where a value comes from", run=_config),
    "check-logprobs": Command(summary="see whether engine and trainer agree", run=_check_logprobs),
    "data": Command(summary="look at data files before training on them", run=_data),
    "benchmarks": Command(summary="list and validate benchmarks, and find them in training data", run=_benchmarks),
    "checkpoints": Command(summary="list and verify what a run could go on from", run=_checkpoints),
    "compare": Command(summary="compare results of evaluations task by task", run=_compare),
    "judge": Command(summary="judge the stored rollouts of an evaluation", run=_judge),
    "report": Command(summary="write one HTML file about a run", run=_report),
    "plugins": Command(summary="list what is installed, and what failed to load", run=_plugins),
    "export": Command(summary="write a trained policy as a Hugging Face folder", run=_export),
    "tiny-model": Command(summary="make a small random model to try things with", run=_tiny_model),
    "new": Command(summary="start a plugin package of your own", run=_new),
    "completion": Command(summary="print a script that completes all this in bash, zsh or fish", run=_completion),
}
