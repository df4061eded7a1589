"""Outcomes of `ramet test` as JUnit XML, which CI systems read: a suite for a run, a case for each rollout."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from ramet.io.atomic import write_file
from ramet_replay.replay_test.job import ReplayOutcome, ReplayTestResult, describe_samples

NAME = "ramet test"
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check_junit(path: Path) -> list[str]:
    """A problem if `path` is a file that this command did not write, or below one."""
    if file := next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), None):
        return [f"--junit {path}: {file} is not a folder; name another file"]
    if path.is_dir() or (path.exists() and f'name="{NAME}"'.encode() not in path.read_bytes()[:200]):
        return [f"--junit {path}: is there already, and `{NAME}` did not write it; name another file"]
    return []


def write_junit(path: Path, result: ReplayTestResult, seconds: float) -> None:
    """Write the outcomes. Raises `OSError` that names the path."""
    outcomes = result.outcomes
    counts = {
        "tests": str(len(outcomes)),
        "failures": str(sum(outcome.difference is not None for outcome in outcomes)),
        "errors": str(sum(outcome.fault is not None for outcome in outcomes)),
        "skipped": str(sum(outcome.untested is not None for outcome in outcomes)),
        "time": f"{seconds:.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": NAME, **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(str(result.run)), **counts})
    for outcome in outcomes:
        _add(suite, outcome)
    ElementTree.indent(root)
    write_file(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _add(suite: ElementTree.Element, outcome: ReplayOutcome) -> None:
    group = outcome.group
    where = f"{group.benchmark or f'step_{group.record.step:06d}'}.{group.name}"
    case = ElementTree.SubElement(suite, "testcase", classname=_clean(where), name=f"rollout {outcome.rollout.id}")
    if outcome.difference is not None:
        text = "\n".join([str(outcome.difference), *describe_samples(outcome)])
        kind = str(outcome.difference.kind)
        ElementTree.SubElement(case, "failure", type=kind, message=_clean(str(outcome.difference))).text = _clean(text)
    elif outcome.fault is not None:
        ElementTree.SubElement(case, "error", type="infrastructure", message=_clean(outcome.fault))
    elif outcome.untested is not None:
        ElementTree.SubElement(case, "skipped", message=_clean(outcome.untested))


def _clean(text: str) -> str:
    """Leave out characters that XML cannot hold."""
    return _NOT_XML.sub("", text)
