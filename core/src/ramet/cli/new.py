"""`ramet new`: starts a plugin package, and says what it made and what to do next."""

from __future__ import annotations

from pathlib import Path

from ramet.scaffold import KINDS, Package, write_package


def describe_kinds() -> str:
    """The kinds that can be made, for the help."""
    return f"{', '.join(KINDS)} (what each is: docs/plugins.md)"


def make(kind: str, name: str, folder: Path | None) -> str:
    """Write the package and tell the user. Raises `ConfigErrors`."""
    return report(write_package(kind, name, folder))


def report(package: Package) -> str:
    files = "\n".join(f"  {file}" for file in package.files)
    return f"""made {package.folder}/ ({package.distribution}: the {package.kind.noun} {package.name!r}) with
{files}

next:
  cd {package.folder}
  python -m pip install -e ".[test]"    # add --find-links FOLDER where Ramet's wheels are in a folder
  python -m pytest        # what it does, and that it keeps the contract
  ramet plugins           # lists it
  ramet {package.kind.use.format(name=package.name)} …
README.md says how to publish it."""
