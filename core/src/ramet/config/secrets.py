"""Keys and passwords come from the environment, never from what is written down: configurations are recorded, shared.

A secret is recognised by the name of its option (where that may have another meaning, as `key` and `stop_token` may,
also by its looks), and under any name by its value: a URL with a password, a key of a known form. It must be given as
`${oc.env:VARIABLE}`, which stays as it is in every record. What came from the environment is hidden in every message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from ramet.errors import ConfigError

SECRET = re.compile(r"(.*_)?((api|admin)_?key|secret(_key)?|password|passwd|(access|auth|bearer)_token|credentials?)")
HEADER = re.compile(r"(proxy_)?authorization|cookie")  # of HTTP: `Bearer ${oc.env:TOKEN}`
PERHAPS = re.compile(r"(.*_)?(key|token)")
RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.+/=-]{16,}")
FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:.*\}")
WORDS = {"TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "PASS", "PWD", "CREDENTIAL", "CREDENTIALS", "AUTH", "DSN"}
HIDDEN = "***"
LEAST_HIDDEN, LEAST_HIDDEN_SECRET = 8, 4  # shorter values are words that messages need: `cpu`, `true`

_VARIABLE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")
_NOT_OURS = r"(?!\$\{oc\.env:)"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{0,20}://"
_PASSWORD = re.compile(rf"({_SCHEME}[^\s/:@'\"]{{0,256}}:){_NOT_OURS}[^\s/?#'\"]{{1,256}}(?=@)")  # it may hold an @
_TOKEN = re.compile(rf"({_SCHEME})(?=[^\s@]*\d)(?=[^\s@]*[A-Za-z])[\w.+=-]{{16,256}}(?=@)")  # as the user's name
_PARAMETER = re.compile(
    rf"([?&][\w-]{{0,30}}(?:key|token|secret|password|signature|sig)=){_NOT_OURS}[^\s&'\"]{{8,}}", re.IGNORECASE
)
_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,})"
)
_values: dict[str, str] = {}  # of variables that a configuration named -> how it named them


def written_secrets(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Say what is wrong with (dotted key, text as it was written) pairs that hold a secret in plain text."""
    for key, text in texts:
        if text and text != "???" and not FROM_ENVIRONMENT.fullmatch(text) and _is_secret(key, text):
            instead = f"put it into an environment variable and write {key}='${{oc.env:VARIABLE}}'"
            if key.startswith("wandb."):
                instead = "put it into the environment variable WANDB_API_KEY, and leave the key out"
            yield f"{key}: a secret must not be written down, since configurations are recorded; {instead}"


def from_environment(key: str, text: str) -> str:
    """Return the secret that `${oc.env:VARIABLE}` names, which `hide` knows from now on.

    Raises `ConfigError` for a text that is not of this form, and for a variable that is not set.
    """
    name = _VARIABLE.search(text)
    if name is None or not FROM_ENVIRONMENT.fullmatch(text):
        raise ConfigError(f"{key}: a secret must not be written down; give {key}='${{oc.env:VARIABLE}}'")
    if not (value := os.environ.get(name[1], "")):
        raise ConfigError(f"{key}: the environment variable {name[1]} is not set, or is empty")
    remember_environment([text])
    return value


def is_secret_variable(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret, by a word of its name or by its value."""
    return bool(WORDS & {*name.upper().split("_")}) or _hide_forms(value) != value


def remember_environment(texts: Iterable[str]) -> None:
    """Have `hide` know, from now on, the values of the variables that these texts name."""
    for text in texts:
        for name in _VARIABLE.findall(text):
            value = os.environ.get(name, "")
            least = LEAST_HIDDEN_SECRET if is_secret_variable(name, value) else LEAST_HIDDEN
            if len(value) >= least:
                _values[value] = f"${{oc.env:{name}}}"


def remembered() -> tuple[str, ...]:
    """Return what another process passes to `remember_environment`, so that it hides the same."""
    return tuple(_values.values())


def hide(text: str) -> str:
    """The text without passwords in URLs, keys of known forms, and values of remembered variables."""
    for value in sorted(_values, key=len, reverse=True):
        text = text.replace(value, _values[value])
    return _hide_forms(text)


def hide_argument(argument: str) -> str:
    """`key=value` of a command line for a record."""
    key, equals, value = argument.partition("=")
    value = value.strip("'\"")
    secret = equals and not FROM_ENVIRONMENT.fullmatch(value) and _is_secret(key.lstrip("+~"), value)
    return f"{key}={HIDDEN}" if secret and hide(argument) == argument else hide(argument)


def _hide_forms(text: str) -> str:
    if "://" in text or "?" in text:
        for secret in (_PASSWORD, _TOKEN, _PARAMETER):
            text = secret.sub(rf"\1{HIDDEN}", text)
    return _KNOWN.sub(HIDDEN, text)


def _is_secret(key: str, text: str) -> bool:
    name = key.rpartition(".")[2].partition("[")[0].lower().replace("-", "_")
    by_name = (
        SECRET.fullmatch(name)
        or (PERHAPS.fullmatch(name) and RANDOM.fullmatch(text))
        or (HEADER.fullmatch(name) and not _VARIABLE.search(text))
    )
    return bool(by_name) or _hide_forms(text) != text
