"""Choices are written by value (`train.loss_aggregation=token-mean`).

OmegaConf 2.3 takes the names of an enum's members only (`TOKEN_MEAN`), in YAML and on the command line, so its
conversion is widened here. It can go once OmegaConf accepts values of string enums itself.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from omegaconf.nodes import EnumNode

_by_name = EnumNode.validate_and_convert_to_enum


def _by_value_or_name(enum_type: type[Enum], value: Any) -> Enum:
    if isinstance(value, str) and value in [member.value for member in enum_type]:
        return enum_type(value)
    return _by_name(enum_type=enum_type, value=value)


def accept_enum_values() -> None:
    """Let OmegaConf convert by value too. Safe to call again."""
    EnumNode.validate_and_convert_to_enum = staticmethod(_by_value_or_name)  # type: ignore[method-assign]
