"""Keys and their values, for the shell's completion: of the configuration that the words typed so far compose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from ramet.config.compose import layers
from ramet.config.hydra_adapter import group_options
from ramet.config.keys import JOBS, unused_key
from ramet.config.sections import GROUPS, PRESETS
from ramet.config.settings import expected_type, leaf_keys
from ramet.errors import RametError

ONE_OF = "one of "


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a job."""

    job: str
    tree: DictConfig

    @classmethod
    def of(cls, job: str, words: Sequence[str]) -> Keys:
        """Return the keys with the choices among the words (`tools=[python]`), if they compose; else without."""
        choices = [word.strip("'\"") for word in words if word.strip("'\"").partition("=")[0] in GROUPS]
        try:
            return cls(job, layers(choices, job=job).tree)
        except RametError:
            return cls(job, layers([], job=job).tree)

    def groups(self) -> list[str]:
        return [group for group in GROUPS if group in PRESETS or group in JOBS[self.job]]

    def leaves(self) -> Iterator[str]:
        """Every key that the job reads."""
        sections = JOBS[self.job]
        for key in leaf_keys(self.tree):
            if key.partition(".")[0] in sections and not key.endswith(".name") and unused_key(key, self.job) is None:
                yield key

    def values(self, key: str, begun: str) -> list[str]:
        """Return the values of a key; of a text the files, for most texts are paths."""
        if key in GROUPS:
            return group_options([key])[key]
        expected = (expected_type(self.tree, key) or "").removesuffix(" or null")
        if expected == "bool":
            return ["true", "false"]
        if expected.startswith(ONE_OF):
            return expected.removeprefix(ONE_OF).split(", ")
        return list(_files(begun)) if expected in ("str", "list[str]") else []


def _files(begun: str) -> Iterator[str]:
    folder, _, name = begun.rpartition("/")
    base = Path(folder or ("/" if begun.startswith("/") else "."))
    if not base.is_dir():
        return
    for path in sorted(base.iterdir()):
        if path.name.startswith(name) and (name.startswith(".") or not path.name.startswith(".")):
            start = begun[: len(begun) - len(name)]
            yield f"{start}{path.name}/" if path.is_dir() else f"{start}{path.name}"
