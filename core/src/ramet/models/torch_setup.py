"""Settings of torch for the process: threads, determinism, seeds. Every job calls this once, before it builds."""

from __future__ import annotations

import random

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from ramet.config.schema import ModelConfig, RunConfig


def check_torch(run: RunConfig, model: ModelConfig) -> list[str]:
    """Why a run cannot be deterministic on this machine. A device that is named is checked with the configuration."""
    if not run.deterministic or model.device != "auto" or not torch.cuda.is_available():
        return []
    return ["run.deterministic=true: holds on CPU only, and model.device=auto means cuda here; set model.device=cpu"]


def set_up_torch(run: RunConfig) -> None:
    """Deterministic runs use one thread and only algorithms that give the same bits every time."""
    threads = 1 if run.deterministic else run.threads
    if threads is not None:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(run.deterministic)
    torch.manual_seed(run.seed)
    random.seed(run.seed)  # only plugins draw from these two; checkpoints have the state of all three
    np.random.seed(run.seed % 2**32)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
