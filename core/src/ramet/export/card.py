"""The model card of an exported folder: what the model was trained on and with, and how to use it as it was trained.

It holds nothing of the machine: data and base model by their names on the hub, or by the names of their files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ramet.config.schema import ModelConfig
from ramet.config.secrets import HIDDEN
from ramet.data.benchmarks import is_benchmark
from ramet.errors import ConfigError
from ramet.hub import HubName, cached_name, data_name
from ramet.io.atomic import write_file
from ramet.runs.hub_inputs import recorded_folder, recorded_name
from ramet.runs.manifest import MANIFEST, Manifest, SavedRun, read_manifest, read_run
from ramet.tracking.jsonl import NAME as METRICS
from ramet.tracking.jsonl import read_metrics

NAME = "README.md"
OF_RUN = ("run.", "model.", "data.train", "data.valid", "sft.data", "sft.valid", "trackers", "wandb.", "cluster.")
OF_MACHINE = re.compile(r"(^|[\s\[{(,:='\"])(/|~|\.\./)|://|/[^\s/]*\.\w")  # in a value: a path or an address
# Next to the metrics of validations.
SHOWN = ("reward/roots_mean", "reward/mean", "rollout/entropy", "sft/loss", "sft/valid_loss")
MOST_FILES = 5  # of a data set, by name
MOST_RUNS = 8  # one after the other, each with the model of the one before
UNASKED: Mapping[str, Any] = {"messages": [], "stop": [], "tools": [], "sampling": {}}  # of a run without a record


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The model that the training began with, before the runs that each took the model of the one before."""

    name: HubName | None  # on the hub; None: only its folder is known
    folder: Path
    runs: Sequence[Manifest] = ()  # the earliest first


def write_card(
    folder: Path, name: str, *, base: ModelConfig, run: Path | None = None, step: int | None = None,
    adapter: bool = False,
) -> None:  # fmt: skip
    """Write `README.md`. `name`: on the hub, or the folder's once it is there. `base`: the model that the run
    began with, on this machine. Without a run the card says that its training is not known.
    """
    saved, manifest = (None, None) if run is None else (read_run(run), read_manifest(run / MANIFEST))
    first = _first(Path(base.path), cached_name(base.path) or (recorded_name(saved.model.path) if saved else None))
    runs = [*first.runs, *([manifest] if manifest is not None else [])]
    facts = _facts(first.folder)
    licence = _licence(facts, first.name)
    of_base = None if adapter and first.runs else first.name  # an adapter is of no use with another model
    parts = [_header(of_base, licence, runs, adapter=adapter), f"# {name}"]
    if run is None or saved is None or manifest is None:
        parts.append("How it was trained is not known: it was made only from weights.")
    else:
        parts += [_origin(first, facts, adapter=adapter), _data(runs), _recipe(run, saved, step), _metrics(run, step)]
        parts.append(_prompt(manifest, saved.model.chat_template_kwargs))
    parts.append(f"## Licence\n\nThat of the base model: {_terms(licence)}.")
    parts.append(_usage(name, saved, manifest, adapter=adapter))
    write_file(folder / NAME, "\n\n".join(part for part in parts if part) + "\n")


def _first(folder: Path, name: HubName | None) -> Base:
    """Follow models of runs (`runs/NAME/model`) to what the first of them began with."""
    runs: list[Manifest] = []
    while name is None and folder.name == "model" and len(runs) < MOST_RUNS:
        try:
            saved, manifest = read_run(folder.parent), read_manifest(folder.parent / MANIFEST)
        except ConfigError:  # a folder of that name, and not of a run
            break
        runs.insert(0, manifest)
        name = recorded_name(saved.model.path) or cached_name(saved.model.path)
        folder = recorded_folder(saved.model.path)
    return Base(name=name, folder=folder, runs=runs)


def _facts(base: Path) -> Mapping[str, Any]:
    """Return the facts at the beginning of the base model's own card; none where it has none that can be read."""
    from huggingface_hub import metadata_load

    try:
        return metadata_load(base / NAME) or {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def _header(base: HubName | None, licence: Mapping[str, Any], runs: Sequence[Manifest], *, adapter: bool) -> str:
    files = [file for run in runs for record in run.data.values() for file in record.files]
    datasets = sorted({name.id for name in map(_of_hub, files) if name is not None})
    header: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ramet", *(["reinforcement-learning"] if any(run.job == "train" for run in runs) else [])],
        **({"base_model": base.id} if base is not None else {}),
        **licence,
        **({"datasets": datasets} if datasets else {}),
    }
    return f"---\n{yaml.safe_dump(header, sort_keys=False).rstrip()}\n---"


def _origin(base: Base, facts: Mapping[str, Any], *, adapter: bool) -> str:
    what = "A LoRA adapter, trained from" if adapter else "Trained from"
    jobs = ", then ".join(f"`ramet {run.job}`" for run in base.runs)
    by = f" by {jobs}, before the run below" if jobs else ""
    by += f"; the adapter belongs to what {jobs} made of it" if jobs and adapter else ""
    if base.name is not None:
        at = f", commit `{base.name.revision}`," if base.name.revision else ""
        return f"{what} {_code(base.name.id)}{at} with Ramet{by}."
    named = facts.get("base_model")
    its_base = f" (its card names {_code(named)} as its own base)" if isinstance(named, str) else ""
    return f"{what} the model {_code(base.folder.name)}{its_base} with Ramet{by}."


def _data(runs: Sequence[Manifest]) -> str:
    lines = []
    for run in runs:
        for use, record in run.data.items():
            files = [public_name(file) for file in record.files]
            more = f" and {len(files) - MOST_FILES} more files" if len(files) > MOST_FILES else ""
            number = record.tasks - record.too_long - record.by_difficulty
            rows = f"{number} {'rows' if run.job == 'sft' else 'tasks'}"
            lines.append(f"* `ramet {run.job}`, {use}: {rows} of {', '.join(map(_code, files[:MOST_FILES]))}{more}")
    return "\n".join(["## Data", "", *lines])


def _recipe(run: Path, saved: SavedRun, step: int | None) -> str:
    file = run / "overrides.txt"
    typed = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    kept = [text for text in typed if HIDDEN not in text and not text.lstrip("+~").startswith(OF_RUN)
            and not OF_MACHINE.search(text.partition("=")[2])]  # fmt: skip
    after = "" if step is None else f" Checkpoint after step {step}."
    keys = "\n\n" + _fenced("\n".join(kept)) if kept else ""
    return f"## Recipe\n\n`ramet {saved.job}`, weights computed in {saved.model.dtype}.{after}{keys}"


def _metrics(run: Path, step: int | None) -> str:
    """The last value of each up to the checkpoint."""
    values: dict[str, tuple[float, int]] = {}
    for line in read_metrics(run / METRICS):
        if step is None or line.step <= step:
            shown = {key: value for key, value in line.metrics.items() if key in SHOWN or key.startswith("valid/")}
            values |= {key: (value, line.step) for key, value in shown.items()}
    rows = [f"| {key} | {value:.4g} | {at} |" for key, (value, at) in sorted(values.items())]
    return "\n".join(["## Metrics", "", "| metric | value | step |", "|---|---|---|", *rows]) if rows else ""


def _prompt(manifest: Manifest, variables: Mapping[str, Any]) -> str:
    prompt = manifest.prompt
    if prompt is None:
        return "## Prompt and sampling\n\nThe prompt that it was trained with is not known: the run did not record it."
    stop = ", ".join(map(_code, prompt["stop"])) or "none; the end of the sequence"
    sampling = ", ".join(f"{key} {value:g}" for key, value in prompt["sampling"].items())
    tools = ", ".join(_code(tool["function"]["name"]) for tool in prompt["tools"])
    described = f"\n* tools that the chat template describes: {tools}" if tools else ""
    if prompt.get("tools_of_rows"):
        described = "\n* tools: each task brought its own, which the prompt described"
    if variables:
        described += f"\n* variables of the chat template: {_code(_arguments(variables).removeprefix(', '))}"
    system = _system(prompt)
    asked = "The model was trained without a system prompt." if not system else (
        "The model was trained with this system prompt, and is of little use without it; the code below has it, too."
        f"\n\n{_fenced(system)}"
    )  # fmt: skip
    return f"## Prompt and sampling\n\n{asked}\n\n* stop strings: {stop}\n* sampling: {sampling}{described}"


def _usage(name: str, saved: SavedRun | None, manifest: Manifest | None, *, adapter: bool) -> str:
    prompt = (manifest.prompt if manifest else None) or UNASKED
    system, stop = _system(prompt), list(prompt["stop"])
    sampling = {"temperature": 1.0 if saved is None else saved.temperature} | dict(prompt["sampling"])
    drawn: dict[str, Any] = {"do_sample": False}
    if sampling["temperature"]:
        drawn = {"do_sample": True, **sampling, "top_p": 1.0, "top_k": 0}
    how = _arguments(drawn | {"repetition_penalty": 1.0})  # else the base's generation config may change what is drawn
    first = f'{{"role": "system", "content": {json.dumps(system, ensure_ascii=False)}}}, ' if system else ""
    stops = f", stop_strings={stop!r}, tokenizer=tokenizer" if stop else ""
    auto, package = ("AutoPeftModelForCausalLM", "peft") if adapter else ("AutoModelForCausalLM", "transformers")
    variables = {} if saved is None else saved.model.chat_template_kwargs
    rendered = _arguments({"tools": prompt["tools"], **variables} if prompt["tools"] else variables)
    code = f"""\
from transformers import AutoTokenizer
from {package} import {auto}

folder = {name!r}
tokenizer, model = AutoTokenizer.from_pretrained(folder), {auto}.from_pretrained(folder, dtype="auto")
messages = [{first}{{"role": "user", "content": "…"}}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"{rendered})
output = model.generate(**inputs, max_new_tokens=1024{how}{stops})
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1]:]))"""
    calls = "\n\nAt a stop string that calls a tool, run the tool, append its result, and generate again."
    return f"## Use\n\n{_fenced(code, 'python')}{calls if stop else ''}"


def _arguments(values: Mapping[str, Any]) -> str:
    """Return the rest of a call's arguments."""
    return "".join(f", {key}={value!r}" for key, value in values.items())


def _system(prompt: Mapping[str, Any]) -> str:
    return "\n\n".join(message["content"] for message in prompt["messages"] if message["role"] == "system")


def _fenced(text: str, language: str = "") -> str:
    """Return a block of code, with a fence that the text does not hold."""
    fence = "`" * (1 + max(2, *(len(ticks) for ticks in re.findall("`+", text)), 0))
    return f"{fence}{language}\n{text}\n{fence}"


def _code(text: str) -> str:
    """Return a text as code in a line, with more backticks around it than it holds."""
    shown = json.dumps(text, ensure_ascii=False)[1:-1] if not text.isprintable() else text
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    space = " " if "`" in shown else ""
    return f"{ticks}{space}{shown}{space}{ticks}"


def _licence(facts: Mapping[str, Any], base: HubName | None) -> dict[str, Any]:
    """Return what a card says of its licence, by the keys of such cards. A link into the base's folder leads there."""
    licence = {}
    for key in ("license", "license_name", "license_link"):
        value = facts.get(key)
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            licence[key] = value
    link = licence.get("license_link")
    if link is not None and "://" not in str(link):
        del licence["license_link"]
        if base is not None and isinstance(link, str):  # the hub itself: a mirror may be of this machine's network
            licence["license_link"] = f"https://huggingface.co/{base.id}/blob/{base.revision or 'main'}/{link}"
    return licence


def _terms(licence: Mapping[str, Any]) -> str:
    named = licence.get("license_name") or licence.get("license")
    if not named:
        return "not known here; see where it is from"
    text = named if isinstance(named, str) else ", ".join(named)
    return f"{text} ({licence['license_link']})" if "license_link" in licence else text


def public_name(file: str) -> str:
    """Return a benchmark or a name of the hub as it is; of a path its last part, which says nothing of the machine."""
    return file if is_benchmark(file) or _of_hub(file) is not None else Path(file).name


def _of_hub(file: str) -> HubName | None:
    """Return the data set of the hub that a record names; None for a file of the machine."""
    try:
        return data_name(file)
    except ConfigError:
        return None
