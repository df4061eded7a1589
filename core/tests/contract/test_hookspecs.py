"""Hooks, registries and checks stay in step: one hookspec per kind, one check per hook."""

from __future__ import annotations

import dataclasses
import inspect
import typing

import pytest

import ramet.testing
from ramet.plugins import hookspecs
from ramet.plugins.registry import Registries
from ramet.testing.plugin import CHECKS, load_check

HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("register_")}
KINDS = [field.name for field in dataclasses.fields(Registries)]


def test_every_kind_of_registry_has_a_hookspec_and_every_hookspec_a_registry() -> None:
    assert sorted(HOOKS) == sorted(f"register_{kind}" for kind in KINDS)
    assert all(hasattr(hook, "ramet_spec") for hook in HOOKS.values())


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_every_hook_takes_only_register_and_is_documented(name: str) -> None:
    assert list(inspect.signature(HOOKS[name]).parameters) == ["register"]
    group = getattr(Registries(), name.removeprefix("register_")).group
    assert f"`{group}`" in (HOOKS[name].__doc__ or "")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_check_that_is_exported(kind: str) -> None:
    check = load_check(kind)
    assert check.__name__ == f"check_{CHECKS[kind]}"
    assert getattr(ramet.testing, check.__name__) is check


@pytest.mark.parametrize("kind", KINDS)
def test_every_hook_and_registry_speak_of_the_same_protocol(kind: str) -> None:
    registered = typing.get_type_hints(HOOKS[f"register_{kind}"])["register"]
    held = typing.get_type_hints(Registries)[kind]
    assert typing.get_args(registered) == typing.get_args(held)
    first_parameter = next(iter(inspect.signature(load_check(kind)).parameters.values()))
    (offered,) = typing.get_args(held)
    first = next(iter(typing.get_args(offered)), offered)  # of a union, which has checks of its own for the others
    assert first_parameter.annotation == first.__name__


def test_every_name_of_the_kit_can_be_imported() -> None:
    for name in ramet.testing.__all__:
        assert getattr(ramet.testing, name).__name__ == name
