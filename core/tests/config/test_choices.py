"""OmegaConf's conversion of enums is widened from outside: these tests fail when what that relies on changes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum

import pytest
from omegaconf import OmegaConf, ValidationError
from omegaconf.nodes import EnumNode

from ramet.config.choices import accept_enum_values

HINT = "OmegaConf has changed: look at ramet/config/choices.py, and at omegaconf's bounds in core/pyproject.toml"
UNCHANGED = """
import inspect
from enum import StrEnum
from omegaconf import ValidationError
from omegaconf.nodes import EnumNode

class Level(StrEnum):
    LOW = "very-low"

print(*inspect.signature(EnumNode.validate_and_convert_to_enum).parameters)
print(EnumNode(Level, "LOW")._value().name)
try:
    EnumNode(Level, "very-low")
except ValidationError:
    print("refused")
"""


class Level(StrEnum):
    LOW = "very-low"
    HIGH = "very-high"


@dataclass
class Options:
    level: Level = Level.LOW


def test_omegaconf_by_itself_takes_names_only_through_the_function_that_is_replaced() -> None:
    """If it takes values one day, the module can go."""
    said = subprocess.run([sys.executable, "-c", UNCHANGED], capture_output=True, text=True, timeout=60)
    assert said.stdout.splitlines() == ["enum_type value", "LOW", "refused"], f"{HINT}\n{said.stderr}"


def test_every_way_to_set_an_enum_goes_through_the_replaced_function() -> None:
    accept_enum_values()
    config = OmegaConf.structured(Options)
    config.level = "very-high"
    assert config.level is Level.HIGH, HINT
    OmegaConf.update(config, "level", "very-low")
    assert config.level is Level.LOW, HINT
    merged = OmegaConf.merge(config, OmegaConf.create("level: very-high"))
    assert merged.level is Level.HIGH, HINT
    assert OmegaConf.merge(config, {"level": "HIGH"}).level is Level.HIGH, HINT
    assert OmegaConf.to_object(merged) == Options(level=Level.HIGH)


def test_calling_it_again_changes_nothing() -> None:
    accept_enum_values()
    first = EnumNode.validate_and_convert_to_enum
    accept_enum_values()
    assert EnumNode.validate_and_convert_to_enum is first
    assert list(inspect.signature(first).parameters) == ["enum_type", "value"]


def test_what_is_neither_a_name_nor_a_value_is_refused_in_omegaconfs_words() -> None:
    accept_enum_values()
    config = OmegaConf.structured(Options)
    with pytest.raises(ValidationError, match=r"Invalid value 'middling', expected one of \[LOW, HIGH\]"):
        config.level = "middling"
