"""Fills in the address of the repository, which only a release knows, for what is then built in this working tree:

    python scripts/set_repository.py [--packages] URL

In documents it takes the place of the word RAMET_REPOSITORY; packages, the citation and the site get it as their URL.
With --packages, before wheels are built, links of the packages' READMEs to files become addresses too, since an index
shows a README without the files; the site keeps them, and shows the pages themselves. Nothing is committed.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORD = "RAMET_REPOSITORY"
LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[)#])")  # a relative one, without its anchor


def main(arguments: list[str]) -> int:
    *options, url = arguments or [""]
    if options not in ([], ["--packages"]) or not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", url):
        print("usage: python scripts/set_repository.py [--packages] https://HOST/OWNER/NAME", file=sys.stderr)
        return 1
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    for document in map(ROOT.joinpath, listed.stdout.split()):
        text = document.read_text(encoding="utf-8")
        if WORD in text:
            document.write_text(re.sub(rf"\$?{WORD}", url, text), encoding="utf-8")
    for project in [ROOT / "core/pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]:
        append(project, "[project.urls]", f'\n[project.urls]\nRepository = "{url}"\n')
        if options:
            make_absolute(project.with_name("README.md"), url)
    append(ROOT / "CITATION.cff", "repository-code:", f"repository-code: {url}\n")
    append(ROOT / "mkdocs.yml", "repo_url:", f"\nrepo_url: {url}\n")
    return 0


def append(file: Path, mark: str, lines: str) -> None:
    """Add lines at the end of a file, unless an earlier call did."""
    text = file.read_text(encoding="utf-8")
    if mark not in text:
        file.write_text(text + lines, encoding="utf-8")


def make_absolute(readme: Path, url: str) -> None:
    """Turn links to files of the repository into addresses of its file view, at the default branch."""
    folder = readme.parent.relative_to(ROOT).as_posix()

    def address(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        return f"{url}/blob/HEAD/{path}" if (ROOT / path).exists() else match[1]

    readme.write_text(LINK.sub(address, readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
