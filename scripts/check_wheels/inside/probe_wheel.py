"""Looks at one installed distribution from inside its environment; prints one JSON line. Run with `python -I`.

Imports every public module, composes everything that it offers and every preset, and looks for what should not be
installed.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import sys
from collections import Counter
from importlib.metadata import distributions, entry_points, files, requires
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from wheel_extras import CORE, extra_for, modules_of_extras

MANY = {"tools", "rewards", "benchmarks"}
NEEDED = {"tools=[mcp]": ["tools.mcp.params.command=[server]"]}  # what has no default and is checked with the others


def main(distribution: str, together: list[str]) -> None:
    """`together`: what was installed with it on purpose."""
    extras = modules_of_extras(distribution)
    problems = unexpected(distribution, extras, together)
    modules = public_modules(distribution)
    needs_extra: Counter[str] = Counter()
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # whatever a module does at import, the others are looked at too
            extra = extra_for(error, extras)
            if extra is None:
                problems.append(f"{module} cannot be imported: {type(error).__name__}: {error}")
            else:
                needs_extra[extra] += 1
    composed = []
    for choice in [*presets(distribution), *offers(distribution)]:
        problem = composes(choice)
        composed.append(choice)
        problems += [problem] if problem else []
    print(json.dumps({"modules": len(modules), "needs_extra": needs_extra, "composed": composed, "problems": problems}))


def unexpected(distribution: str, extras: dict[str, str], together: list[str]) -> list[str]:
    """Other distributions of this repository that it does not declare, and anything that only an extra should bring."""
    installed = {found.name.lower().replace("-", "_") for found in distributions()}
    declared = [re.split(r"[^\w.-]", need)[0] for need in requires(distribution) or [] if "extra ==" not in need]
    allowed = {one.lower().replace("-", "_") for one in (CORE, distribution, *declared, *together)}
    others = {one for one in installed if one == CORE or one.startswith(f"{CORE}_")} - allowed
    heavy = installed & set(extras) if distribution == CORE else set()
    return [f"{one} is installed with it" for one in sorted(others | heavy)]


def public_modules(distribution: str) -> list[str]:
    """From the wheel's own record of files."""
    found = []
    for file in files(distribution) or []:
        parts = file.with_suffix("").parts
        names = [part for part in parts if part != "__init__"]
        if file.suffix == ".py" and not any(name.startswith("_") or not name.isidentifier() for name in names):
            found.append(".".join(names))
    return sorted(found)


def presets(distribution: str) -> list[str]:
    """`group=name` for every YAML file in its packages of presets."""
    packages = [p.value for p in entry_points(group="ramet.conf") if p.dist and p.dist.name == distribution]
    choices = []
    for package in ["ramet.conf"] if distribution == CORE else packages:
        folder = Path(str(importlib.import_module(package).__file__)).parent
        for file in sorted(folder.rglob("*.yaml")):
            group, _, name = file.relative_to(folder).with_suffix("").as_posix().rpartition("/")
            choices += [choice(group, name)] if group else []
    return choices


def offers(distribution: str) -> list[str]:
    from ramet.plugins import load_plugins

    own = [info for info in load_plugins().infos if info.distribution == distribution]
    return [choice(group, name) for info in own for group, names in info.offers.items() for name in names]


def choice(group: str, name: str) -> str:
    return f"{group}=[{name}]" if group in MANY else f"{group}={name}"


def composes(choice: str) -> str | None:
    """What is wrong, None if `ramet JOB --cfg job` prints a configuration."""
    from ramet.cli import main as ramet

    job = "eval" if choice.startswith("benchmarks=") else "train"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = ramet([job, "--cfg", "job", "model.path=m", choice, *NEEDED.get(choice, [])])
    fine = code == 0 and "path: m" in out.getvalue()
    return None if fine else f"`ramet {job} --cfg job {choice}` ends with {code}: {err.getvalue().strip()}"


main(sys.argv[1], sys.argv[2:])
