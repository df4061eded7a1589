"""The loader: what is healthy is registered, what is broken is listed with its reason and adds nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramet import Register, hookimpl
from ramet.errors import ConfigError, PluginError
from ramet.plugins import CONTRACT_VERSION, Plugins, load_from
from ramet.plugins.registry import DuplicateName
from ramet.plugins.sources import Source, module_source


@dataclass
class Options:
    n: int = 1


def module(contract: str | None = CONTRACT_VERSION, **members: Any) -> ModuleType:
    made = ModuleType("made_here")
    if contract is not None:
        made.ramet_contract = contract  # type: ignore[attr-defined]
    vars(made).update(members)
    return made


def source(name: str, load: Callable[[], Any], distribution: str | None = None) -> Source:
    return Source(name, f"module_{name}", distribution or f"dist-{name}", "1.2", load)


def offering(*names: str, **options: Any) -> Callable[[], ModuleType]:
    """A plugin that offers tools of these names."""

    @hookimpl
    def register_tools(register: Register[Any]) -> None:
        for name in names:
            register(name, dict, **options)

    return lambda: module(register_tools=register_tools)


def load(*sources: Source) -> Plugins:
    return load_from(list(sources))


def test_a_plugin_is_registered_under_its_name_and_listed_with_what_it_offers() -> None:
    plugins = load(source("sums", offering("add", "double")))
    (info,) = plugins.infos
    assert (info.name, info.distribution, info.version, info.contract) == ("sums", "dist-sums", "1.2", "1")
    assert info.offers == {"tools": ["add", "double"]}
    assert info.broken is None and plugins.broken == []
    assert plugins.get("tools", "add").plugin == "sums"


def test_a_plugin_may_offer_nothing() -> None:
    assert load(source("empty", module)).infos[0].offers == {}


def raising(error: BaseException) -> Callable[[], Any]:
    def load_module() -> Any:
        raise error

    return load_module


@hookimpl
def unknown_hook(register: Register[Any]) -> None:
    register("add", dict)


@hookimpl
def wrong_argument(registry: Any) -> None:
    registry("add", dict)


@hookimpl
def raises(register: Register[Any]) -> None:
    register("add", dict)
    raise KeyError("lost")


def undecorated(register: Register[Any]) -> None:
    register("add", dict)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (raising(ModuleNotFoundError("No module named 'absent'")), "ModuleNotFoundError: No module named 'absent'"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (
            lambda: module(register_toolz=unknown_hook),
            "no hook 'register_toolz'. Did you mean 'register_tools'",
        ),
        (lambda: module(register_tools=wrong_argument), "registry"),
        (lambda: module(register_tools=raises), "KeyError: 'lost'"),
        (lambda: module(register_tools=undecorated), "register_tools is not decorated with @hookimpl"),
        (lambda: module(contract=None), "does not state ramet_contract = '1'"),
        (lambda: module(contract="0"), "built for contract version 0, this ramet supports 1.*dist-odd"),
        (offering("good", "Bad Name"), "'Bad Name'"),
        (offering("good", config=Options()), "config must be a dataclass"),
    ],
)
def test_a_broken_plugin_is_listed_with_its_reason_and_the_others_work(broken: Any, reason: str) -> None:
    plugins = load(source("odd", broken), source("sums", offering("add")))
    odd, sums = plugins.infos
    assert odd.broken is not None
    assert re.search(reason, odd.broken)
    assert odd.offers == {} and plugins.broken == ["odd"]
    assert sums.broken is None
    assert plugins.registries.tools.names == ["add"]


def test_the_message_for_a_name_that_a_broken_plugin_would_offer_names_that_plugin() -> None:
    plugins = load(source("odd", raising(ImportError("x"))))
    with pytest.raises(ConfigError, match=r"no tool named 'add'.* failed to load: odd"):
        plugins.get("tools", "add")


def test_two_plugins_with_one_registered_name_are_fatal_and_both_named() -> None:
    with pytest.raises(DuplicateName, match=r"'one' \(dist-one\) .*'two' \(dist-two\)"):
        load(source("one", offering("add")), source("two", offering("add")))


def test_one_plugin_that_registers_a_name_twice_is_fatal() -> None:
    with pytest.raises(DuplicateName, match="registered twice"):
        load(source("one", offering("add", "add")))


def test_two_distributions_with_one_plugin_name_are_fatal_and_both_named() -> None:
    with pytest.raises(PluginError, match="plugin name 'sums' is used twice: by dist-a and by dist-b"):
        load(source("sums", offering("add"), "dist-a"), source("sums", offering("double"), "dist-b"))


def test_interrupting_is_not_taken_for_a_broken_plugin() -> None:
    with pytest.raises(KeyboardInterrupt):
        load(source("slow", raising(KeyboardInterrupt())))


def test_the_same_name_in_two_kinds_is_fine() -> None:
    @hookimpl
    def register_rewards(register: Register[Any]) -> None:
        register("add", dict)

    plugins = load(source("one", offering("add")), source("two", lambda: module(register_rewards=register_rewards)))
    assert plugins.broken == []


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("mine.py", "PluginError: RAMET_PLUGINS takes modules, not files; set PYTHONPATH=. RAMET_PLUGINS=mine"),
        ("./code/mine.py", "PluginError: RAMET_PLUGINS takes modules, not files; set PYTHONPATH=code "
                           "RAMET_PLUGINS=mine"),
        ("mine", "PluginError: No module named 'mine'; mine.py is in the working directory: set PYTHONPATH=. too"),
        ("nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)  # fmt: skip
def test_a_module_that_was_named_wrongly_is_broken_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    plugins = load(module_source(named, named, f"module {named}"))
    assert plugins.infos[0].broken == reason
    assert plugins.absent == f". Plugins that failed to load: {named} ({reason})"
