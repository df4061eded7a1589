"""The tests serve sessions as those of the gateway do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))  # for core.tests.rollout.gateway.conftest
