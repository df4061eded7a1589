"""What keys declare of themselves: a new one cannot forget which jobs read it, nor what a resume does with a change."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from ramet import Resume, Tool, option
from ramet.config.keys import ENTRIES, FIELDS, JOBS, MAPS, resume_of, unused_key
from ramet.errors import ConfigError
from ramet.plugins import load_plugins
from ramet.plugins.registry import Entry
from ramet.runs.resume import is_safe

LEAVES = [key for key in FIELDS if not any(other.startswith(f"{key}.") for other in FIELDS)]

ROOT = Path(__file__).parents[3]
DOCS = "\n".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/*.md") if page.name != "audits.md")
TESTS = "\n".join(
    file.read_text(encoding="utf-8")
    for folder in ("core/tests", "tests", "plugins")
    for file in (ROOT / folder).rglob("*.py")
    if "tests" in file.parts and file != Path(__file__)
)


def set_in_tests() -> set[str]:
    """Every word that a test sets to something: `lr=`, `"lr": `, `lr: ` or a dotted `policy.lr`, `config.policy.lr`."""
    found = re.findall(r"""\b(?:([\w.]+)(?:['"]?: |=)|(\w+(?:\.\w+)+))""", TESTS)
    names = {name for pair in found for name in pair if name}
    parts = [name.split(".") for name in names]
    return names | {f"{owner}.{name}" for path in parts for owner, name in pairwise(path)}


SET_IN_TESTS = set_in_tests()


def missing_facts(key: str) -> list[str]:
    """Return what a new key still lacks, each with the place where it belongs. A plugin's options explain `params`."""
    words = re.escape(key).replace("NAME", r"(?:NAME|\w+)")
    explained = FIELDS[key].metadata.get("help") or re.search(rf"(?<![\w.]){words}(?!\w)", DOCS)
    *_, owner, name = key.replace(".NAME", "").split(".") if "." in key else ("", key)
    tested = {name, f"{owner}.{name}"} & SET_IN_TESTS
    return [
        *([] if explained else [f"{key}: no help sentence in its `option(…)`, nor a line in docs/*.md that names it"]),
        *([] if tested else [f"{key}: no test that sets it, as `{name}=`, `{owner}.{name}` or in YAML"]),
    ]


@pytest.mark.parametrize("key", LEAVES)
def test_each_key_is_explained_and_set_in_a_test(key: str) -> None:
    """Adding a key touches two files: the one that declares it, with all its facts, and the test of its effect."""
    assert missing_facts(key) == []


def test_a_key_that_lacks_a_fact_is_named_with_the_place_of_the_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIELDS, "policy.newly_made", dataclasses.field(default=1))
    assert missing_facts("policy.newly_made") == [
        "policy.newly_made: no help sentence in its `option(…)`, nor a line in docs/*.md that names it",
        "policy.newly_made: no test that sets it, as `newly_made=`, `policy.newly_made` or in YAML",
    ]


@pytest.mark.parametrize("key", LEAVES)
def test_each_key_or_its_section_declares_what_a_resume_does_with_a_change_of_it(key: str) -> None:
    """Not both: a section declares what holds for all of its keys."""
    parts = key.split(".")
    declared = [FIELDS[".".join(parts[:n])].metadata.get("resume") for n in range(1, len(parts) + 1)
                if ".".join(parts[:n]) in FIELDS]  # fmt: skip
    decided = [one for one in declared if one is not None]
    assert len(decided) == 1, f"{key}: resume=Resume.… belongs in its `option(…)` or in that of its section, not both"


@pytest.mark.parametrize("key", LEAVES)
def test_each_key_is_read_by_a_job_and_what_it_names_instead_is_a_key(key: str) -> None:
    assert [job for job in JOBS if unused_key(key, job) is None] != []
    for other in FIELDS[key].metadata.get("instead", {}).values():
        assert other is None or other in (*FIELDS, *ENTRIES) or other.startswith("--")


def test_each_section_says_which_jobs_build_it() -> None:
    assert [key for key in FIELDS if "." not in key and not FIELDS[key].metadata["jobs"]] == []
    assert MAPS < set(FIELDS)


@pytest.mark.parametrize(
    ("key", "declared"),
    [
        ("policy.lr", Resume.NUMBERS),
        ("engine.params.slots", Resume.MEMORY),
        ("engine.params.server.timeout_s", Resume.PATIENCE),
        ("engine.params.server.model", Resume.NUMBERS),
        ("tools.search.concurrency", Resume.FAILURES),
        ("tools.any.params.timeout_s", Resume.NUMBERS),
        ("benchmarks.math.params.x", Resume.MEASURED),
        ("tools.any.params", Resume.NUMBERS),  # a component without options has `params: null`
        ("advantage.params", Resume.NUMBERS),
        ("data.columns.prompt", Resume.NUMBERS),
        ("no.such_key", Resume.NUMBERS),
    ],
)
def test_a_key_has_what_the_innermost_field_declares(key: str, declared: Resume) -> None:
    assert resume_of(key) is declared


@dataclass(kw_only=True, slots=True)
class Options:
    share: float = option(0.5, "of all", minimum=0, maximum=1)
    workers: int = option(2, "processes", minimum=1, resume=Resume.SAFE)


def test_a_plugins_option_has_range_and_resume_without_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    entry: Entry[Tool] = Entry(
        kind="tool", name="mine", factory=lambda options: options, config=Options, plugin="p", distribution="d"
    )
    monkeypatch.setitem(load_plugins().registries.tools._entries, "mine", entry)
    assert is_safe("train", "tools.mine.params.workers", 2, 4)
    assert not is_safe("train", "tools.mine.params.share", 0.5, 1)
    with pytest.raises(ConfigError, match=r"share must be .*, got 2; workers must be"):
        entry.build(Options(share=2, workers=0))
