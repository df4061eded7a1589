"""What keys declare of themselves: a new one cannot forget which jobs read it, nor what a resume does with a change."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ramet import Resume, Tool, option
from ramet.config.keys import ENTRIES, FIELDS, JOBS, MAPS, resume_of, unused_key
from ramet.errors import ConfigError
from ramet.plugins import load_plugins
from ramet.plugins.registry import Entry
from ramet.runs.resume import is_safe

LEAVES = [key for key in FIELDS if not any(other.startswith(f"{key}.") for other in FIELDS)]


@pytest.mark.parametrize("key", LEAVES)
def test_each_key_or_its_section_declares_what_a_resume_does_with_a_change_of_it(key: str) -> None:
    """Not both: a section declares what holds for all of its keys."""
    parts = key.split(".")
    declared = [FIELDS[".".join(parts[:n])].metadata.get("resume") for n in range(1, len(parts) + 1)
                if ".".join(parts[:n]) in FIELDS]  # fmt: skip
    assert len([one for one in declared if one is not None]) == 1


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
    with pytest.raises(ConfigError, match=r"share must be at least 0 and at most 1, got 2; workers must be at least 1"):
        entry.build(Options(share=2, workers=0))
