"""From verl's FSDP shards to a Hugging Face folder."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ramet.cli import main
from ramet.config.schema import Dtype
from ramet.errors import ConfigError
from ramet.export.check import different_weights
from ramet.export.job import export_verl
from ramet.export.verl import read_shards

MakeShards = Callable[..., Path]


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)], ids=["one rank", "uneven shards", "replicas of shards"])
def test_shards_become_the_model_they_were_cut_from(make_shards: MakeShards, tmp_path, shape, policy: PreTrainedModel):
    exported = export_verl(make_shards(*shape), tmp_path / "out", dtype=Dtype.FLOAT32)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert different_weights(policy, loaded) == []
    assert exported.comparison.largest <= 1e-6 and not exported.recorded
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template is not None


def test_a_rank_may_hold_nothing_of_a_short_tensor(make_shards: MakeShards):
    short = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(read_shards(make_shards(5, tensors={"short": short}))["short"], short)


def test_plain_tensors_are_joined_along_dimension_0(make_shards: MakeShards, policy: PreTrainedModel):
    folder = make_shards(2)
    halves = {name: tensor.chunk(2) for name, tensor in policy.state_dict().items()}
    for rank in range(2):
        state = {name: pieces[rank].clone() for name, pieces in halves.items()}
        torch.save(state, folder / f"model_world_size_2_rank_{rank}.pt")
    found = read_shards(folder)
    assert all(torch.equal(found[name], tensor) for name, tensor in policy.state_dict().items())


def test_a_mesh_stored_as_torch_2_6_did_is_read(make_shards: MakeShards, policy: PreTrainedModel):
    """The reference ran on torch 2.6, whose meshes and specs have other attributes than the current ones."""
    folder = make_shards(2)
    for rank, file in enumerate(sorted(folder.glob("*.pt"))):
        state = torch.load(file, weights_only=True)
        for tensor in state.values():
            mesh = vars(tensor._spec.mesh)
            mesh.clear()
            mesh.update(
                device_type="cuda",
                mesh=torch.tensor([0, 1], dtype=torch.int32),
                mesh_dim_names=("fsdp",),
                _flatten_mesh_list=(0, 1),
                _thread_id=1,
                _coordinate_on_dim=[rank],
                _dim_group_infos=[("cuda:nccl", [0, 1], "0")],
            )
            del vars(tensor._spec)["shard_order"], vars(tensor._spec)["use_strided_shard_as_shard_order"]
        torch.save(state, file)
    found = read_shards(folder)
    assert all(torch.equal(found[name], tensor) for name, tensor in policy.state_dict().items())


def test_configuration_may_lie_beside_the_shards_or_in_a_folder_that_is_named(make_shards, tmp_path: Path, base: Path):
    folder = make_shards(1)
    shutil.rmtree(folder / "huggingface")
    with pytest.raises(ConfigError, match=r"no huggingface/config\.json and no config\.json; .*--model"):
        export_verl(folder, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"--model: .*actor .*config\.json"):
        export_verl(folder, tmp_path / "out", model=folder)
    export_verl(folder, tmp_path / "out", model=base)
    for file in base.glob("*.json*"):
        shutil.copy(file, folder)
    with pytest.raises(ConfigError, match="no chat template"):
        export_verl(folder, tmp_path / "again")
    shutil.copy(base / "chat_template.jinja", folder)
    export_verl(folder, tmp_path / "again")


def test_a_missing_tokenizer_is_named(make_shards: MakeShards, tmp_path: Path):
    folder = make_shards(1)
    for file in folder.glob("huggingface/token*"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"holds no tokenizer; .*tokenizer\.json"):
        export_verl(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_ranks_are_named(make_shards: MakeShards):
    folder = make_shards(4)
    (folder / "model_world_size_4_rank_1.pt").unlink()
    (folder / "model_world_size_4_rank_3.pt").unlink()
    with pytest.raises(ConfigError, match="of 4 ranks 1, 3 are missing; copy the shards of all nodes"):
        read_shards(folder)


def test_wrong_world_sizes_are_named(make_shards: MakeShards):
    folder = make_shards(2)
    extra = shutil.copy(folder / "model_world_size_2_rank_0.pt", folder / "model_world_size_2_rank_5.pt")
    with pytest.raises(ConfigError, match="ranks 5 do not belong to a world size of 2"):
        read_shards(folder)
    Path(extra).rename(folder / "model_world_size_4_rank_0.pt")
    with pytest.raises(ConfigError, match="mixes shards of the world sizes 2, 4"):
        read_shards(folder)


def test_files_renamed_to_a_smaller_world_size_do_not_pass(make_shards: MakeShards):
    folder = make_shards(4)
    for rank in range(4):
        file = folder / f"model_world_size_4_rank_{rank}.pt"
        file.unlink() if rank > 1 else file.rename(folder / f"model_world_size_2_rank_{rank}.pt")
    with pytest.raises(ConfigError, match=r"the shards of 2 ranks make \[\d+, 32\], its shape is \["):
        read_shards(folder)


def test_a_folder_without_shards_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"holds no model_world_size_W_rank_R\.pt"):
        read_shards(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        read_shards(tmp_path / "nowhere")


def test_another_model_is_refused_by_names_and_shapes(make_shards: MakeShards, policy: PreTrainedModel, tmp_path: Path):
    tensors = dict(policy.state_dict())
    tensors["score.weight"] = tensors.pop("model.norm.weight")
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(8, 32)
    with pytest.raises(ConfigError) as caught:
        export_verl(make_shards(1, tensors=tensors), tmp_path / "out")
    text = str(caught.value)
    assert "1 weights of the model" in text and "are missing: model.norm.weight" in text
    assert "1 weights are unknown to the model" in text and "score.weight" in text
    assert "model.layers.0.mlp.up_proj.weight is [8, 32], must be [60, 32]" in text


def test_tied_weights_that_differ_are_refused(make_shards: MakeShards, policy: PreTrainedModel, tmp_path: Path):
    tensors = dict(policy.state_dict()) | {"lm_head.weight": policy.lm_head.weight.detach() + 1}
    with pytest.raises(ConfigError, match=r"ties .* but their values differ"):
        export_verl(make_shards(1, tensors=tensors), tmp_path / "out")


def test_tied_weights_may_be_stored_once(make_shards: MakeShards, policy: PreTrainedModel, tmp_path: Path):
    tensors = dict(policy.state_dict())
    del tensors["lm_head.weight"]
    export_verl(make_shards(1, tensors=tensors), tmp_path / "out", dtype=Dtype.FLOAT32)
    assert different_weights(policy, AutoModelForCausalLM.from_pretrained(tmp_path / "out")) == []


def test_other_ways_of_sharding_are_refused(make_shards: MakeShards):
    folder = make_shards(2)
    for file in folder.glob("*.pt"):
        state = torch.load(file, weights_only=True)
        state["model.norm.weight"]._spec.placements = (Shard(1),)
        torch.save(state, file)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight: sharded as .*1.*; can be read: sharded along dim"):
        read_shards(folder)


def test_ranks_that_hold_other_names_are_refused(make_shards: MakeShards):
    folder = make_shards(2)
    file = folder / "model_world_size_2_rank_1.pt"
    state = torch.load(file, weights_only=True)
    del state["model.norm.weight"]
    torch.save(state, file)
    with pytest.raises(ConfigError, match=r"rank 1 holds other names than rank 0, such as model\.norm\.weight"):
        read_shards(folder)


def test_pieces_that_cannot_be_joined_are_named(tmp_path: Path):
    for rank in range(2):
        torch.save({"a.weight": torch.ones(2, 3 + rank)}, tmp_path / f"model_world_size_2_rank_{rank}.pt")
    with pytest.raises(ConfigError, match=r"a\.weight: Sizes of tensors must match"):
        read_shards(tmp_path)


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("this must not run",)


def test_a_shard_can_run_no_code(make_shards: MakeShards, capsys: pytest.CaptureFixture[str]):
    folder = make_shards(1)
    torch.save({"a": Harmful()}, folder / "model_world_size_1_rank_0.pt")
    with pytest.raises(ConfigError, match=r"rank_0\.pt: not a shard "):
        read_shards(folder)
    assert "this must not run" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", pickle.dumps([1])], ids=["empty", "cut", "no archive"])
def test_a_damaged_shard_is_named(make_shards: MakeShards, content: bytes):
    folder = make_shards(1)
    (folder / "model_world_size_1_rank_0.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"rank_0\.pt: not a shard that can be loaded safely"):
        read_shards(folder)


def test_a_file_of_something_else_is_named(make_shards: MakeShards):
    folder = make_shards(1)
    torch.save({"a": 1}, folder / "model_world_size_1_rank_0.pt")
    with pytest.raises(ConfigError, match="not a dictionary of tensors"):
        read_shards(folder)


def test_the_command_writes_bfloat16_as_the_reference_does(make_shards: MakeShards, tmp_path: Path, capsys):
    step = make_shards(2).parent  # as the converter of the reference is given it
    assert main(["export", "--from-verl", str(step), str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert "parameters in bfloat16" in captured.out and "sequences of random tokens" in captured.out
    assert "PGs" not in captured.err
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype is torch.bfloat16
