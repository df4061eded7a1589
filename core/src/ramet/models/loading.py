"""Loading models and tokenizers from Hugging Face folders on disk. Nothing here ever asks the network.

What can be found without loading weights is in `check.py`, so that a run reports it before it starts.
"""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ramet.config.schema import Config, Dtype, ModelConfig
from ramet.errors import ConfigError, MissingHere
from ramet.models.attention import attention_for
from ramet.models.encoder import Encoder

logger = logging.getLogger(__name__)
TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken")  # patterns of its files
DTYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer, with a pad token and a chat template. Raises `ConfigError`."""
    folder = config.tokenizer or config.path
    key = "model.tokenizer" if config.tokenizer else "model.path"
    if not Path(folder).is_dir():
        raise ConfigError(f"{key}: {folder!r} is not a folder; the tokenizer's files must be on this machine")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        if not holds_tokenizer(Path(folder)):  # transformers then asks for packages that would not help
            raise ConfigError(f"{key}: {folder!r} holds no tokenizer; looked for {', '.join(TOKENIZER)}") from error
        raise ConfigError(f"{key}: {folder!r} holds no tokenizer that can be loaded: {error_text(error)}") from error
    _check_vocabulary_files(tokenizer, Path(folder), key)
    if tokenizer.eos_token_id is None or _is_invented(tokenizer.eos_token, Path(folder)):
        raise ConfigError(f"{key}: the tokenizer in {folder!r} has no end-of-sequence token (eos_token)")
    if config.chat_template is not None:
        tokenizer.chat_template = _read_template(config.chat_template)
    if tokenizer.chat_template is None:
        raise ConfigError(
            f"{key}: the tokenizer in {folder!r} has no chat template; name a template file in model.chat_template"
        )
    if tokenizer.pad_token_id is None or _is_invented(tokenizer.pad_token, Path(folder)):
        _note_missing_pad(folder)
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def holds_tokenizer(folder: Path) -> bool:
    """Whether there is any file of one."""
    return any(any(folder.glob(pattern)) for pattern in TOKENIZER)


def build_encoder(config: Config) -> Encoder:
    """The encoder of a run: the model's tokenizer with the settings of its chat template. Raises `ConfigError`."""
    tokenizer = load_tokenizer(config.model)
    return Encoder(
        tokenizer,
        template_kwargs=config.model.chat_template_kwargs,
        chat_markup=config.data.chat_markup,
        ends=[i for i in _declared_ends(config.model) if i < len(tokenizer)],
    )


def _declared_ends(config: ModelConfig) -> list[int]:
    """Return the tokens with which `generation_config.json` ends a text: of Qwen2.5 also `<|endoftext|>`, of Llama 3.1
    also `<|end_of_text|>`. They belong to the vocabulary in the same folder, so not to a tokenizer from elsewhere.
    """
    generation_config = None if config.tokenizer else load_generation_config(config)
    ends = None if generation_config is None else generation_config.eos_token_id
    return [ends] if isinstance(ends, int) else list(ends or ())


@functools.cache  # a run loads its tokenizer several times
def _note_missing_pad(folder: str) -> None:
    logger.info("the tokenizer in %s has no pad token: its end-of-sequence token is used", folder)


def _check_vocabulary_files(tokenizer: PreTrainedTokenizerBase, folder: Path, key: str) -> None:
    """Raise `ConfigError` without any: transformers would make an empty tokenizer of the model's class."""
    names = list(dict.fromkeys(tokenizer.vocab_files_names.values()))
    if names and not any((folder / name).is_file() for name in names):
        raise ConfigError(f"{key}: {str(folder)!r} holds no tokenizer; looked for {', '.join(names)}")


def _is_invented(token: str, folder: Path) -> bool:
    """Whether the files do not name the token: transformers gives its class's default a new, untrained id."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return False
    text = file.read_text(encoding="utf-8")
    return json.dumps(token) not in text and json.dumps(token, ensure_ascii=False) not in text


def load_model(config: ModelConfig, *, device: torch.device | None = None) -> PreTrainedModel:
    """The causal language model in evaluation mode, on `model.device`. Raises `ConfigError`.

    `device` is used instead for a model that will be moved piece by piece, when it is sharded.
    """
    target = resolve_device(config)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            config.path,
            dtype=DTYPES[config.dtype],
            attn_implementation=attention_for(config, target, _described(config)),
            local_files_only=True,
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"model.path: could not load a causal language model from {config.path!r}: {error_text(error)}"
        ) from error
    model, missing = loaded[0], sorted(loaded[1]["missing_keys"])
    if missing:  # transformers would use random numbers instead
        raise ConfigError(
            f"model.path: the files in {config.path!r} lack {len(missing)} weights of the model that config.json "
            f"describes: {', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}"
        )
    ready: PreTrainedModel = model.to(device or target).eval()
    return ready


def _described(config: ModelConfig) -> PretrainedConfig:
    described: PretrainedConfig = AutoConfig.from_pretrained(
        config.path, local_files_only=True, trust_remote_code=config.trust_remote_code
    )
    return described


def model_without_weights(config: ModelConfig) -> PreTrainedModel:
    """Build the model with all parameters on the meta device and buffers in host memory. Raises `ConfigError`."""
    try:
        described = _described(config)
        with init_empty_weights(include_buffers=False):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                described,
                dtype=DTYPES[config.dtype],
                attn_implementation=attention_for(config, resolve_device(config), described),
                trust_remote_code=config.trust_remote_code,
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ConfigError(
            f"model.path: could not build the model that {config.path!r} describes: {error_text(error)}"
        ) from error
    model.tie_weights()  # every assignment above made a separate parameter
    if (generation := load_generation_config(config)) is not None:
        model.generation_config = generation
    model.train(False)
    return model


def load_generation_config(config: ModelConfig) -> GenerationConfig | None:
    """The folder's `generation_config.json`; None if it has none. Raises `ConfigError` for one that contradicts itself:
    transformers reads such a file, and refuses to write it when the trained model is saved.
    """
    file = Path(config.path) / "generation_config.json"
    if not file.is_file():
        return None
    try:
        generation_config: GenerationConfig = GenerationConfig.from_pretrained(config.path, local_files_only=True)
        generation_config.validate(strict=True)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file}: transformers does not write such a generation config: {reason}") from error
    return generation_config


def resolve_device(config: ModelConfig) -> torch.device:
    """The device that `model.device` means on this machine. Raises `ConfigError` for one that is not there."""
    problems = check_device(config)
    if problems:
        raise ConfigError(problems[0])
    return torch.device(device_kind(config) if config.device == "auto" else config.device)


def device_kind(config: ModelConfig) -> str:
    """`cpu` or `cuda`: what `model.device` asks for, or with `auto` what this machine has."""
    if config.device != "auto":
        return config.device.partition(":")[0]
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(config: ModelConfig) -> list[str]:
    kind = config.device.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda"):
        return [f"model.device: {config.device!r} is not allowed; allowed: auto, cpu, cuda"]
    if kind == "cuda" and not torch.cuda.is_available():
        problem = f"model.device: {config.device!r}, but torch finds no CUDA device; allowed here: auto, cpu"
        return [MissingHere(problem, missing="GPUs")]
    return []


def error_text(error: Exception) -> str:
    """transformers' message in one line, in the words of this configuration."""
    if "trust_remote_code" in str(error):
        return "it brings its own Python code; read that, and set model.trust_remote_code=true to let it run"
    return " ".join(str(error).split())


def _read_template(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model.chat_template: cannot read the template file {file!r}: {error}") from error
