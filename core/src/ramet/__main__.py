"""`python -m ramet` is `ramet`."""

from __future__ import annotations

import sys

from ramet.cli import main

if __name__ == "__main__":
    sys.exit(main())
