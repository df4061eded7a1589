"""The README's example prints what it says, and the README names every option."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ramet_tools_bing import DeepSearchConfig, PageConfig, SearchConfig
from ramet_tools_bing.providers.offline import sample_corpus

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```\n\n<!-- output -->\n```\n(.*?)```", README, re.DOTALL)
    assert found is not None
    ran = subprocess.run([sys.executable, "-c", found[1]], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, found[2], "")


@pytest.mark.parametrize("config", [SearchConfig, PageConfig, DeepSearchConfig])
def test_every_option_is_named(config: type) -> None:
    unnamed = [field.name for field in dataclasses.fields(config) if f"`{field.name}`" not in README]
    assert [name for name in unnamed if not name.startswith("summary")] == []


def test_the_sample_has_as_many_passages_as_it_says() -> None:
    assert f"a sample of {sample_corpus().passages} passages" in README
