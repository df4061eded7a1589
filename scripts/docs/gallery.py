"""The gallery of the site: reports of recorded runs, drawn by the code of `ramet report`.

`scripts/record_demo.py --gallery` makes the recordings in this folder's `gallery/`; the first is `ramet demo`'s.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ramet
from ramet.report.html import write_report

FOLDER = Path(__file__).with_name("gallery")
PAGE = "gallery/index.md"


@dataclass(frozen=True)
class Exhibit:
    """One report. `command` makes the run from a clone of the repository."""

    recording: Path
    title: str
    command: str
    shows: str

    @property
    def place(self) -> str:
        return f"gallery/{self.recording.name}.html"


EXHIBITS = (
    Exhibit(
        Path(ramet.__file__).parent / "demo" / "quickstart_smollm2",
        "SmolLM2 learns to calculate",
        "make quickstart MODEL=smollm2",
        "A real model of 135M parameters on two cores, trained by ARPO: accuracy on held-out problems, calls of the "
        "tool, forks after a result. `ramet demo` replays this run.",
    ),
    Exhibit(
        FOLDER / "quickstart_search",
        "A tiny model learns to search twice",
        "make quickstart",
        "Questions that one search cannot answer. SFT, ARPO and evaluation took 40 seconds on two cores: "
        "the reward rises when the second search appears, and the entropy after a result says where rollouts fork.",
    ),
    Exhibit(
        FOLDER / "quickstart",
        "A tiny model learns to run Python",
        "make quickstart TOOL=python",
        "Sums whose answer only the sandbox gives. The same pipeline with another tool and reward.",
    ),
)


def page() -> str:
    """Return the page that leads to the reports."""
    parts = ["# Gallery\n\nReports of real runs, as `ramet report` writes them. Each is a file that needs no server.\n"]
    for one in EXHIBITS:
        link = one.place.removeprefix("gallery/")
        parts.append(f"## {one.title}\n\n{one.shows}\n\n[Open the report]({link}). It is of `{one.command}`.\n")
    return "\n".join(parts)


@cache
def reports() -> dict[str, str]:
    """Return place in the site -> the report."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            one.place: write_report(one.recording, Path(folder) / f"{number}.html").read_text(encoding="utf-8")
            for number, one in enumerate(EXHIBITS)
        }
