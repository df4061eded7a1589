"""Starting a plugin: `write_package` writes a distribution of one kind, with tests that pass, from `templates/`.

A template is a file of the package: `PACKAGE` and `NAME` in its path and `${…}` in its text are filled in, and `.tmpl`
is removed. `templates/common` goes into every package, `templates/KIND` into packages of one kind.
"""

from __future__ import annotations

from ramet.scaffold.kinds import KINDS, Kind
from ramet.scaffold.package import Package, write_package

__all__ = ["KINDS", "Kind", "Package", "write_package"]
