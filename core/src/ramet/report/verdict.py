"""The first lines of a report: what `ramet doctor RUN` finds, with the rollouts that show it."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

from ramet.doctor.diagnosis import diagnose
from ramet.errors import ConfigError
from ramet.report.data import Json, read_json
from ramet.runs.manifest import MANIFEST

logger = logging.getLogger(__name__)


def verdict(run: Path) -> list[Json] | None:
    """Return the findings, the worst first; None where nothing can be examined, as of an evaluation."""
    if (read_json(run / MANIFEST) or {}).get("job") == "eval":
        return None
    try:
        found = diagnose(run)
    except ConfigError:
        return None
    except Exception as error:  # a mistake in a check costs the verdict, not the report
        logger.warning("report: the run could not be diagnosed, so there is no verdict: %r", error)
        return None
    return [
        {
            "what": finding.what,
            "severity": str(finding.severity),
            "text": finding.text,
            "fix": finding.fix,
            "page": finding.page,
            "rollouts": [asdict(place) for place in finding.rollouts],
        }
        for finding in found
    ]
