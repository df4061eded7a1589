from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ramet.cli.help_data import KeyHelp, keys_of, sections
from ramet.plugins import load_plugins
from ramet.types.option import option


def all_keys() -> Iterator[KeyHelp]:
    for section in sections():
        yield from section.keys
        for component in section.components:
            yield from component.keys


def test_every_key_of_core_and_plugins_has_a_text():
    assert [key.key for key in all_keys() if not key.text] == []
    assert [section.name for section in sections() if not section.text] == []


def test_no_text_is_a_letter_or_begins_as_a_remainder_of_a_sentence():
    assert [
        (key.key, key.text) for key in all_keys() if len(key.text) < 5 or key.text.startswith(("of ", "and "))
    ] == []


def test_every_component_of_every_plugin_is_there():
    offered = {section.name: {component.name for component in section.components} for section in sections()}
    registries = load_plugins().registries
    assert {entry.name for entry in registries.tools} == offered["tools"]
    assert {entry.name for entry in registries.branch_policies} == offered["branch_policy"]
    assert {entry.name for entry in registries.rewards} == offered["rewards"]


@dataclass(kw_only=True, slots=True)
class Server:
    url: str = option("http://127.0.0.1", "address")
    timeout_s: float = option(120.0, "time-out, in seconds", above=0)


@dataclass(kw_only=True)
class Base:
    shared: int = 1  # of the base class


@dataclass(kw_only=True)
class Options(Base):
    most: int = 3  # as a comment
    least: int = field(default=1, metadata={"help": "as metadata"})
    form: str | None = option(None, "as an option", choices=("a", "b"))
    path: str
    server: Server = field(default_factory=lambda: Server(timeout_s=600.0))


def test_a_plugin_gives_a_text_as_comment_metadata_or_option():
    keys = {key.key.removeprefix("params."): key for key in keys_of(Options, "params")}
    assert {name: (key.type, key.default, key.text) for name, key in keys.items()} == {
        "shared": ("int", "1", "of the base class"),
        "most": ("int", "3", "as a comment"),
        "least": ("int", "1", "as metadata"),
        "form": ("one of a, b or null", "null", "as an option"),
        "path": ("str", "required", ""),
        "server.url": ("str", "http://127.0.0.1", "address"),
        "server.timeout_s": ("float", "600.0", "time-out, in seconds"),
    }
    assert keys["server.timeout_s"].allowed == "over 0"


def test_jobs_of_a_key_leave_out_those_that_do_not_read_it():
    keys = {key.key: key for key in all_keys()}
    assert keys["rollout.temperature"].jobs == ("train", "play")
    assert keys["policy.lr"].jobs == ("train",)
    assert "eval" in keys["rollout.max_turns"].jobs
