"""Names of other systems, with what serves here instead, and commands of packages that may be absent, for messages."""

from __future__ import annotations

from collections.abc import Mapping

SERVER = "engine=openai measures a model behind such a server (engine.params.server.urls); training takes engine=vllm"
RAY = "cluster=ray connects processes that a scheduler started (docs/scaling.md); cluster=local is one process"
SHARDS = "cluster=ray shards the policy over cluster.policy_workers (FSDP2)"
LOGGED = "wandb, tensorboard and jsonl (a file of the run) serve here; `ramet new tracker NAME` starts another one"
PACKAGE = "It is in a package: pip install {!r}. Add --find-links FOLDER where Ramet's wheels are in a folder"
INSTEAD: Mapping[str, Mapping[str, str]] = {
    "engine": {
        **dict.fromkeys(("sglang", "tgi", "lmdeploy", "ollama", "llamacpp", "llama_cpp", "litellm", "server"), SERVER),
        **dict.fromkeys(("hf", "huggingface", "transformers", "pytorch"), "engine=torch runs the model in PyTorch"),
    },
    "cluster": {
        **dict.fromkeys(("slurm", "kubernetes", "k8s", "torchrun", "mpi"), RAY),
        **dict.fromkeys(("fsdp", "fsdp2", "deepspeed", "megatron", "accelerate", "ddp"), SHARDS),
    },
    "commands": {
        **dict.fromkeys(("credit", "test"), PACKAGE.format("ramet-replay[train]")),
        **dict.fromkeys(("cache", "corpus"), PACKAGE.format("ramet-tools-bing")),
        "bench": PACKAGE.format("ramet-benchmarks[branching]"),
    },
    "trackers": dict.fromkeys(("mlflow", "swanlab", "comet", "comet_ml", "neptune", "clearml", "trackio"), LOGGED),
}


def served_instead(group: str, name: str) -> str:
    """Return ` TEXT.` about what serves in place of a name, or where it is; empty for any other name."""
    text = INSTEAD.get(group, {}).get(name.lower().replace("-", "_"))
    return f" {text}." if text else ""
