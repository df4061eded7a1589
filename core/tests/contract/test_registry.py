"""Registries: names, suggestions, duplicates, and building from a dataclass of options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ramet.errors import ConfigError, PluginError
from ramet.plugins.registry import DuplicateName, Entry, Registries, Registry


@dataclass(kw_only=True, slots=True)
class AddConfig:
    start: int = 1


class Add:
    def __init__(self, config: AddConfig) -> None:
        self.start = config.start


def entry(
    name: str = "add", factory: Any = Add, config: Any = AddConfig, plugin: str = "sums", kind: str = "tool"
) -> Entry[Any]:
    return Entry(kind=kind, name=name, factory=factory, config=config, plugin=plugin, distribution=f"ramet-{plugin}")


def registry(*entries: Entry[Any]) -> Registry[Any]:
    made: Registry[Any] = Registry("tool", "tools")
    for one in entries:
        made.add(one)
    return made


def test_an_entry_builds_with_its_default_options_and_with_given_ones() -> None:
    assert entry(kind="sum").build().start == 1
    assert entry(kind="sum").build(AddConfig(start=7)).start == 7


def test_a_factory_without_options_is_called_without_arguments() -> None:
    assert entry(factory=dict, config=None, kind="sum").build() == {}


def test_a_factory_string_is_imported_when_it_is_built() -> None:
    assert entry(factory="fractions:Fraction", config=None, kind="sum").build() == 0


def test_iteration_and_names_are_sorted() -> None:
    made = registry(entry("zulu"), entry("alpha"))
    assert [e.name for e in made] == made.names == ["alpha", "zulu"]
    assert "zulu" in made and "mike" not in made


@pytest.mark.parametrize("name", ["", "Add", "9lives", "two words", "no-dash", "a.b", "x" * 64, "add\n", 7, None])
def test_a_bad_name_is_refused_and_named(name: Any) -> None:
    with pytest.raises(PluginError, match=r"of plugin 'sums'.*not allowed"):
        registry(entry(name))


@pytest.mark.parametrize("config", [AddConfig(), dict, {"start": 1}, "AddConfig"])
def test_options_must_be_a_dataclass_not_an_instance_of_one(config: Any) -> None:
    with pytest.raises(PluginError, match="config must be a dataclass"):
        registry(entry(config=config))


@pytest.mark.parametrize("factory", [None, 3, "no_colon.here", ":Add", "module:", "a b:c", "pkg..mod:x"])
def test_a_factory_must_be_callable_or_a_full_path(factory: Any) -> None:
    with pytest.raises(PluginError, match="factory"):
        registry(entry(factory=factory))


def test_a_name_taken_is_fatal_and_names_both_plugins_and_packages() -> None:
    with pytest.raises(DuplicateName) as caught:
        registry(entry(plugin="sums"), entry(plugin="impostor"))
    for part in ("tool 'add'", "'sums' (ramet-sums)", "'impostor' (ramet-impostor)", "RAMET_BLOCK_PLUGINS"):
        assert part in str(caught.value)


def test_an_unknown_name_gets_a_suggestion_the_installed_and_why_it_may_be_missing() -> None:
    made = registry(entry("python"), entry("search"))
    with pytest.raises(ConfigError) as caught:
        made.get("pyhton", ". Plugins that failed to load: brk (see `ramet plugins`)")
    assert str(caught.value) == (
        "tools: no tool named 'pyhton'. Did you mean 'python'? Installed: python, search. Plugins that failed to load: "
        "brk (see `ramet plugins`)."
    )


def test_an_empty_registry_says_that_nothing_is_installed() -> None:
    with pytest.raises(ConfigError, match="Installed: none"):
        registry().get("python")


def test_a_factory_that_raises_names_plugin_and_package_and_keeps_the_cause() -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'numpyy'")

    with pytest.raises(PluginError) as caught:
        entry(factory=broken, config=None).build()
    assert "plugin 'sums' (ramet-sums) could not build tool 'add': ModuleNotFoundError" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("factory", ["no_such_module_here:Add", "fractions:Absent"])
def test_a_factory_string_that_leads_nowhere_names_the_plugin(factory: str) -> None:
    with pytest.raises(PluginError, match=r"'sums' \(ramet-sums\) could not build"):
        entry(factory=factory).build()


def test_the_users_mistake_stays_the_users_mistake() -> None:
    def refuses(config: AddConfig) -> None:
        raise ConfigError("tools.add.params.start: must be even, got 1")

    with pytest.raises(ConfigError, match="must be even"):
        entry(factory=refuses).build()


def test_registries_hold_one_registry_per_kind() -> None:
    kinds = dict(Registries())
    assert len(kinds) == 7
    assert len({one.group for one in kinds.values()}) == 7
