"""docs/plugins.md is true: its signatures are the code's, and its examples are what `ramet new` writes, small, and
keep the contract.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import enum
import importlib
import inspect
import json
import re
import sqlite3
import sys
import threading
import time
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import ramet
from ramet import CallStatus, ConfigError, InfraError, Task, ToolCall, ToolError, ToolRecord, user_prompt
from ramet.cli import main
from ramet.config.compose import compose
from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.config.sections import COMPONENTS
from ramet.plugins import hookspecs, load_from, load_plugins
from ramet.plugins.component_checks import OPTIONAL, PROTOCOLS
from ramet.plugins.sources import GROUP, PRESETS, Source
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.tools.runner import ToolRunner
from ramet.rollout.watchdog import Watchdog
from ramet.rollout.worker import RolloutWorker
from ramet.scaffold import KINDS
from ramet.scaffold.package import render
from ramet.testing import check_agent, check_plugin, check_tool_set, local_services
from ramet.testing.doubles import ScriptedEngine, echo_tool, tiny_encoder
from ramet.testing.plugin import load_check
from ramet.tracking.background import BackgroundTracker

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "plugins.md").read_text()
ENVIRONMENTS = (Path(__file__).resolve().parents[1] / "docs" / "environments.md").read_text()  # has one kind's example
HEADINGS = set(re.findall(r"^#{3,4} `(.+)`$", PAGE, re.MULTILINE))
FILES = dict(re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)^```", PAGE + ENVIRONMENTS, re.MULTILINE | re.DOTALL))
EXAMPLES = {
    "tool": "count_words",
    "reward": "exact_match",
    "benchmark": "quiz",
    "advantage": "leave_one_out",
    "policy_loss": "topr",
    "branch_policy": "uncertain",
    "rollout_step": "json_calls",
    "environment": "guess",
    "agent": "sums",
    "tool_set": "notes",
    "tracker": "sqlite",
    "command": "best",
}
HOOKED = [kind for kind in EXAMPLES if KINDS[kind].registry]
BLOCKS = ("ramet_repeat", "ramet_lookup")  # modules that the page shows without a path, in its order
# Lines that are not blank, over all modules of the example.
MOST_LINES = {
    "tool": 10,
    "reward": 6,
    "benchmark": 40,
    "advantage": 30,
    "policy_loss": 30,
    "branch_policy": 80,
    "rollout_step": 40,
    "environment": 60,
    "agent": 55,
    "tool_set": 30,
    "tracker": 30,
    "command": 20,
}


def hooks() -> dict[str, Any]:
    return {name: found for name, found in vars(hookspecs).items() if hasattr(found, "ramet_spec")}


def signature(name: str, function: Any) -> str:
    """As a heading gives it: `async Tool.__call__(call: ToolCall) -> ToolResult`."""
    text = str(inspect.signature(function)).replace("(self, ", "(").replace("(self)", "()")
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)  # annotations are strings
    return f"{'async ' if inspect.iscoroutinefunction(function) else ''}{name}{text}"


def members(protocol: type) -> Iterator[str]:
    """Headings for everything that a Protocol asks for."""
    for name, annotation in protocol.__annotations__.items():
        yield f"{protocol.__name__}.{name}: {annotation}"
    for name, found in vars(protocol).items():
        if isinstance(found, property):
            yield f"{protocol.__name__}.{name}: {inspect.signature(found.fget).return_annotation}"
        elif inspect.isfunction(found) and (name == "__call__" or not name.startswith("_")):
            yield signature(f"{protocol.__name__}.{name}", found)


def offered_by(hook: Any) -> list[type]:
    """The Protocols of what a hook registers."""
    (names,) = re.findall(r"Register\[([\w |]+)\]", str(inspect.signature(hook)))
    return [getattr(ramet, name) for name in names.split(" | ")]


@pytest.mark.parametrize("name", hooks())
def test_every_hook_and_what_it_registers_stand_as_headings_with_their_exact_signatures(name: str) -> None:
    hook = hooks()[name]
    assert signature(name, hook) in HEADINGS
    for protocol in offered_by(hook):
        assert set(members(protocol)) <= HEADINGS


def test_every_heading_with_a_signature_is_one_of_the_code() -> None:
    helpers = [ramet.function_tool, ramet.per_rollout, ramet.from_jsonl, ramet.run_blocking]
    helpers += [ramet.json_rows, ramet.reward_named, ramet.code_of_reward]
    known = {signature(name, hook) for name, hook in hooks().items()}
    known |= {signature(helper.__name__, helper) for helper in helpers}
    others = [
        ramet.StepContext,
        ramet.TraceReader,
        ramet.TemplateFormat,
        ramet.Services,
        ramet.Limiter,
        ramet.Stateful,
        ramet.Environment,
    ]
    others.append(ramet.OpenAIClient)
    for name, (form, kinds) in OPTIONAL.items():
        if name != "start":  # of several kinds, described once in prose
            known |= {signature(f"{PROTOCOLS[kind].__name__}.{name}", vars(form)[name]) for kind in kinds}
    for protocol in (*(one for hook in hooks().values() for one in offered_by(hook)), *others):
        known |= set(members(protocol))
    assert {heading for heading in HEADINGS if not heading.startswith("register(")} == known


def test_register_is_described_as_it_is() -> None:
    (heading,) = [heading for heading in HEADINGS if heading.startswith("register(")]
    arguments = [
        node.arg for node in ast.walk(ast.parse(inspect.getsource(hookspecs.Register))) if isinstance(node, ast.arg)
    ]
    assert set(re.findall(r"(\w+):", heading)) == set(arguments) - {"self"}


def test_everything_that_crosses_the_seams_is_listed_with_its_fields() -> None:
    expected = []
    for name in ramet.__all__:
        found = getattr(ramet, name)
        if dataclasses.is_dataclass(found):
            fields = ", ".join(f"{field.name}: {field.type}" for field in dataclasses.fields(found))
            derived = [f"`{key}`" for key, value in vars(found).items() if isinstance(value, property)]
            expected.append(f"* `{name}({fields})`" + (f" with {', '.join(derived)}" if derived else ""))
        elif isinstance(found, type) and issubclass(found, enum.Enum):
            expected.append(f"* `{name}`: " + ", ".join(f"`{member.name}`" for member in found))
        elif isinstance(found, types.UnionType):
            expected.append(f"* `{name}`: " + " or ".join(f"`{one.__name__}`" for one in found.__args__))
    lines = PAGE.splitlines()
    missing = [one for one in expected if not any(line == one or line.startswith(f"{one}: ") for line in lines)]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_is_what_ramet_new_writes(kind: str) -> None:
    name = EXAMPLES[kind]
    written = render(KINDS[kind], name)
    sources = {path for path, text in written.items() if path.startswith("src/") and text}
    tests = f"tests/test_{name}.py"
    own = sources | {"tool": {"pyproject.toml", tests}, "agent": {tests}}.get(kind, set())
    shown = {path: text for path, text in FILES.items() if path in own}
    assert set(shown) == own
    assert shown == {path: written[path] for path in shown}


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_is_small(kind: str) -> None:
    modules = [text for path, text in FILES.items() if path.startswith(f"src/ramet_{EXAMPLES[kind]}/")]
    lines = [line for text in modules for line in text.splitlines() if line.strip() and not line.startswith('{"')]
    assert 0 < len(lines) <= MOST_LINES[kind]


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page, importable."""
    for path, text in FILES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for name, text in zip(BLOCKS, blocks_without_a_path(), strict=False):
        (tmp_path / "src" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "src")
    return tmp_path


def blocks_without_a_path() -> list[str]:
    return [
        text
        for text in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        if text not in FILES.values()
    ]


def test_every_example_loads_beside_all_that_is_installed(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [f"ramet_{EXAMPLES[kind]}" for kind in HOOKED]
    monkeypatch.setenv("RAMET_PLUGINS", ",".join([*modules, *BLOCKS]))
    load_plugins.cache_clear()
    try:
        loaded = load_plugins()
    finally:
        load_plugins.cache_clear()
    assert loaded.broken == [] and set(modules) <= {info.name for info in loaded.infos}


@pytest.mark.parametrize("module", ["ramet_after_failure", *(f"ramet_{EXAMPLES[kind]}" for kind in HOOKED), *BLOCKS])
def test_every_example_keeps_the_contract(module: str, examples: Path, service: str) -> None:
    plugins = load_from([Source(module, module, module, "0", lambda: importlib.import_module(module))])
    (info,) = plugins.infos
    assert info.broken is None and len(info.offers) == 1
    for kind, registry in plugins.registries:
        for entry in registry:
            if module == "ramet_notes":
                check_tool_set(entry.build)
            elif module == "ramet_sums":
                pytest.importorskip("openai", reason="ramet-sums[test] is not installed")
                call = '<tool_call>{"name": "add", "arguments": {"numbers": [2, 3]}}</tool_call>'
                check_agent(entry.build(None), replies=[call, "The sum is 5."])
            else:
                options = {"urls": [service], "per_s": 1000} if module == "ramet_lookup" else {}
                load_check(kind)(entry.build(entry.config(**options) if options and entry.config else None))


def test_the_policy_that_forks_after_failed_calls_forks_nowhere_else(examples: Path) -> None:
    """Two roots of one call each; the first one's fails."""

    def script(task: str, path: str, turn: int) -> str:
        return "<answer>1</answer>" if turn else "<python>1</python>"

    async def main() -> list[Any]:
        encoder = tiny_encoder()
        worker = RolloutWorker(
            engine=ScriptedEngine(script, encoder),
            encoder=encoder,
            step=Tags(TagsConfig()),
            branch_policy=importlib.import_module("ramet_after_failure").AfterFailurePolicy(),
            tools={"python": (echo_tool(error=ToolError("no such name"), fails=1), ToolConfig())},
            config=RolloutConfig(group_size=4),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=True,
        )
        [group] = await worker.run(RolloutRequest(tasks=[Task(id="t", prompt=user_prompt("?"))], step=1))
        await worker.close()
        return list(group.rollouts)

    rollouts = asyncio.run(main())
    assert [(rollout.id, rollout.fork_turn) for rollout in rollouts] == [
        ("0", None), ("0.0", 1), ("1", None), ("2", None),
    ]  # fmt: skip
    assert [call.status for rollout in rollouts for call in rollout.tool_calls] == ["error", "error", "ok", "ok"]


def test_the_presets_of_the_page_compose(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_PLUGINS", "ramet_uncertain")
    load_plugins.cache_clear()
    try:
        resolved = compose(
            ["algorithm=uncertain", "model.path=m"], job="train", config_dir=examples / "src/ramet_uncertain/conf"
        )
    finally:
        load_plugins.cache_clear()
    policy = resolved.config.branch_policy
    assert (policy.name, policy.params.threshold, policy.params.max_forks) == ("uncertain", 0.5, 4)
    assert resolved.config.rollout.group_size == 16


def test_options_behave_as_the_page_says(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_PLUGINS", "ramet_uncertain,ramet_repeat")
    load_plugins.cache_clear()
    try:
        chosen = ["model.path=m", "branch_policy=uncertain", "tools=[repeat]"]
        resolved = compose([*chosen, "tools.repeat.params.most=3"], job="train")
        assert resolved.config.tools["repeat"].params.most == 3
        with pytest.raises(ConfigError) as caught:
            compose([*chosen, "tools.repeat.params.most=x", "branch_policy.params.max_fork=3"], job="train")
        assert "tools.repeat.params.most" in str(caught.value) and "branch_policy.params.max_fork" in str(caught.value)
        with pytest.raises(ConfigError, match=r"max_forks .* -1"):
            compose([*chosen, "branch_policy.params.max_forks=-1"], job="train")
    finally:
        load_plugins.cache_clear()


def test_the_page_names_groups_and_settings_that_exist() -> None:
    named = set(re.findall(r"Fills the group `(\w+)`", PAGE))
    assert named == {group.name for group in COMPONENTS if group.kind is not None}
    assert f'[project.entry-points."{PRESETS}"]' in PAGE and f"[project.entry-points.{GROUP}]" in PAGE


class Words(BaseHTTPRequestHandler):
    """A service that asks the first caller to wait, and takes its time for the word `slow`."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if len(self.asked) == 1:
            self.send_response(429)
            self.send_header("Retry-After", "0.5")
            self.end_headers()
            return
        if self.path == "/slow":
            time.sleep(3)
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):  # the caller has gone
            self.wfile.write(json.dumps({"text": f"about {self.path[1:]}", "page": f"page{self.path}"}).encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Words, "asked", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Words) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


async def called(tool: Any, *calls: ToolCall, **config: Any) -> list[ToolRecord]:
    """As a rollout worker calls it, all at once."""
    runner = ToolRunner(tool.schema.name, tool, ToolConfig(**config), tiny_encoder(), Watchdog(60))
    try:
        return [end.record for end in await asyncio.gather(*(runner.run(call) for call in calls))]
    finally:
        await runner.close()


def test_the_lookup_of_the_page_waits_when_asked_to_and_keeps_from_the_tasks_own_page(
    examples: Path, service: str
) -> None:
    made = importlib.import_module("ramet_lookup")
    task = Task(id="t", prompt=(), metadata={"page": "page/b"})
    calls = [ToolCall(name="lookup", arguments={"word": word}, task=task) for word in "ab"]

    async def main() -> tuple[list[ToolRecord], float]:
        tool = made.Lookup(made.LookupConfig(urls=[service], per_s=1000))
        with local_services() as services:
            await tool.start(services)
            started = time.monotonic()
            outcomes = await called(tool, *calls, retries=0)
            seconds = time.monotonic() - started
            with pytest.raises(InfraError):
                await tool(ToolCall(name="lookup", arguments={"word": "slow"}, deadline_s=0.2))
            assert time.monotonic() - started < 3 + seconds
        return outcomes, seconds

    outcomes, seconds = asyncio.run(main())
    assert [(one.text, one.metadata) for one in outcomes] == [
        ("about a", {"page": "page/a"}),
        ("Nothing found.", {"left_out": "page/b"}),
    ]
    assert seconds >= 0.5 and sorted(Words.asked)[-1] == "/slow" and len(Words.asked) == 4


def test_the_lookup_of_the_page_asks_the_mirror_that_the_seed_draws(examples: Path) -> None:
    made = importlib.import_module("ramet_lookup")
    urls = [f"http://mirror-{i}/" for i in range(1000)]

    async def drawn(seed: int) -> str:
        tool = made.Lookup(made.LookupConfig(urls=urls))
        with local_services(seed=seed) as services:
            await tool.start(services)
        return str(tool.url)

    assert asyncio.run(drawn(1)) == asyncio.run(drawn(1)) != asyncio.run(drawn(2))


def test_the_notes_of_the_page_are_in_the_runs_folder_and_written_once(examples: Path) -> None:
    made = importlib.import_module("ramet_notes")

    async def main() -> None:
        notes = made.Notes()
        with local_services() as services:
            await notes.start(services)
            write, read = await notes.open()
            [outcome] = await called(write, ToolCall(name="write_note", arguments={"text": "x"}))
            assert outcome.text == "Written."
            assert (services.folder / "notes.txt").read_text() == (
                await called(read, ToolCall(name="read_notes", arguments={}))
            )[0].text
            notes.file = Path("/dev/full")  # a full disk
            [outcome] = await called(write, ToolCall(name="write_note", arguments={"text": "x"}), retries=5)
            assert (outcome.status, outcome.attempts) == (CallStatus.INFRA, 1)

    asyncio.run(main())


def test_the_check_of_the_page_finds_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = [text for text in blocks_without_a_path() if "DoctorContext" in text]
    made = types.ModuleType("ramet_weather_doctor")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(text, "page", "exec"), vars(made))
    monkeypatch.delenv("WEATHER_KEY", raising=False)
    (finding,) = made.check(ramet.DoctorContext())
    assert finding.severity is ramet.Severity.PROBLEM and finding.text == "tools.weather: WEATHER_KEY is not set"
    monkeypatch.setenv("WEATHER_KEY", "x")
    (finding,) = made.check(ramet.DoctorContext(options={"tools.rain": made.WeatherConfig()}))
    assert (finding.severity, finding.text) == (ramet.Severity.OK, "tools.rain: WEATHER_KEY is set")


def test_the_tracker_of_the_page_keeps_runs_apart_and_takes_redone_steps_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is of one thread, as SQLite demands."""
    (tmp_path / "ramet_sqlite.py").write_text(FILES["src/ramet_sqlite/__init__.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    make = importlib.import_module("ramet_sqlite").make
    run = ramet.TrackedRun(folder=tmp_path / "a", total_steps=3, job="train", id="abc")
    first, other = BackgroundTracker("sqlite", lambda: make(run)), make(dataclasses.replace(run, id="other"))
    for step in (1, 2, 3):
        first.log(step, {"reward/mean": step / 10})
        other.log(step, {"reward/mean": 9.0})
    first.end(143)
    first.close()
    other.close()
    again = BackgroundTracker("sqlite", lambda: make(dataclasses.replace(run, logged=3)))
    again.rewind(1)
    again.log(2, {"reward/mean": 0.7})
    again.end(0)
    again.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "metrics.sqlite")) as database:
        rows = database.execute("SELECT step, value FROM metrics WHERE run = 'abc' ORDER BY step").fetchall()
        runs = database.execute("SELECT * FROM runs ORDER BY id").fetchall()
    assert rows == [(1, 0.1), (2, 0.7)]
    assert runs == [("abc", "a", "train", 0), ("other", "a", "train", None)]


@pytest.fixture
def one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the plugin that is one file, in a folder on the path."""
    (tmp_path / "clock_tool.py").write_text(FILES["clock_tool.py"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RAMET_PLUGINS", "clock_tool")
    load_plugins.cache_clear()
    yield "clock_tool"
    load_plugins.cache_clear()
    sys.modules.pop("clock_tool", None)


def test_a_plugin_of_one_file_is_listed_and_keeps_the_contract(
    one_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines() if "clock" in line]
    assert listed == [["clock_tool", "module", "clock_tool", "-", "1", "tools:", "clock"]]
    check_plugin(one_file)
    tool = load_plugins().registries.tools.get("clock").build()
    task = Task(id="t", prompt=user_prompt("What time is it?"))
    call = ToolCall(name="clock", arguments={"zone": "UTC"}, rollout="0", turn=0, task=task, deadline_s=9.0)
    assert re.fullmatch(r"\d\d:\d\d", asyncio.run(tool(call)).text)
