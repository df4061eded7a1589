"""The site builds with strict links, loads nothing from other hosts, and its index names every page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/example/ramet"
LOADED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=\"?(https?:)?//[^>]*>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config += f"\nrepo_url: {REPOSITORY}\n"  # as scripts/set_repository.py leaves it
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "-", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, input=config, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    assert [page.name for page in pages if LOADED.search(page.read_text(encoding="utf-8"))] == []


def test_the_link_to_the_repository_is_one_that_no_script_reads(site: Path) -> None:
    """The theme's script asks the host of a link with this attribute for stars and releases."""
    page = (site / "index.html").read_text(encoding="utf-8")
    assert f'href="{REPOSITORY}"' in page and not re.search(r"data-md-component=\"?source\b", page)


def test_the_index_for_language_models_names_every_page(site: Path) -> None:
    named = set(re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8")))
    assert [name for name in named if not (site / name).is_file()] == []
    pages = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    reports = {f"gallery/quickstart{name}" for name in ("_smollm2", "_search", "")}
    assert pages - {name.rpartition(".")[0] for name in named} == {"404", *reports}


def test_the_gallery_leads_to_reports_without_the_names_of_a_machine(site: Path) -> None:
    page = (site / "gallery/index.html").read_text(encoding="utf-8")
    for name in ("_smollm2", "_search", ""):
        assert f'href="quickstart{name}.html"' in page
        report = (site / f"gallery/quickstart{name}.html").read_text(encoding="utf-8")
        assert 'data-kind="' in report and not re.search(r"/(?:tmp|home|root|work)/", report)


def test_every_page_of_the_folder_is_in_the_navigation() -> None:
    """Without a build: the strict one finds it too, where mkdocs is installed."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    assert yaml.safe_load(navigation)
    assert [page for page in pages if f": {page}\n" not in navigation] == []
