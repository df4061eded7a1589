"""A Hugging Face folder of a GGUF file: its weights without quantisation, its configuration, tokenizer and template.

transformers reads both, but cuts the text of some tokenizers as GPT-2's does, silently: numbers are then other tokens
than the model was taught. `tokenizer.ggml.pre` names the right way, and one that is not known here is refused. The
folder is loaded again and compared before it is moved to its path.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ramet.config.schema import Dtype, ModelConfig, RunConfig
from ramet.errors import ConfigError, InfraError, raise_all
from ramet.export.check import TEXT, different_weights, same_tokens
from ramet.export.folder import new_folder, require_new
from ramet.models.loading import DTYPES, error_text, load_model
from ramet.models.torch_setup import set_up_torch

MAGIC = b"GGUF"
ARCHITECTURES = ("llama", "qwen2", "qwen3")  # those whose log-probabilities the tests compare
BYTE_LEVEL = "gpt2"  # `tokenizer.ggml.model` of byte-level BPE


def _smollm(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _llama3(tokenizer: Tokenizer) -> None:
    """transformers splits as it must. A word that is in the vocabulary is one token, whatever the merges make of it."""
    tokenizer.model.ignore_merges = True


def _as_read(tokenizer: Tokenizer) -> None:
    """transformers splits as it must."""


# By `tokenizer.ggml.pre`: what transformers leaves to be done.
PRE_TOKENIZERS: Mapping[str, Callable[[Tokenizer], None]] = {
    "deepseek-r1-qwen": _as_read,
    "gpt-2": _as_read,
    "llama-bpe": _llama3,
    "qwen2": _as_read,
    "smollm": _smollm,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    folder: Path
    source: Path
    architecture: str
    pre_tokenizer: str | None  # None: the tokenizer is another folder's
    quantisation: str  # types of the weights in the file, as in `F32, Q4_1`
    dtype: Dtype
    n_parameters: int
    n_tokens: int  # of the vocabulary
    has_template: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    fields: Mapping[str, Any]
    tokens: tuple[str, ...]  # by id
    types: tuple[str, ...]  # of tensors

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", "unknown"))

    @property
    def pre_tokenizer(self) -> str:
        return str(self.fields.get("tokenizer.ggml.pre", "none"))


def import_gguf(source: Path, out: Path, *, dtype: Dtype = Dtype.FLOAT32, tokenizer: Path | None = None) -> Imported:
    """Write the folder. `tokenizer`: take it from this Hugging Face folder instead of the file.

    Raises `ConfigErrors` before anything is written, and `InfraError` if the folder cannot be written or, read back,
    is not what the file holds.
    """
    require_new(out)
    header = _read_header(source)
    raise_all(_problems(header, source, tokenizer))
    set_up_torch(RunConfig())
    with tempfile.TemporaryDirectory() as empty:  # transformers prefers a tokenizer.json next to the file to the file
        link = Path(empty) / "model.gguf"
        link.symlink_to(source.resolve())
        words = _tokenizer_of(link, source, header) if tokenizer is None else _tokenizer_in(tokenizer)
        _require_exact(words, source if tokenizer is None else tokenizer)
        model = _model_of(link, source, dtype)
    if len(words) > (size := model.config.vocab_size):
        raise ConfigError(f"the tokenizer has {len(words)} tokens, but the model in {source} only {size} embeddings")
    _use_tokens(model, words)
    with new_folder(out) as folder:
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        _compare(model, words, folder, dtype, out)
    return Imported(
        folder=out,
        source=source,
        architecture=header.architecture,
        pre_tokenizer=header.pre_tokenizer if tokenizer is None else None,
        quantisation=", ".join(header.types),
        dtype=dtype,
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        n_tokens=len(words),
        has_template=words.chat_template is not None,
    )


def _read_header(source: Path) -> _Header:
    """Read it. Raises `ConfigError` for a file that is not a complete GGUF file, or without the package gguf."""
    try:
        with source.open("rb") as file:
            begin = file.read(len(MAGIC))
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror or error}") from error
    if begin != MAGIC:
        raise ConfigError(f"{source}: not a GGUF file: it begins with {begin!r} instead of {MAGIC!r}")
    try:
        from gguf import GGUFReader
    except ImportError as error:
        needed = "reading GGUF files needs the package gguf; install it with: pip install 'ramet[gguf]'"
        raise ConfigError(needed) from error
    try:
        reader = GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
        tokens = reader.fields["tokenizer.ggml.tokens"].contents() if "tokenizer.ggml.tokens" in reader.fields else ()
    except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        raise ConfigError(f"{source}: not a complete GGUF file: {error_text(error)}") from error
    types = tuple(sorted({tensor.tensor_type.name for tensor in reader.tensors}))
    return _Header(fields=fields, tokens=tuple(tokens), types=types)


def _problems(header: _Header, source: Path, tokenizer: Path | None) -> list[str]:
    problems = []
    if int(header.fields.get("split.count", 1)) > 1:
        problems.append(f"{source}: one part of a model of {header.fields['split.count']} files; merge them first")
    if header.architecture not in ARCHITECTURES:
        allowed = ", ".join(ARCHITECTURES)
        problems.append(f"{source}: the architecture {header.architecture!r} is not supported; supported: {allowed}")
    if tokenizer is not None:
        return problems
    kind = header.fields.get("tokenizer.ggml.model")
    other = "or give the folder of the model's own tokenizer by --tokenizer"
    if kind != BYTE_LEVEL:
        problems.append(
            f"{source}: tokenizer.ggml.model is {kind!r}, and only byte-level ones ({BYTE_LEVEL!r}) are read; {other}"
        )
    elif header.pre_tokenizer not in PRE_TOKENIZERS:
        known_names = ", ".join(PRE_TOKENIZERS)
        problems.append(
            f"{source}: how its tokenizer cuts text into words is not known: tokenizer.ggml.pre is "
            f"{header.pre_tokenizer!r}; known: {known_names}; {other}"
        )
    return problems


def _tokenizer_of(link: Path, source: Path, header: _Header) -> PreTrainedTokenizerBase:
    try:
        words: Any = AutoTokenizer.from_pretrained(
            link.parent, gguf_file=link.name, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"{source}: transformers cannot read its tokenizer: {error_text(error)}") from error
    backend = _own_tokens(words.backend_tokenizer, header.tokens)
    read = sorted(backend.get_vocab(), key=backend.get_vocab().__getitem__)
    if tuple(read) != header.tokens:
        raise ConfigError(f"{source}: transformers reads other tokens than the {len(header.tokens)} of the file")
    PRE_TOKENIZERS[header.pre_tokenizer](backend)
    special_tokens = {name: token for name, token in words.special_tokens_map.items() if token in header.tokens}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        chat_template=words.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=int(header.fields.get(f"{header.architecture}.context_length", words.model_max_length)),
        **special_tokens,
    )


def _own_tokens(tokenizer: Tokenizer, tokens: Collection[str]) -> Tokenizer:
    """The tokenizer without what transformers adds: `<|endoftext|>`, which not every file has."""
    described = json.loads(tokenizer.to_str())
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] in tokens]
    return Tokenizer.from_str(json.dumps(described))


def _tokenizer_in(folder: Path) -> PreTrainedTokenizerBase:
    try:
        words: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ConfigError(
            f"--tokenizer: {folder} holds no tokenizer that can be loaded: {error_text(error)}"
        ) from error
    return words


def _require_exact(words: PreTrainedTokenizerBase, where: Path) -> None:
    again = words.decode(words.encode(TEXT, add_special_tokens=False))
    if again != TEXT:
        raise ConfigError(f"{where}: its tokenizer changes text: {TEXT!r} comes back as {again!r}")


def _model_of(link: Path, source: Path, dtype: Dtype) -> PreTrainedModel:
    from transformers import GgufConfig

    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            link.parent,
            gguf_file=link.name,
            dtype=DTYPES[dtype],
            local_files_only=True,
            quantization_config=GgufConfig(dequantize=True),
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, NotImplementedError) as error:
        raise ConfigError(f"{source}: transformers cannot read its weights: {error_text(error)}") from error
    weights = [name for name, tensor in model.state_dict().items() if not tensor.is_floating_point()]
    if weights:
        raise ConfigError(f"{source}: {len(weights)} weights stay quantised, such as {weights[0]}")
    return model.to(torch.device("cpu")).eval()  # type: ignore[arg-type,no-any-return]


def _use_tokens(model: PreTrainedModel, words: PreTrainedTokenizerBase) -> None:
    """The end of a turn and of padding, as the tokenizer has them."""
    ids = {
        "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id if words.pad_token_id is not None else words.eos_token_id,
    }
    for name, value in ids.items():
        setattr(model.config, name, value)
    model.generation_config = GenerationConfig(**ids)  # type: ignore[no-untyped-call]


def _compare(model: PreTrainedModel, words: PreTrainedTokenizerBase, folder: Path, dtype: Dtype, out: Path) -> None:
    again = load_model(ModelConfig(path=str(folder), dtype=dtype, device="cpu"))
    if different := different_weights(model, again):
        raise InfraError(f"{out}: not written: read back, {len(different)} weights differ, such as {different[0]}")
    read: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not same_tokens(words, read):
        raise InfraError(f"{out}: not written: read back, the tokenizer makes other tokens")
