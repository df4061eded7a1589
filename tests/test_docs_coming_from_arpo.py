"""docs/coming_from_arpo.md is complete: what the guides of ARPO type is on it.

tests/test_docs_marks.py checks its commands.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "coming_from_arpo.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
# What ARPO's README and guides have a reader type, apart from environments and editors.
TYPED = (
    "sft_train.sh", "ARPO_7B_Reasoning_1node.sh", "ARPO_14B_DeepSearch.sh", "AEPO_Qwen3_14B_DeepResearch.sh",
    "convert_checkpoint_from_verl_to_hf_qwen3.sh", "infer_local_sds.sh", "evaluate_passk.sh", "vllm serve",
    "infer_local_sds_cn.sh", "vllm_launch_reasoning_model_cuda4-7.sh", "deploy_qwen2.5_72B_instruct.sh", "wandb login",
    "convert_verl_to_hf.py", "vllm_launch_summarize_model",
    "wget", "read_parquet", "ls -lh", "search_cache.json", "run.log", "nvidia-smi",
    "ray start", "ray stop", "compute_score", "from_pretrained", "verl.trainer.main_ppo", "dataset_info.json",
)  # fmt: skip


def commands() -> list[str]:
    text = "\n".join(BLOCKS).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.startswith("ramet ")]


def test_what_the_guides_type_is_on_the_page() -> None:
    assert [text for text in TYPED if text.lower() not in PAGE.lower()] == []
    assert len(commands()) >= 25
