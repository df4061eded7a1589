"""A file of JSON lines that an evaluation or a judge's pass appends to, and that a later process continues."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.io.atomic import open_atomic
from ramet.io.json_lines import append_line, cut_torn_end, json_line, json_text

HEADER = "schema"  # the first key of a header, which no other line has
BEGINNING = b'{"schema":'  # of the file, so that no other file is ever written to
SYNC_S = 1.0  # between two waits for the disk


class ResumableLines:
    """JSON objects in a file, which a later process reads and appends to.

    The first is a header, which says what the others belong to; the caller compares it with its own. A header that is
    appended later is in its place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._synced = 0.0  # when a line was last waited for, of the monotonic clock

    def resume(self) -> bool:
        """Whether there is a header and what follows it. A torn last line is cut off.

        Raises `ConfigError` for a link and for any other file, which is left as it is.
        """
        if self.path.is_symlink() or (self.path.exists() and not self._begins_with_header()):
            raise ConfigError(f"{self.path} is a link or not such a file; move it, or choose another name")
        return cut_torn_end(self.path) > 0

    def begin(self, header: Mapping[str, Any], objects: Iterable[Any] = ()) -> None:
        """Replace the file, at once."""
        with open_atomic(self.path) as file:
            file.write(json_line(header))
            file.writelines(map(json_line, objects))

    def append(self, value: Any) -> int:
        """Append an object and return its place. It survives a kill when this returns, and the end of the machine
        within `SYNC_S`: waiting for the disk each time would delay all other work.
        """
        sync = time.monotonic() >= self._synced + SYNC_S
        start = append_line(self.path, json_text(value), sync=sync)
        self._synced = time.monotonic() if sync else self._synced
        return start

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each object, headers among them, with its place. A last line without an end is left out: another process may
        be writing it.
        """
        place = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield place, json.loads(line)
                place += len(line)

    def at(self, place: int) -> dict[str, Any]:
        with self.path.open("rb") as file:
            file.seek(place)
            body: dict[str, Any] = json.loads(file.readline())
        return body

    def _begins_with_header(self) -> bool:
        """Whether the first line is a header, also of a file that a kill has cut off in its first line."""
        with self.path.open("rb") as file:
            return BEGINNING.startswith(file.read(len(BEGINNING)))
