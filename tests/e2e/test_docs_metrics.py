"""docs/metrics.md against the code: every name that is logged is on the page, and every name of the page is logged.

Names come from a small run, from the source (literals and f-strings that begin with an area), and from what tools
count.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from ramet.rollout.tools.stats import ToolStats, tool_metrics

ROOT = Path(__file__).parents[2]
AREAS = "reward|source|group|budget|rollout|step|tool|engine|train|advantage|critic|time|valid|eval|sft"
NAME = re.compile(rf"(?:{AREAS})/[\w@/{{}}]*[\w}}]")
HOLE = "{}"  # where an f-string has a value
OPEN = (
    "reward",
    "source",
    "step",
    "tool",
    "valid",
    "eval",
)  # areas where a run gives names; `train/NAME`: plugins alone
PREFIXES = {"tool/{}"}  # of names, and no names
MEASURED = ("valid/", "eval/")
PASSES = "{}/pass@{}"  # what `BenchmarkResult.means` says besides each metric
TESTING = ROOT / "core/src/ramet/testing"  # doubles, which no run has


def on_page() -> set[str]:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def in_source() -> set[str]:
    """Names of the source, `{}` where a value is."""
    found = all_texts()
    names = {text for text in found if NAME.fullmatch(text)}
    if PASSES in found:
        measured = {name for name in names if name.startswith(MEASURED) and name.endswith(f"/{HOLE}/{HOLE}")}
        names |= {f"{name.removesuffix(HOLE)}{PASSES}" for name in measured}
    return names


def all_texts() -> set[str]:
    files = [file for part in ("core/src", "plugins") for file in (ROOT / part).rglob("*.py") if "/src/" in str(file)]
    return {text for file in files if TESTING not in file.parents for text in texts(ast.parse(file.read_text()))}


def texts(tree: ast.AST) -> set[str]:
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in joined for part in node.values}
    literals = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in inside)
    return {node.value for node in literals if isinstance(node.value, str)} | {
        "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values) for node in joined
    }


def alike(page: str, code: str, *, open: bool) -> bool:
    """`open`: a capital word of the page matches any."""
    pages, codes = (re.split(r"([/@])", name) for name in (page, code))
    return len(pages) == len(codes) and all(
        one == other or re.fullmatch(re.escape(other).replace(re.escape(HOLE), r"\w+"), one) or (open and one.isupper())
        for one, other in zip(pages, codes, strict=True)
    )


@pytest.fixture(scope="module")
def logged(ramet, workspace, tmp_path_factory) -> set[str]:
    folder = tmp_path_factory.mktemp("metrics")
    rows = [{"prompt": f"task {i}", "answer": "x", "data_source": f"source{i % 2}"} for i in range(4)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ["data.train=[tasks.jsonl]", "data.valid=[tasks.jsonl]", "train.steps=1", "train.eval_every=1"]
    more += ["advantage=gae"]  # with a critic, whose names are made of those of the policy
    assert ramet(*workspace.train("run.root=.", "run.name=run", *more), cwd=folder).code == 0
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    stats = ToolStats(wait_s=[1.0], run_s=[1.0], waits_s=[1.0], exceptions=Counter(KeyError=1))
    counted = tool_metrics({"x": stats})
    return {name for line in lines for name in line if name not in ("step", "time")} | counted.keys()


def test_every_name_that_is_logged_is_on_the_page(logged: set[str]):
    page = on_page()

    def is_there(name: str, *, given: bool) -> bool:
        return any(alike(one, name, open=given and name.startswith(OPEN)) for one in page)

    missing = {name for name in logged if not is_there(name, given=True)}
    missing |= {name for name in in_source() - PREFIXES if not is_there(name, given=HOLE in name)}
    assert missing == set()


def test_every_name_on_the_page_is_logged(logged: set[str]):
    code = logged | in_source()
    assert {name for name in on_page() if not any(alike(name, one, open=True) for one in code)} == set()
