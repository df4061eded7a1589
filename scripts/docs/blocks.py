"""The commands of the documents, their marks, and how they are run and compared.

Every block of commands has a mark, an HTML comment in the line before it:

    <!-- run -->                 run by `make test`, in a folder of its page, in the order of the page
    <!-- run: tests/test_x.py -->  run by that test
    <!-- docs-test -->           run by `make docs-test`, which takes minutes, in one folder for all pages
    <!-- needs gpu -->           not run: it needs what is named (NEEDS); its keys and options are checked
    <!-- pattern -->             not run: a form with placeholders; its keys and options are checked
    <!-- output -->              not a command: what one prints, or a figure

`<!-- before: COMMAND -->` above a mark runs a command that readers need not see; `$REPOSITORY` is the checkout.
`<!-- file: NAME -->` before a block of any language writes it to a file.

Outputs are compared line by line. Numbers count as equal, and so do runs of spaces. A line `…` stands for any number of
lines, `…` in a line for any text.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("*.md", "docs/**/*.md", "plugins/*/README.md", "bench/README.md")
NEEDS = ("gpu", "cluster", "network", "key", "service", "data")
DATA_LANGUAGES = frozenset(
    {"python", "json", "yaml", "toml", "text", "plan", "time", "jinja", "dockerfile", "bibtex", "html"}
)
BLOCK = re.compile(r"((?:^ *<!--[^\n]*-->\n)*)^( *)```([^\n]*)\n(.*?)^\2``` *$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- (.*?) -->")
MARK = re.compile(rf"run|run: \S+|docs-test|needs (?:{'|'.join(NEEDS)})(?:, (?:{'|'.join(NEEDS)}))*|pattern|output")
LIMIT_S = 3600  # of one command: the quickstart takes minutes, a command that waits for input none
NUMBER = re.compile(r"\d[\d.,:]*(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block between fences."""

    page: Path
    line: int  # of its opening fence, from 1
    language: str
    text: str
    mark: str  # empty without one
    before: tuple[str, ...]  # commands
    file: str  # the file that it is written to; empty: none

    @property
    def is_data(self) -> bool:
        """Whether it is in a language of files, not of commands."""
        return self.language in DATA_LANGUAGES

    @property
    def where(self) -> str:
        """The page and line, for messages."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    def commands(self) -> list[tuple[str, str]]:
        """Return each command, with lines that end in a backslash joined, and the output that the block shows."""
        lines = iter(self.text.splitlines())
        found: list[tuple[str, str]] = []
        for line in lines:
            if self.language == "console" or self.text.lstrip().startswith("$ "):
                if not line.startswith("$ "):
                    if found:  # otherwise the end of what an earlier block shows
                        found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
                    continue
                line = line.removeprefix("$ ")
            while line.endswith("\\"):
                line = f"{line[:-1].rstrip()} {next(lines).strip()}"
            if line.strip():
                found.append((line.strip(), ""))
        return found


def pages() -> list[Path]:
    """Return all pages with commands that users read."""
    return sorted({path for pattern in PAGES for path in ROOT.glob(pattern) if path.name != "CHANGELOG.md"})


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in its order."""
    text = page.read_text(encoding="utf-8")
    return [_block(page, text, match) for match in BLOCK.finditer(text)]


def _block(page: Path, text: str, match: re.Match[str]) -> Block:
    comments = COMMENT.findall(match[1])
    marks = [comment for comment in comments if MARK.fullmatch(comment)]
    return Block(
        page=page,
        line=text[: match.start(2)].count("\n") + 1,
        language=(match[3].split() or [""])[0],
        text="".join(line.removeprefix(match[2]) for line in match[4].splitlines(keepends=True)),
        mark=marks[0] if marks else "",
        before=tuple(one.removeprefix("before: ") for one in comments if one.startswith("before: ")),
        file=next((one.removeprefix("file: ") for one in comments if one.startswith("file: ")), ""),
    )


def run_blocks(listed: list[Block], mark: str, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run the blocks with this mark in a folder; yield each with what went wrong, empty if nothing did.

    Files of the page are written first. Exported variables stay for the blocks that follow. A command with `…` is not
    run. One that ends with an error fails, in a pipe too, unless the block shows an output that begins with `error:`.
    """
    for block in listed:
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    shell = Shell(folder)
    for block in listed:
        if block.mark == mark:
            hidden = [(command, "") for command in block.before]
            shown = [*hidden, *(pair for pair in block.commands() if "…" not in pair[0])]
            yield block, "\n".join(problem for pair in shown if (problem := _problem(shell, *pair)))


def _problem(shell: Shell, command: str, expected: str) -> str:
    code, output = shell.run(command)
    if code and not expected.startswith("error:"):
        return f"$ {command}\nended with exit code {code}:\n{output[-2000:]}"
    if expected and not same_output(expected, output):
        return f"$ {command}\nprinted:\n{output[-4000:]}\nthe page has:\n{expected}"
    return ""


def same_output(expected: str, actual: str) -> bool:
    """Whether a command printed what a page shows, by the rule above."""
    pattern = "".join(
        "(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + "\n" for line in _masked(expected)
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _masked(actual))) is not None


def _masked(text: str) -> list[str]:
    return [re.sub(r" +", " ", NUMBER.sub("#", line)).rstrip() for line in text.strip("\n").splitlines()]


class Shell:
    """Runs commands one after the other in a folder; variables that one exports stay for the next."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._exported = folder.parent / f"{folder.name}.exported"
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "REPOSITORY": str(ROOT),
            "XDG_CACHE_HOME": str(folder.parent / f"{folder.name}.cache"),
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }

    def run(self, command: str) -> tuple[int, str]:
        """Return the exit code (124: it took longer than `LIMIT_S`), and what the command printed."""
        exported = shlex.quote(str(self._exported))
        before, after = f"[ ! -f {exported} ] || . {exported}", f"code=$?\nexport -p > {exported}\nexit $code"
        script = f"{before}\nset -o pipefail\n{command}\n{after}"
        ran = subprocess.run(
            ["timeout", "--kill-after=10", str(LIMIT_S), "bash", "-c", script],
            cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return ran.returncode, ran.stdout
