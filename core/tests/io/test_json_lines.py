"""Files of JSON lines that are appended to."""

from __future__ import annotations

import errno
import logging
import resource
from pathlib import Path
from typing import Any

import pytest

from ramet.io.json_lines import append_line, cut_torn_end
from ramet.io.os_errors import os_error_text


def test_lines_are_appended_in_order(tmp_path: Path):
    for line in ('{"step": 1}', '{"step": 2}'):
        append_line(tmp_path / "a.jsonl", line)
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    assert cut_torn_end(tmp_path / "a.jsonl") == 24


def test_a_line_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    append_line(path, "{}")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as a full disk: the write fails half-way
    try:
        with pytest.raises(OSError) as raised:
            append_line(path, '"' + "x" * 1000 + '"')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))
    assert path.read_bytes() == b"{}\n"


def test_a_line_on_a_full_disk_names_the_file(small_disk: Any):
    small_disk.fill()
    with pytest.raises(OSError) as raised:
        append_line(small_disk.folder / "a.jsonl", "{}")
    assert os_error_text(raised.value).startswith(f"{small_disk.folder / 'a.jsonl'}: No space left")


def test_a_torn_last_line_is_cut_off_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st')
    with caplog.at_level(logging.WARNING):
        assert cut_torn_end(path) == 12
    assert f"{path}: dropped a torn last line of 4 bytes" in caplog.text
    assert path.read_bytes() == b'{"step": 1}\n'


def test_a_missing_file_has_no_lines_and_is_not_made(tmp_path: Path):
    assert cut_torn_end(tmp_path / "a.jsonl") == 0
    assert not (tmp_path / "a.jsonl").exists()
