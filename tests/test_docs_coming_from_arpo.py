"""docs/coming_from_arpo.md is true: its commands compose or parse, and what the guides of ARPO type is on it."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from ramet.cli.commands import COMMANDS
from ramet.cli.terminal import asked_parser
from ramet.config.compose import compose
from ramet.config.sections import without_model
from ramet.plugins.extensions import COMMANDS as EXTENSIONS
from ramet.plugins.extensions import extension

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "coming_from_arpo.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
JOBS = ("train", "sft", "eval", "play", "judge")
MIGRATED = "experiment=qwen"  # the recipe that the command before it writes
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


@pytest.mark.parametrize("command", [line for line in commands() if MIGRATED not in line])
def test_a_command_of_the_page_composes_or_parses(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, name, *words = shlex.split(command)
    overrides = [word for word in words if re.match(r"[\w.]+=", word)]
    if name in JOBS and words[:1] != ["import"]:
        assert compose(overrides if name != "judge" else without_model(overrides), job=name).job == name
        return
    if name not in COMMANDS:
        assert callable(extension(EXTENSIONS, name, ()).load())
        return
    if name == "tool":
        assert compose(without_model([f"tools=[{words[1]}]", *overrides]), job="tool").job == "tool"
        return
    run, parsed = COMMANDS[name].run, words
    if name == "eval":
        run, parsed = importlib.import_module("ramet.cli.eval_import").run, words[1:]
    parser = asked_parser(run)
    assert parser is not None
    assert parser.parse_intermixed_args(parsed[: parsed.index("--")] if "--" in parsed else parsed)
