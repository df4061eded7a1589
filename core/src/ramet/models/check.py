"""Problems of a model's folder, tokenizer and chat template, found without loading weights.

Also variables that a chat template reads in addition to the messages, and that a user may set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerBase

from ramet.config.schema import ModelConfig
from ramet.errors import ConfigError, MissingHere
from ramet.models.folder import check_folder
from ramet.models.loading import check_device, error_text, holds_tokenizer, load_generation_config, load_tokenizer

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_LENGTH = 8  # bytes at the beginning of a safetensors file: the length of its header
OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
OF_RENDERING = frozenset(  # parameters of transformers' own call, which never reach a template
    "conversation chat_template tokenize padding truncation max_length return_tensors return_dict "
    "return_assistant_tokens_mask tokenizer_kwargs".split()
)
GIVEN = frozenset({"raise_exception", "strftime_now"})  # functions that transformers gives every template


def check_model(config: ModelConfig, *, weights: bool = True) -> list[str]:
    """Problems of the model's folder, tokenizer and chat template. Loads no weights, and needs none without `weights`,
    where a server has them.
    """
    if problems := check_folder(config):
        return problems
    folder = Path(config.path)
    problems = _check_config(folder)
    readable = not problems
    problems += check_weight_files(folder) + check_device(config) if weights else []
    tokenizer: PreTrainedTokenizerBase | None = None
    try:
        tokenizer = load_tokenizer(config)
        problems += check_template_kwargs(config.chat_template_kwargs, tokenizer)
    except ConfigError as error:
        problems.append(_no_tokenizer(config, str(error)))
    if readable and (tokenizer is not None or not has_tokenizer(config)):
        problems += _check_vocabulary(config, tokenizer)
    try:
        load_generation_config(config)
    except ConfigError as error:
        problems.append(str(error))
    return problems


def read_config(config: ModelConfig) -> PretrainedConfig | None:
    """The contents of config.json; None for a folder that cannot be read, which `check_model` reports."""
    if not (Path(config.path) / "config.json").is_file():
        return None
    try:
        described: PretrainedConfig = AutoConfig.from_pretrained(
            config.path, local_files_only=True, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError):
        return None
    return described


def has_tokenizer(config: ModelConfig) -> bool:
    """Whether the folder has any file of one; it may have only `config.json`, which is enough for a plan."""
    return config.tokenizer is not None or holds_tokenizer(Path(config.path))


def _no_tokenizer(config: ModelConfig, problem: str) -> str:
    if has_tokenizer(config):
        return problem
    return MissingHere(
        problem,
        missing=f"tokenizer in {config.path}",
        unchecked="how many tokens prompts have, the chat template, and whether its vocabulary fits the model",
    )


def check_weight_files(folder: Path) -> list[str]:
    """Files that are missing or cut short."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return _check_files(folder, [name])
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _check_index(index)
    return [_no_weights(folder, f"{folder} has no weights; looked for {', '.join(WEIGHTS)} and their .index.json")]


def _no_weights(folder: Path, problem: str) -> MissingHere:
    unchecked = "whether they are complete, and belong to the model that config.json describes"
    return MissingHere(f"model.path: {problem}", missing=f"weights in {folder}", unchecked=unchecked)


def read_json(file: Path) -> object:
    """Read a JSON file; None if it cannot be read or is not JSON."""
    try:
        content: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def _check_index(index: Path) -> list[str]:
    content = read_json(index)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        return [f"model.path: {index} has no weight_map"]
    files = sorted({str(name) for name in names.values()})
    missing = [name for name in files if not (index.parent / name).is_file()]
    problems: list[str] = []
    if missing:
        problems.append(_no_weights(index.parent, f"{index.name} names files that are missing: {', '.join(missing)}"))
    return problems + _check_files(index.parent, [name for name in files if name not in missing])


def _check_files(folder: Path, names: list[str]) -> list[str]:
    problems = (_check_file(folder / name) for name in names)
    return [problem for problem in problems if problem]


def _check_file(file: Path) -> str | None:
    """The header of a safetensors file says where its last tensor ends; other kinds have no such check."""
    size = file.stat().st_size
    if file.suffix != ".safetensors":
        return None if size else f"model.path: {file} is empty"
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH), "little")
            header = json.loads(opened.read(min(length, size)))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return f"model.path: {file} is not a readable safetensors file ({size} bytes): {error}"
    expected = _LENGTH + length + max(ends, default=0)
    if size == expected:
        return None
    return f"model.path: {file} has {size} bytes, its header says {expected}; fetch it again"


def _check_config(folder: Path) -> list[str]:
    file = folder / "config.json"
    if not file.is_file():
        adapter = (folder / "adapter_config.json").is_file()
        instead = "; it has a LoRA adapter: `ramet export` without --adapter writes the full model" if adapter else ""
        return [f"model.path: {folder} has no config.json{instead}"]
    return [] if isinstance(read_json(file), dict) else [f"model.path: {file} is not a JSON object"]


def _check_vocabulary(config: ModelConfig, tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Whether config.json describes a model, and one that knows every token."""
    try:
        model = AutoConfig.from_pretrained(
            config.path, local_files_only=True, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        return [f"model.path: transformers cannot read {config.path}/config.json: {error_text(error)}"]
    size = getattr(model, "vocab_size", None)
    if tokenizer is not None and size is not None and len(tokenizer) > size:
        return [
            f"model.tokenizer: {len(tokenizer)} tokens, but the model in {config.path!r} has only {size} embeddings"
        ]
    return []


def template_variables(tokenizer: PreTrainedTokenizerBase) -> frozenset[str] | None:
    """Names that the chat template reads and does not set. None: it uses a Jinja extension that is not known."""
    template = tokenizer.chat_template
    texts = template.values() if isinstance(template, dict) else [template or ""]
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return frozenset().union(*(meta.find_undeclared_variables(environment.parse(text)) for text in texts))
    except TemplateSyntaxError:
        return None


def check_template_kwargs(kwargs: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Keys of `model.chat_template_kwargs` that would have no effect, or replace what the run itself sets."""
    variables = template_variables(tokenizer)
    special = frozenset(tokenizer.special_tokens_map)
    problems = []
    for name in kwargs:
        if name in OURS | OF_RENDERING | special:
            problems.append(f"model.chat_template_kwargs.{name}: is set by the run itself; leave the key out")
        elif variables is not None and name not in variables:
            free = sorted(variables - OURS - GIVEN - special)
            problems.append(
                f"model.chat_template_kwargs.{name}: the chat template reads no such variable; it reads: "
                f"{', '.join(free) or 'none'}"
            )
    return problems
