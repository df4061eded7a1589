"""The tools of a run: instances, tool sets, and what is refused before and after the start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ramet.components.build import are_started
from ramet.components.services import RunServices
from ramet.components.toolbox import Toolbox, open_tools, tool_names
from ramet.config.schema import Config, ToolConfig
from ramet.errors import ConfigError, InfraError, PluginError
from ramet.planning.run_plan import entries_in_words
from ramet.plugins import Plugins
from ramet.plugins.component_checks import misfits
from ramet.plugins.registry import Entry, Registries
from ramet.rollout.scoring import WeightedReward
from ramet.testing.doubles import EchoTool, echo_tool
from ramet.types import Services, Tool


class Files:
    """A tool set; `made` holds every one that was built."""

    made: ClassVar[list[Files]] = []
    offers: tuple[str, ...] = ("read_file", "list_files")
    error: BaseException | None = None

    def __init__(self) -> None:
        self.events: list[str] = []
        Files.made.append(self)

    async def start(self, services: Services) -> None:
        self.events.append(f"start {services.folder.name}")

    async def open(self) -> Sequence[Tool]:
        self.events.append("open")
        if self.error is not None:
            raise self.error
        return [echo_tool(name) for name in self.offers]

    async def aclose(self) -> None:
        self.events.append("close")


class Started(EchoTool):
    folders: ClassVar[list[str]] = []

    async def start(self, services: Services) -> None:
        self.folders.append(services.folder.name)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "made", [])
    monkeypatch.setattr(Started, "folders", [])
    registries = Registries()
    offered: dict[str, Any] = {
        "files": Files,
        "search": lambda: Started(echo_tool("search").schema),
        "read_file": lambda: echo_tool("read_file"),
    }
    for name, factory in offered.items():
        entry: Entry[Any] = Entry(
            kind="tool", name=name, factory=factory, config=None, plugin="demo", distribution="demo-dist"
        )
        registries.tools.add(entry)
    for module in ("toolbox", "build"):
        monkeypatch.setattr(f"ramet.components.{module}.load_plugins", lambda: Plugins(registries=registries, infos=[]))


def configured(**tools: str | None) -> Config:
    """NAME=None chooses a tool, NAME='x' makes it an instance of x."""
    config = Config()
    config.tools = {name: ToolConfig(use=use) for name, use in tools.items()}
    return config


def opened(config: Config, folder: Path, **options: Any) -> Toolbox:
    return asyncio.run(open_tools(config, RunServices(folder=folder, seed=1), **options))


def test_instances_are_distinct_and_each_is_started_once(tmp_path: Path) -> None:
    box = opened(configured(search=None, web="search"), tmp_path)
    assert {name: schema.name for name, schema in box.schemas.items()} == {"search": "search", "web": "web"}
    assert box.tools["search"][0] is not box.tools["web"][0]
    assert Started.folders == ["tools.search", "tools.web"]


def test_before_the_start_a_set_is_opened_once_for_its_schemas_and_tools_are_not_started() -> None:
    names = tool_names(configured(search=None, files=None))
    assert list(names.schemas) == ["search", "read_file", "list_files"]
    assert names.all == ["search", "read_file", "list_files", "files"]
    assert [schema.name for schema in names.allowed(("files",))] == ["read_file", "list_files"]
    assert [schema.name for schema in names.allowed(None)] == ["search", "read_file", "list_files"]
    [only] = Files.made
    assert only.events == ["start tools.files", "open", "close"]
    assert Started.folders == []


def test_each_worker_opens_the_set_again_and_closes_it_at_the_end(tmp_path: Path) -> None:
    config = configured(files=None)
    expected = tool_names(config).sets
    box = opened(config, tmp_path, expected=expected)
    assert box.sets == {"files": ("read_file", "list_files")}
    assert list(box.tools) == ["read_file", "list_files"]
    assert Files.made[-1].events == ["start tools.files", "open"]
    asyncio.run(box.close_sets())
    assert Files.made[-1].events[-1] == "close"


@pytest.mark.parametrize(
    ("offers", "change"),
    [
        (("read_file",), "list_files is gone"),
        (("read_file", "list_files", "drop"), "drop is new"),
        (("list_files", "read_file"), "their order has changed"),
    ],
)
def test_a_set_that_has_other_tools_than_before_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offers: tuple[str, ...], change: str
) -> None:
    config = configured(files=None)
    expected = tool_names(config).sets
    monkeypatch.setattr(Files, "offers", offers)
    with pytest.raises(PluginError) as caught:
        opened(config, tmp_path, expected=expected)
    assert str(caught.value) == (
        f"tool 'files' of plugin 'demo' (demo-dist): the tool set has other tools than before the start: {change}"
    )
    assert Files.made[-1].events[-1] == "close"


def test_a_tool_with_another_description_than_before_stops_the_run(tmp_path: Path) -> None:
    config = configured(files=None)
    first, second = tool_names(config).sets["files"]
    with pytest.raises(PluginError, match=r"before the start: read_file has another description$"):
        opened(config, tmp_path, expected={"files": (replace(first, description="Reads."), second)})


@pytest.mark.parametrize("order", [("files", "read_file"), ("read_file", "files")])
def test_a_name_that_two_entries_offer_is_refused_before_the_start(order: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        tool_names(configured(**dict.fromkeys(order)))
    assert str(caught.value) == (
        f"tools: {order[1]!r} and {order[0]!r} both offer a tool named 'read_file'; leave one of them out"
    )


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (InfraError("nobody listens at port 9"), InfraError, "tools.files: nobody listens at port 9"),
        (
            OSError("refused"),
            InfraError,
            "tool 'files' of plugin 'demo' (demo-dist): `open` raised OSError: refused",
        ),
        (
            SystemExit(3),
            PluginError,
            "tool 'files' of plugin 'demo' (demo-dist): `open` raised SystemExit: 3",
        ),
    ],
)
def test_a_set_that_cannot_be_opened_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, kind: type[Exception], expected: str
) -> None:
    monkeypatch.setattr(Files, "error", error)
    with pytest.raises(kind) as caught:
        tool_names(configured(files=None))
    line = f" (core/tests/components/test_toolbox.py:{Files.open.__code__.co_firstlineno + 3})"
    assert str(caught.value) == expected + line * ("raised" in expected)


def test_a_set_without_tools_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "offers", ())
    with pytest.raises(PluginError, match=r"'files' of plugin 'demo'.*: `open` returned no tools \("):
        tool_names(configured(files=None))


def test_what_was_started_is_closed_if_a_later_entry_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def aclose(tool: Started) -> None:
        closed.append(tool.schema.name)

    monkeypatch.setattr(Started, "aclose", aclose, raising=False)
    monkeypatch.setattr(Files, "error", InfraError("nobody listens at port 9"))
    with pytest.raises(InfraError):
        opened(configured(search=None, files=None), tmp_path)
    assert closed == ["search"]
    assert Files.made[0].events[-1] == "close"


def test_two_tools_of_a_set_have_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "offers", ("read_file", "read_file"))
    with pytest.raises(PluginError) as caught:
        tool_names(configured(files=None))
    assert str(caught.value) == (
        "tool 'files' of plugin 'demo' (demo-dist): `open` returned several tools named 'read_file'"
    )


class PlainOpen:
    def open(self) -> list[Any]:
        return []

    async def aclose(self) -> None: ...


class PlainStart(EchoTool):
    def start(self, services: Any) -> None: ...


def test_the_shape_of_sets_and_of_start_is_checked_when_they_are_built() -> None:
    assert misfits(Files(), "tool") == []
    assert misfits(PlainOpen(), "tool") == ["has a plain `open`; expected `async def open()`"]
    assert misfits(PlainStart(echo_tool().schema), "tool") == [
        "has a plain `start`; expected `async def start(services)`"
    ]


@pytest.mark.parametrize(
    ("tools", "wants"),
    [(dict.fromkeys(["read_file"]), False), ({"web": "search"}, True), (dict.fromkeys(["files"]), True), ({}, False)],
)
def test_limiters_of_many_processes_are_made_only_where_one_may_be_asked_for(
    tools: dict[str, str | None], wants: bool
) -> None:
    assert tool_names(configured(**tools)).are_started is wants


def test_a_reward_with_a_start_may_ask_for_a_limiter_too() -> None:
    class Started:
        async def start(self, services: Services) -> None: ...

    def weighted(reward: Any) -> WeightedReward:
        return WeightedReward(name="r", plugin="p", reward=reward, weight=1.0, sources=None, timeout_s=1.0)

    assert are_started([weighted(object()), weighted(Started())])
    assert not are_started([weighted(object())])


def test_a_plan_prints_what_an_instance_is() -> None:
    assert entries_in_words(configured(search=None, web="search").tools) == "search, web (search)"
    assert entries_in_words({}) == "none"
