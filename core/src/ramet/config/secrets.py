"""Keys and passwords come from the environment, never from what is written down: configurations are recorded, shared.

A secret is recognised by the name of its option, and where that may mean something else (`key`, `stop_token`) also by
its looks. It must be given as `${oc.env:VARIABLE}`, which stays as it is in every record; no message shows the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

SECRET = re.compile(r"(.*_)?(api_?key|secret(_key)?|password|passwd|(access|auth|bearer)_token|credentials?)")
PERHAPS = re.compile(r"(.*_)?(key|token)")
RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.+/=-]{16,}")
FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:.*\}")


def written_secrets(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What is wrong with (dotted key, text as it was written) pairs that hold a secret in plain text."""
    for key, text in texts:
        if text and text != "???" and not FROM_ENVIRONMENT.fullmatch(text) and _is_secret(key, text):
            yield (
                f"{key}: a secret must not be written down, since configurations are recorded; put it into an "
                f"environment variable and write {key}='${{oc.env:VARIABLE}}'"
            )


def _is_secret(key: str, text: str) -> bool:
    name = key.rpartition(".")[2].partition("[")[0].lower()
    return bool(SECRET.fullmatch(name) or (PERHAPS.fullmatch(name) and RANDOM.fullmatch(text)))
