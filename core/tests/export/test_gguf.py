"""`ramet import`: small GGUF files, written with the package gguf, become folders with the same log-probabilities."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ramet.cli.app import main
from ramet.config.schema import Dtype
from ramet.errors import ConfigError, ConfigErrors
from ramet.export.gguf import ARCHITECTURES, import_gguf
from ramet.models.tiny import make_tiny_model, tiny_model

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

HEADS, KV_HEADS, LAYERS, CONTEXT = 4, 2, 2, 128
END, START = "<|im_end|>", "<|im_start|>"
# Pairs of digits are merged, so how text is cut shows in the tokens.
MERGES = ["1 2", "1 3", "Ġ a", "Ġ 1", "Ġ 12", "b c"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def vocabulary(architecture: str) -> list[str]:
    """transformers gives a Qwen's tokenizer the token `<|endoftext|>`, which all published ones have."""
    special = [START, END, "<|endoftext|>"] if architecture.startswith("qwen") else [START, END]
    return [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair.split()) for pair in MERGES)]


def head_dim(architecture: str) -> int:
    """transformers reads that of Qwen3 from no file: it takes 128, which all published ones have."""
    return 128 if architecture == "qwen3" else 8


def made(architecture: str) -> PreTrainedModel:
    return tiny_model(
        architecture,
        vocabulary=len(vocabulary(architecture)),
        hidden=32,
        intermediate=64,
        layers=LAYERS,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=head_dim(architecture),
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        tie_word_embeddings=True,
    ).eval()


def write_gguf(path: Path, architecture: str, pre: str = "smollm", *, kind: str = "gpt2", parts: int = 1) -> Path:
    """A file as llama.cpp's converter writes it: the rows of q and k of a llama are in the order of its rotation."""
    model = made(architecture) if architecture in ARCHITECTURES else made("llama")
    writer: Any = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(head_dim(architecture))
    writer.add_value_length(head_dim(architecture))
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_vocab_size(len(vocabulary(architecture)))
    if parts > 1:
        writer.add_uint16("split.count", parts)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary(architecture))
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in vocabulary(architecture)])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":  # tied
            writer.add_tensor(_named(name), _ordered(name, tensor, architecture).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _named(name: str) -> str:
    if name in TENSORS:
        return TENSORS[name]
    _, _, layer, part = name.split(".", 3)
    stem, _, end = part.rpartition(".")
    return f"blk.{layer}.{TENSORS[stem]}.{end}"


def _ordered(name: str, tensor: torch.Tensor, architecture: str) -> torch.Tensor:
    heads = HEADS if "q_proj" in name else KV_HEADS
    if architecture != "llama" or not ("q_proj" in name or "k_proj" in name):
        return tensor.contiguous()
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_computes_what_the_file_does(tmp_path: Path, architecture: str) -> None:
    file = write_gguf(tmp_path / "m.gguf", architecture, "smollm" if architecture == "llama" else "qwen2")
    imported = import_gguf(file, tmp_path / "out")
    ids = torch.tensor([[0, 5, 70, 71, 72, 200, 1]])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits
        torch.testing.assert_close(logits, made(architecture)(ids).logits, atol=1e-5, rtol=1e-4)
    assert (imported.architecture, imported.n_tokens, imported.quantisation) == (
        architecture,
        len(vocabulary(architecture)),
        "F32",
    )


def test_the_end_of_a_turn_and_the_template_are_the_files(tmp_path: Path) -> None:
    import_gguf(write_gguf(tmp_path / "m.gguf", "llama"), tmp_path / "out", dtype=Dtype.BFLOAT16)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (model.dtype, model.generation_config.eos_token_id, tokenizer.eos_token) == (torch.bfloat16, 1, END)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    assert (tokenizer.model_max_length, model.config.max_position_embeddings) == (CONTEXT, CONTEXT)


def test_a_tokenizer_beside_the_file_is_not_taken_for_the_files(tmp_path: Path) -> None:
    expected = import_gguf(write_gguf(tmp_path / "m.gguf", "llama", "llama-bpe"), tmp_path / "out").folder
    beside = tmp_path / "hub"
    beside.mkdir()
    text = (expected / "tokenizer.json").read_text(encoding="utf-8")
    (beside / "tokenizer.json").write_text(text.replace('"a":', '"?":').replace('"b":', '"a":').replace('"?":', '"b":'))
    (beside / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["own.Own", null]}}')
    (beside / "own.py").write_text("raise SystemExit('code of the folder ran')")
    imported = import_gguf(write_gguf(beside / "m.gguf", "llama", "llama-bpe"), tmp_path / "again").folder
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (imported / name).read_bytes() == (expected / name).read_bytes()


@pytest.mark.parametrize(
    ("pre", "tokens"),
    [
        ("smollm", ["Ġa", "bc", "Ġ", "1", "2", "1", "3"]),
        ("gpt-2", ["Ġa", "bc", "Ġ12", "13"]),
        ("qwen2", ["Ġa", "bc", "Ġ", "1", "2", "1", "3"]),
        ("llama-bpe", ["Ġa", "bc", "Ġ", "12", "1", "3"]),
    ],
)
def test_text_is_cut_as_the_file_says(tmp_path: Path, pre: str, tokens: list[str]) -> None:
    import_gguf(write_gguf(tmp_path / "m.gguf", "llama", pre), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize(" abc 1213") == tokens


def test_a_tokenizer_of_another_folder_is_taken(tmp_path: Path) -> None:
    own = make_tiny_model(tmp_path / "own", hidden=16, layers=1, heads=2, intermediate=16)
    file = write_gguf(tmp_path / "m.gguf", "llama", "unheard-of")
    with pytest.raises(ConfigError, match=r"the tokenizer has \d+ tokens, but the model in .* only 264 embeddings"):
        import_gguf(file, tmp_path / "out", tokenizer=own)
    known = import_gguf(write_gguf(tmp_path / "k.gguf", "llama"), tmp_path / "known").folder
    assert import_gguf(file, tmp_path / "out", tokenizer=known).pre_tokenizer is None
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (known / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("architecture", "changes", "problem"),
    [
        ("llama", {"pre": "unheard-of"}, "tokenizer.ggml.pre is 'unheard-of'; known: deepseek-r1-qwen, gpt-2"),
        ("llama", {"kind": "llama"}, "tokenizer.ggml.model is 'llama', and only byte-level ones"),
        ("llama", {"parts": 3}, "one part of a model of 3 files"),
        ("mamba", {}, "the architecture 'mamba' is not supported; supported: llama, qwen2, qwen3"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, architecture: str, changes: dict[str, Any], problem: str) -> None:
    file = write_gguf(tmp_path / "m.gguf", architecture, **changes)
    with pytest.raises(ConfigErrors, match=problem):
        import_gguf(file, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf"]


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\3\4 a zip")
    with pytest.raises(ConfigError, match="not a GGUF file: it begins with"):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"none.gguf: cannot be read: No such file"):
        import_gguf(tmp_path / "none.gguf", tmp_path / "out")
    whole = write_gguf(tmp_path / "m.gguf", "llama").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="not a complete GGUF file"):
        import_gguf(tmp_path / "cut.gguf", tmp_path / "out")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = write_gguf(tmp_path / "m.gguf", "qwen3"), tmp_path / "out"
    assert main(["import", str(file), str(out)]) == 0
    assert "text is cut as 'smollm'; read back, all weights are equal to the bit" in capsys.readouterr().out
    assert main(["import", str(file), str(out)]) == 1
    assert "is not an empty folder; nothing is overwritten" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert main(["import", str(file), str(tmp_path / "other")]) == 1
    assert "pip install 'ramet[gguf]'" in capsys.readouterr().err
