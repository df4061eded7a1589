"""Fills in the address of the repository, which only a release knows, for what is then built in this working tree:

    python scripts/set_repository.py URL

In documents it takes the place of the word RAMET_REPOSITORY; packages and the site get it as their URL. Nothing is
committed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORD = "RAMET_REPOSITORY"
DOCUMENTS = ("*.md", "*.cff")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", arguments[0]):
        print("usage: python scripts/set_repository.py https://HOST/OWNER/NAME", file=sys.stderr)
        return 1
    [url] = arguments
    listed = subprocess.run(["git", "ls-files", *DOCUMENTS], cwd=ROOT, capture_output=True, text=True, check=True)
    for document in map(ROOT.joinpath, listed.stdout.split()):
        text = document.read_text(encoding="utf-8")
        if WORD in text:
            document.write_text(re.sub(rf"\$?{WORD}", url, text), encoding="utf-8")
    for project in [ROOT / "core/pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]:
        append(project, "[project.urls]", f'\n[project.urls]\nRepository = "{url}"\n')
    append(ROOT / "mkdocs.yml", "repo_url:", f"\nrepo_url: {url}\n")
    return 0


def append(file: Path, mark: str, lines: str) -> None:
    """Add lines at the end of a file, unless an earlier call did."""
    text = file.read_text(encoding="utf-8")
    if mark not in text:
        file.write_text(text + lines, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
