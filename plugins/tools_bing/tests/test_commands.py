"""`ramet cache`: what comes in is checked, nothing newer is replaced, and what is broken can be mended."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import diskcache
import pytest

from ramet.cli import main
from ramet_tools_bing.cache_disk import open_disk
from ramet_tools_bing.cache_entries import published_items
from ramet_tools_bing.queries import imported_key
from ramet_tools_bing.results import SearchItem

PUBLISHED = {
    "who is it": "Page 1: Ada\nPage 2: Bob",
    "nobody": "No search results found.",
    "empty": " ",
    "x" * 401: "Page 1: too long",
    "broken": "Page 2: no first",
    "number": 3,
    "": "Page 1: no query",
}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    path = tmp_path / "search_cache.json"
    path.write_text(json.dumps(PUBLISHED), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def ramet(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """What it printed, on whichever stream."""
    assert main([str(one) for one in arguments]) == code
    said = capsys.readouterr()
    return said.out + said.err


@pytest.mark.parametrize("command", ["cache", "corpus"])
def test_a_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: ramet {command} ")


def test_an_import_says_what_became_of_every_entry(published: Path, folder: Path, capsys: Any) -> None:
    said = ramet(capsys, "cache", "import", published, "--folder", folder)
    left_out = "2 stored failures left out, 1 with a query that is too long left out, 3 unreadable left out"
    assert said == f"{published}: 1 new, 0 replaced, 0 already there, {left_out}\n"
    assert ramet(capsys, "cache", "import", published, "--folder", folder).startswith(
        f"{published}: 0 new, 0 replaced, 1"
    )


def test_an_import_never_replaces_what_is_newer(published: Path, folder: Path, capsys: Any) -> None:
    ramet(capsys, "cache", "import", published, "--folder", folder)
    newer = tmp_export(folder, capsys)
    lines = [json.loads(line) for line in newer.read_text().splitlines()]
    lines[0]["value"]["fetched_at"] += 1000
    lines[0]["value"]["items"] = [{"text": "Eve"}]
    newer.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"key": "short", "value": {}}]))
    said = ramet(capsys, "cache", "import", newer, "--folder", folder)
    assert said == f"{newer}: 0 new, 1 replaced, 0 already there, 1 unreadable left out\n"
    ramet(capsys, "cache", "import", published, "--folder", folder)
    assert "Eve" in ramet(capsys, "cache", "get", "who is  it", "--folder", folder)


def tmp_export(folder: Path, capsys: Any) -> Path:
    path = folder.with_name("export.jsonl")
    assert ramet(capsys, "cache", "export", path, "--folder", folder) == f"{path}: 1 entries\n"
    return path


def test_what_is_there_can_be_looked_at(published: Path, folder: Path, capsys: Any) -> None:
    ramet(capsys, "cache", "import", published, "--folder", folder)
    stats = ramet(capsys, "cache", "stats", "--folder", folder).splitlines()
    assert stats[0].startswith(f"{folder}: 1 entries, ") and stats[1:3] == ["  search: 1", "  imported: 1"]
    assert ramet(capsys, "cache", "get", "who is it", "--folder", folder).splitlines()[1:] == ["[1] Ada", "", "[2] Bob"]
    assert ramet(capsys, "cache", "get", "other", "--folder", folder, code=1) == "nothing is stored for 'other'\n"


def test_caches_of_several_machines_are_merged(published: Path, folder: Path, capsys: Any) -> None:
    other = folder.with_name("other")
    ramet(capsys, "cache", "import", published, "--folder", other)
    assert ramet(capsys, "cache", "merge", other, "--folder", folder).startswith(f"{other}: 1 new, 0 replaced, 0 ")
    assert ramet(capsys, "cache", "merge", other, "--folder", folder).startswith(f"{other}: 0 new, 0 replaced, 1")
    said = ramet(capsys, "cache", "merge", folder, "--folder", folder, code=1)
    assert said == f"error: {folder} is the cache that is merged into\n"


@pytest.mark.parametrize("command", [["stats"], ["get", "q"], ["export", "out.jsonl"], ["check"]])
def test_a_cache_that_is_not_there_is_named_and_not_made(command: list[str], folder: Path, capsys: Any) -> None:
    said = ramet(capsys, "cache", *command, "--folder", folder, code=1)
    assert said == f"error: {folder}: there is no cache\n" and not folder.exists()


def test_an_export_replaces_no_file(published: Path, folder: Path, capsys: Any) -> None:
    ramet(capsys, "cache", "import", published, "--folder", folder)
    said = ramet(capsys, "cache", "export", published, "--folder", folder, code=1)
    assert said == f"error: {published} exists; name a new file\n" and json.loads(published.read_text()) == PUBLISHED


@pytest.mark.parametrize("content", [b"", b"no json", b"[1, 2]", b"3", b"SQLite format 3\0\xcc"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, folder: Path, capsys: Any, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    said = ramet(capsys, "cache", "import", path, "--folder", folder, code=1)
    assert said.startswith(
        f"error: {path}: neither a JSON object of queries and texts nor JSON lines of `ramet cache export`"
    )
    assert said.count("\n") == 1


def test_entries_that_cannot_be_used_are_not_imported_and_stop_no_statistics(
    tmp_path: Path, folder: Path, capsys: Any
) -> None:
    values: list[dict[str, Any]] = [
        {"url": "u", "title": "t", "text": 5}, {"summary": None}, {"items": [], "provider": "p", "fetched_at": 1e400},
        {"items": [], "provider": "p", "fetched_at": 1e300},
    ]  # fmt: skip
    path = tmp_path / "export.jsonl"
    path.write_text("".join(json.dumps({"key": f"{n:064x}", "value": one}) + "\n" for n, one in enumerate(values)))
    said = ramet(capsys, "cache", "import", path, "--folder", folder)
    assert said.startswith(f"{path}: 1 new, ") and said.endswith(", 3 unreadable left out\n")
    with open_disk(folder) as disk:
        disk.set("f" * 64, {"text": "t", "provider": ["p"], "fetched_at": "yesterday"})
    said = ramet(capsys, "cache", "stats", "--folder", folder)
    assert said.splitlines()[1:] == ["  page: 1", "  search: 1", "  ['p']: 1", "  p: 1"]


def test_check_names_and_removes_what_cannot_be_read(published: Path, folder: Path, capsys: Any) -> None:
    ramet(capsys, "cache", "import", published, "--folder", folder)
    with diskcache.Cache(str(folder)) as plain:
        plain.set("pickled", {1, 2})
        plain.set(("pickled", "key"), "x")
    said = ramet(capsys, "cache", "check", "--folder", folder, code=1).splitlines()
    pickled, key = (line.rpartition(": ")[2] for line in said)
    assert pickled.endswith("entry in mode 4") and key == "its key is not a text"
    ramet(capsys, "cache", "check", "--repair", "--folder", folder)
    assert ramet(capsys, "cache", "check", "--folder", folder) == f"{folder}: nothing is wrong\n"
    assert open_disk(folder).get(imported_key("who is it"))["provider"] == "imported"


def test_a_database_that_cannot_be_opened_is_set_aside_if_asked(published: Path, folder: Path, capsys: Any) -> None:
    ramet(capsys, "cache", "import", published, "--folder", folder)
    (folder / "cache.db").write_bytes(b"torn" * 1000)
    said = ramet(capsys, "cache", "check", "--folder", folder, code=1)
    assert said.startswith(f"error: {folder}: file is not a database") and "--repair" in said
    assert "could not be read and is now cache.db.bad-" in ramet(
        capsys, "cache", "check", "--repair", "--folder", folder
    )
    ramet(capsys, "cache", "import", published, "--folder", folder)
    with sqlite3.connect(folder / "cache.db") as connection:
        assert connection.execute("SELECT count(*) FROM Cache").fetchone() == (2,)
    assert list(folder.glob("cache.db.bad-*"))


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("Page 1: a\nb\nPage 2: c", ("a\nb", "c")),
        ("Page 1: ", ("",)),
        ("Page 1: a\nPage 3: b", None),
        ("before Page 1: a", None),
        ("", None),
    ],
)
def test_the_published_form_is_read_back(text: str, items: tuple[str, ...] | None) -> None:
    expected = None if items is None else tuple(SearchItem(text=item) for item in items)
    assert published_items(text) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cache", "get"], "the following arguments are required: query; see `ramet cache get --help`"),
        (["cache", "import", "nofile.json"], "nofile.json: there is no such file"),
        (["corpus"], "the following arguments are required: COMMAND; see `ramet corpus --help`"),
    ],
)
def test_a_mistake_in_a_command_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_command_that_there_is_not_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "gett"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("error: argument COMMAND: invalid choice: 'gett' (choose from ")
    assert line.endswith("); see `ramet cache --help`\n") and line.count("\n") == 1
