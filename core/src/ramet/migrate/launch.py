"""A launch of verl: the overrides of a command line, or of a launch script and the file next to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from ramet.config.foreign import follow_references, read_keys
from ramet.config.hydra_adapter import parse
from ramet.errors import ConfigError
from ramet.migrate.shell import ShellCommand, project_of, read_script
from ramet.migrate.shell_values import UNKNOWN
from ramet.migrate.translation import Settings
from ramet.migrate.verl_sft import OF_ENGINES

OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w/-]*(\.[\w/-]+)+=.*|~[\w./-]+(=.*)?", re.DOTALL)
TRAINER = re.compile(r"\bmain_(ppo|dapo)\b|\bverl\.trainer\b")
SFT = re.compile(r"\b(fsdp_)?sft_trainer\b")
PROCESSES = re.compile(r"--(nnodes|nproc[_-]per[_-]node)(?:=(.*))?")  # of torchrun
GROUPS = ("engine", "optim", "model")  # a launch may choose a file for each
OWN_KEY = re.compile(r"\+{0,2}[A-Za-z_]\w*=.*", re.DOTALL)  # at the top of a config file
CONFIG_OPTIONS = {"--config-path": "path", "-cp": "path", "--config-dir": "path", "-cd": "path",
                  "--config-name": "name", "-cn": "name"}  # fmt: skip
WHOLE = ("data.apply_chat_template_kwargs",)  # sections that are one value
OF_VERL = (
    "ppo_trainer",
    "dapo_trainer",
    "sft_trainer",
    "sft_trainer_engine",
)  # its own config files, whose values the table knows
CHOSEN = "it chooses a file of verl's own, whose keys are translated as far as the launch sets them"
NOT_RUN = "its value is known only when the script runs: an argument of it, or the output of a program"
OF_SFT = ("model.partial_pretrain", *OF_ENGINES)  # keys that main_ppo does not have
TOOLS = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
NO_KEY = "not a key=value of a section"


def of_overrides(words: Sequence[str], config: Path | None = None) -> Settings:
    """Read `key=value …`, over the keys of a config file. Raises `ConfigError` for a file that cannot be read."""
    launch = Settings()
    if config is not None:
        _read_file(launch, config)
    for word in words:
        _read_override(launch, word)
    launch.is_sft = any(key in launch.values for key in OF_SFT)
    launch.values, unknown = follow_references(launch.values)
    launch.unread |= unknown
    return launch


def of_script(path: Path, config: Path | None = None) -> Settings:
    """Read the launch of verl in a script. Raises `ConfigError` without one, or if it cannot be read."""
    try:
        script = read_script(path.read_text(encoding="utf-8"), path.resolve())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    launches = [at for at, command in enumerate(script.commands) if _is_launch(command)]
    is_sft = not launches
    if is_sft:
        launches = [at for at, command in enumerate(script.commands) if _is_sft_launch(command)]
    if not launches:
        allowed = "a script that calls verl.trainer.main_ppo or verl.trainer.fsdp_sft_trainer with key=value …"
        raise ConfigError(f"{path}: no launch of verl in it; allowed: {allowed}")
    first = min(launches, key=lambda at: (True, None, False).index(script.commands[at].live))
    options, words, others = _options(script.commands[first].words)
    remarks = [*script.notes, *_about(script.commands, launches, first)]
    launch = of_overrides(words, config or _config_file(options, path.resolve().parent, remarks))
    launch.tools = _tools(launch.values.get(TOOLS), path.resolve().parent)
    launch.is_sft = is_sft
    launch.processes = _processes(script.commands[first].words) if is_sft else None
    launch.remarks[:0] = remarks
    launch.unread |= dict.fromkeys(others, NO_KEY)
    for word in _after_comment(script.commands[first + 1 :]):
        launch.unread[word.lstrip("+").partition("=")[0]] = (
            "it comes after a line that ends the command, as a comment between its lines does: verl does not get it"
        )
    return launch


def _about(commands: Sequence[ShellCommand], launches: Sequence[int], first: int) -> Iterator[str]:
    """Say what the reader of the recipe should know about the launch that was read."""
    if len(launches) > 1:
        yield f"{len(launches)} launches are in the script, and one was read"
    if not _is_sft_launch(commands[first]) and any(map(_is_sft_launch, commands)):
        yield "the script launches verl's SFT trainer too, which was not read: give its part as a script of its own"
    if commands[first].live is None:
        yield "whether the launch runs depends on values that are known only when the script runs"
    if commands[first].live is False:
        yield "the launch does not run with the values that the script sets"
    if commands[first].repeated:
        yield "the launch is inside a loop, of which the first round was read"


def _after_comment(commands: Sequence[ShellCommand]) -> Iterator[str]:
    """Overrides that follow a launch as separate commands."""
    for command in commands:
        if not OVERRIDE.fullmatch(command.words[0]):
            return
        yield from (word for word in command.words if OVERRIDE.fullmatch(word))


def _program(command: ShellCommand) -> str:
    """The words of a command before its first override."""
    return " ".join(takewhile(lambda word: not OVERRIDE.fullmatch(word), command.words))


def _is_launch(command: ShellCommand) -> bool:
    text = _program(command)
    if SFT.search(text):
        return False
    n_overrides = sum(bool(OVERRIDE.fullmatch(word)) for word in command.words)
    is_command = not OVERRIDE.fullmatch(command.words[0])
    return is_command and (n_overrides >= 3 or (bool(TRAINER.search(text)) and n_overrides > 0))


def _is_sft_launch(command: ShellCommand) -> bool:
    text = _program(command)
    has_overrides = any(map(OVERRIDE.fullmatch, command.words))
    return bool(SFT.search(text)) and "verl" in text and has_overrides


def _processes(words: Sequence[str]) -> int | None:
    """Return how many processes torchrun starts on all nodes; None where a number is not known."""
    counts = {"nnodes": 1}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if (option := PROCESSES.fullmatch(word)) is not None:
            number = after if option[2] is None else option[2]
            if not number.isdigit():
                return None
            counts[option[1].replace("-", "_")] = int(number)
    return counts["nnodes"] * counts["nproc_per_node"] if "nproc_per_node" in counts else None


def _tools(named: Any, folder: Path) -> dict[str, str]:
    """Return the tools of the launch's file, name -> class; none if the file is not of its project, or cannot be read.

    A tool without a schema, as of an MCP server, has the name of its class.
    """
    project = project_of(folder / "run.sh")
    places = [] if not named else [(base / str(named)).resolve() for base in (folder, folder.parent, project)]
    path = next((place for place in places if place.is_file() and place.is_relative_to(project)), None)
    try:
        listed = [] if path is None else read_keys(path).get("tools")
    except ConfigError:
        return {}
    tools = {}
    for tool in listed if isinstance(listed, list) else []:
        described: Any = tool
        for part in ("tool_schema", "function", "name"):
            described = described.get(part) if isinstance(described, dict) else None
        kind = str(tool.get("class_name") if isinstance(tool, dict) else tool)
        tools[described if isinstance(described, str) else kind] = kind
    return tools


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Hydra's options of a command, its overrides, and other arguments of the trainer that look like some."""
    options, overrides, others = dict[str, str](), list[str](), list[str]()
    trainer = next((at for at, word in enumerate(words) if TRAINER.search(word) or OVERRIDE.fullmatch(word)), 0)
    rest = iter(enumerate(words))
    for at, word in rest:
        name, equals, value = word.partition("=")
        if name in CONFIG_OPTIONS:
            options[CONFIG_OPTIONS[name]] = value if equals else next(rest, (0, ""))[1]
        elif OVERRIDE.fullmatch(word) or (at > trainer and OWN_KEY.fullmatch(word)):
            overrides.append(word)
        elif at > trainer and equals:
            others.append(word.replace(UNKNOWN, "…"))
    return options, overrides, others


def _config_file(options: Mapping[str, str], folder: Path, remarks: list[str]) -> Path | None:
    """Return the file that the launch names, if it is here. One of verl itself is not, and needs no reading."""
    if not options:
        return None
    stem = options.get("name", OF_VERL[0]).removesuffix(".yaml")
    name, where = f"{stem}.yaml", options.get("path", "")
    places = (folder / where / name, folder.parent / where / name, folder / name, folder / "config" / name)
    for candidate in (place.resolve() for place in places if UNKNOWN not in str(place)):
        if candidate.is_file() and candidate.is_relative_to(project_of(folder / name)):
            remarks.append(f"keys of {candidate.name} next to the script count where the launch sets none")
            return candidate
    if stem not in OF_VERL or where:
        why = f"the config file {name} is not here, or not of the script's project, so its values are not known"
        remarks.append(f"{why}; name it with --config FILE")
    return None


def _read_file(launch: Settings, path: Path) -> None:
    """Add the keys of a config file, and say which files it builds on, which are not read."""
    tree = read_keys(path)
    defaults = tree.get("defaults")
    others = [str(name) for name in defaults if name not in ("_self_", *OF_VERL)] if isinstance(defaults, list) else []
    if others:
        launch.remarks.append(f"{path.name} builds on {', '.join(others)}, which were not read")
    launch.values |= _leaves({name: value for name, value in tree.items() if name not in ("defaults", "hydra")})


def _leaves(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value and f"{prefix}{name}" not in WHOLE:
            leaves |= _leaves(value, f"{prefix}{name}.")
        elif not str(name).startswith("_") and value != "???":
            leaves[f"{prefix}{name}"] = value
    return leaves


def _read_override(launch: Settings, word: str) -> None:
    key, equals, text = word.lstrip("+").partition("=")
    if word.startswith("~"):
        _remove(launch, key.lstrip("~"))
        return
    if not equals:
        launch.unread[word] = NO_KEY
        return
    launch.values.pop(key, None)
    launch.unread.pop(key, None)
    if key in GROUPS:
        launch.unread[key] = CHOSEN
        return
    if UNKNOWN in text:
        launch.unread[key] = NOT_RUN
        return
    value = _value(word, text)
    section = next((section for section in WHOLE if key.startswith(f"{section}.")), None)
    if section is not None:
        launch.values[section] = {**(launch.values.get(section) or {}), key.removeprefix(f"{section}."): value}
    else:
        launch.values |= _leaves({key: value})


def _value(word: str, text: str) -> Any:
    try:
        override = parse(word)
        return text if override.is_sweep_override() else override.value()
    except ConfigError:
        return text  # as <your_path>, which Hydra's grammar does not take


def _remove(launch: Settings, key: str) -> None:
    """Take a key or a section away, as `~KEY` does. The note names its former value."""
    for name in [name for name in launch.values if name == key or name.startswith(f"{key}.")]:
        del launch.values[name]
    launch.remarks.append(f"~{key}: the launch takes it away, so verl's own value is not in force either")
