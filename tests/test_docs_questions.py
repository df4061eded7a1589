"""Each question that users of such systems ask most has one place in the documents.

The questions are those of other systems' issue threads: what, and the page and heading that answer it. Error messages
may name pages too; those exist as well.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
PLACES = {
    "CUDA, driver and torch versions that work together": "install.md#cuda-torch-and-drivers",
    "how much memory N billion weights take, on 24 GB, with LoRA": "memory.md#what-fits",
    "are mixtures of experts, vision models, Gemma supported?": "supported.md#models",
    "models and data by their names on the hub": "data.md#names-of-the-hugging-face-hub",
    "loss or reward stays 0": "troubleshooting.md#the-reward-stays-0",
    "entropy collapse, gibberish, KL": "troubleshooting.md#entropy-collapses-text-degenerates-or-kl-grows",
    "out of memory, over turns too": "troubleshooting.md#out-of-memory",
    "a first multi-turn run with tools": "one_gpu.md#a-first-multi-turn-run-with-tools",
    "a reward that sees the tool calls": "rewards.md#a-function-in-a-file",
    "a judge, or a reward model": "troubleshooting.md#a-judge-or-a-reward-model",
    "from a checkpoint to a Hugging Face folder": "export.md#from-a-run",
    "resume on other GPUs": "running.md#what-may-change-between-attempts",
    "it hangs at the weight sync": "troubleshooting.md#it-hangs-at-the-weight-sync",
    "engine and trainer disagree": "troubleshooting.md#engine-and-trainer-disagree-mismatch",
    "Qwen3's history loses <think>": "troubleshooting.md#qwen3-history-loses-think",
    "what is trained in SFT; alpaca; text and call in one message": "sft.md#what-is-trained",
    "GPUs idle while tools run": "troubleshooting.md#gpus-idle-while-tools-run",
    "an environment fails and nothing says so": "troubleshooting.md#an-environment-fails-silently",
    "time-outs of tools": "troubleshooting.md#tools-time-out",
    "run failed samples again": "troubleshooting.md#run-failed-samples-again",
    "a local retriever": "search.md#with-a-retriever-of-your-own",
    "Kubernetes, an image, upgrade": "install.md#kubernetes",
}


def anchors(page: str) -> set[str]:
    """The headings of a page of docs/, as GitHub and MkDocs name them."""
    text = FENCE.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("question", PLACES)
def test_a_question_has_a_place_and_the_site_leads_there(question: str) -> None:
    page, _, anchor = PLACES[question].partition("#")
    assert anchor in anchors(page)
    nav = ROOT / "mkdocs.yml"
    assert not nav.is_file() or re.search(rf"[ /:]{re.escape(page)}", nav.read_text(encoding="utf-8"))


def test_there_are_22_questions_and_a_place_answers_one() -> None:
    assert len(PLACES) == len(set(PLACES.values())) == 22


def test_places_that_messages_name_exist() -> None:
    sources = [*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    named = {
        (path.relative_to(ROOT), page, anchor)
        for path in sources
        for page, anchor in re.findall(r"\bdocs/(\w+\.md)#([\w-]+)", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 1
    assert [place for place in sorted(named) if place[2] not in anchors(place[1])] == []
