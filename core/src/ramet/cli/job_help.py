"""`ramet JOB --help`: usage, options, presets and the keys that people set, on one screen.

Words after `--help` (a section, a key, a component, any other word) are answered by `key_help`. Keys on the same
command line count: `ramet train algorithm=arpo --help` shows the values that they lead to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ramet.cli.common_keys import COMMON, EXAMPLES
from ramet.cli.help_data import KeyHelp, SectionHelp, sections
from ramet.cli.help_text import columns, entry, listing, paragraph
from ramet.cli.key_help import InForce, answer
from ramet.config.compose import layers
from ramet.config.hydra_adapter import group_options
from ramet.config.sections import PRESETS
from ramet.plugins import Plugins, load_plugins

COLUMN = 38  # where the texts of keys begin
OPTIONS = {
    "--dry-run": "check everything, print what would be done and written, do nothing",
    "--on 8xH100": "with --dry-run: plan for this hardware, not this machine; also 8x80GiB",
    "--response-tokens N": "with --dry-run: mean tokens of a response, for the seconds of a step",
    "--tool-s S": "with --dry-run: mean seconds of a tool call, for the seconds of a step",
    "--show N": "print the first N sequences: what is trained and what is masked",
    "--replay RUN": "recompute a run's updates from recorded rollouts",
    "--replay RESULT": "score a finished evaluation again, without model and network",
    "-m": "a sweep: one run for every combination of key=1,2",
    "--cfg job": "print the resolved configuration, do nothing",
    "--config-dir DIR": "more presets and experiments, as hydra_configs/ of the working directory",
    "--trust-recipe FILE": "a file of these folders may name programs to run",
}
OF_ONE_JOB = {
    "--show N": "sft", "--replay RUN": "train", "--replay RESULT": "eval", "--response-tokens N": "train",
    "--tool-s S": "train",
}  # fmt: skip
USAGE = "[key=value …] [OPTIONS] [--help [SECTION|KEY|WORD|all]]"
WHERE_LISTED = {"algorithm": "ramet algorithms", "experiment": "ramet recipes"}
MOST_LINES = {"algorithm": 2, "experiment": 1}


def job_help(
    job: str, summary: str, words: Sequence[str] = (), overrides: Sequence[str] = (), config_dir: Path | None = None
) -> str:
    """Return the help of a job, or what it says of `words`. Raises `ConfigError` for a word that nothing has.

    overrides: `key=value` of the same command line, for values and chosen components.
    """
    in_force = InForce(layers(overrides, job=job, config_dir=config_dir).tree)
    of_job = [
        replace(section, keys=tuple(key for key in section.keys if job in key.jobs))
        for section in sections()
        if job in section.jobs
    ]
    width = columns()
    if words:
        return "\n".join(answer(words, job, of_job, in_force, width))
    lines = [f"usage: ramet {job} {USAGE}", f"{summary[0].upper()}{summary[1:]}.", ""]
    for option, text in OPTIONS.items():
        if OF_ONE_JOB.get(option, job) == job:
            lines += entry(option, text, width=width, column=COLUMN - 12)
    lines += ["", *_presets(job, config_dir, width), ""]
    lines += ["Keys that people set, with their values:"]
    lines += [line for key in COMMON[job] for line in _common(key, of_job, in_force, width)]
    lines += ["", "Example:", *(f"  {line}" for line in EXAMPLES[job]), "", *_more(job, of_job, width)]
    return "\n".join([*lines, *_broken(load_plugins(), width)])


def _presets(job: str, config_dir: Path | None, width: int) -> Iterator[str]:
    for group, names in group_options(PRESETS, config_dir=config_dir).items():
        if group == "experiment" or job == "train":
            label = f"{group + '=':12}"
            yield from listing(
                label, names or ["(none found)"], width=width, most=MOST_LINES[group], rest=WHERE_LISTED[group]
            )


def _common(key: str, of_job: Sequence[SectionHelp], in_force: InForce, width: int) -> list[str]:
    section = next((section for section in of_job if section.name == key), None)
    if section is not None and not section.is_key:
        names = ", ".join(component.name for component in section.components)
        left, text = in_force.choice(section), names or _files_of(section)
        if len(text) > width - COLUMN:
            text = f"names of {len(section.components)} components: --help {section.name}"
        return entry(left, text, width=width, column=COLUMN)
    found = next(found for section in of_job for found in section.keys if found.key == key)
    return entry(in_force.assignment(found), _short(found, in_force), width=width, column=COLUMN)


def _files_of(section: SectionHelp) -> str:
    """Return what a section of the core's own files can choose: `local, ray`."""
    return next(
        (key.type.removeprefix("one of ") for key in section.keys if key.key == f"{section.name}.name"), section.text
    )


def _short(key: KeyHelp, in_force: InForce) -> str:
    """Return the first clause of a key's text, and the one about the value in force: `null: all`, `0: none`."""
    first, *others = key.text.split("; ")
    value = in_force.assignment(key).partition("=")[2]
    return "; ".join(
        [first, *(clause for clause in others if clause.startswith((f"{value}:", f"{value.removesuffix('.0')}:")))]
    )


def _more(job: str, of_job: Sequence[SectionHelp], width: int) -> list[str]:
    names = ", ".join(section.name for section in of_job)
    return paragraph(
        f"More: `ramet {job} --help WORD`, where WORD is a section ({names}), a key (model.path), a component "
        f"(engine.vllm), any word of their texts, or `all`.",
        width=width,
    )


def _broken(plugins: Plugins, width: int) -> Iterator[str]:
    """Yield the plugins whose options are missing, as `ramet plugins` lists them."""
    broken = [info for info in plugins.infos if info.broken]
    if broken:
        yield from ("", "Plugins that failed to load:")
    for info in broken:
        reason = " ".join(str(info.broken).split())
        yield from paragraph(f"{info.name}  — {info.distribution}; BROKEN: {reason}", width=width, indent=2)
