"""Removing what programs leave on disk."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ramet_tools_python.inside import scratch


def test_a_tree_deeper_than_any_path_is_removed(fast_folder: Path) -> None:
    target, here = fast_folder / "scratch", os.getcwd()
    target.mkdir()
    os.chdir(target)
    try:
        for _ in range(1200):
            os.mkdir("dddd")
            os.chdir("dddd")
    finally:
        os.chdir(here)
    scratch.remove(str(target))
    assert not target.exists()


def test_odd_names_links_and_closed_directories_are_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    target = tmp_path / "scratch"
    (target / "closed" / "inner").mkdir(parents=True)
    (target / "closed").chmod(0)
    (target / "link").symlink_to(outside)
    for name in ("-rf", "a\nb", "\udcff", "x" * 255):
        (target / name).write_text("x")
    scratch.remove(str(target))
    assert not target.exists() and (outside / "kept").read_text() == "x"


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("x")
    (tmp_path / "scratch").symlink_to(tmp_path / "outside")
    scratch.remove(str(tmp_path / "scratch"))
    assert [path.name for path in tmp_path.rglob("*")] == ["outside", "kept"]
    scratch.remove(str(tmp_path / "scratch"))


def test_two_can_remove_the_same_folder_at_once(tmp_path: Path) -> None:
    target = tmp_path / "scratch"
    for i in range(60):
        (target / str(i) / "inner").mkdir(parents=True)
    with ThreadPoolExecutor(2) as threads:
        for removal in [threads.submit(scratch.remove, str(target)) for _ in range(2)]:
            removal.result()
    assert not target.exists()


def test_a_directory_that_is_moved_meanwhile_leads_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved to the top, its `..` is the folder that is emptied, and from there the way led out of it."""
    target = tmp_path / "scratch"
    (target / "a" / "a" / "deep" / "deep").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    for place in (target / "a" / "victim", target / "a" / "a" / "victim", tmp_path / "victim"):
        place.mkdir()
        (place / "kept").write_text("x")
    go = scratch._Walk._go

    def move_and_go(walk: scratch._Walk, name: str) -> None:
        hidden = target / "a" / "a" / "deep"
        if name == ".." and hidden.exists() and not (target / "deep").exists():
            hidden.rename(target / "deep")
        go(walk, name)

    monkeypatch.setattr(scratch._Walk, "_go", move_and_go)
    scratch.remove(str(target))
    assert not target.exists() and (tmp_path / "victim" / "kept").read_text() == "x"
