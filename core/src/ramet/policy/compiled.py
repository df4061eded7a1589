"""torch.compile of every transformer block: one block is compiled, and the others, which are alike, reuse its code.

Sequence lengths differ from micro-batch to micro-batch, so shapes are dynamic from the first call.
"""

from __future__ import annotations

import os

from transformers import PreTrainedModel

from ramet.errors import ConfigError

SWITCH = "TORCHDYNAMO_DISABLE"


def compile_blocks(model: PreTrainedModel, backend: str = "inductor") -> None:
    """In place; names of parameters stay. To be called before the model is sharded.

    Compilation happens in the first pass. Inductor needs Triton on CUDA, and on a CPU a C++ compiler. Raises
    `ConfigError` where torch would silently not compile.
    """
    if os.environ.get(SWITCH) == "1":
        raise ConfigError(
            f"policy.compile=true: {SWITCH}=1 switches compilation off in this process (engine=vllm sets it on a CPU); "
            "use cluster=ray, where engine and policy are apart, or leave policy.compile out"
        )
    names = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in names:
            module.compile(dynamic=True, backend=backend)
