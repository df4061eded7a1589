"""docs/plugin_mistakes.md: each mistake is made here, and what is printed is the page's line, whole."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "plugin_mistakes.md").read_text(encoding="utf-8")
HEAD = 'from ramet import *\nramet_contract = "1"\n'
STOPS = 'STOPS = tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")\n'
SCHEMA = 'SCHEMA = ToolSchema(name="search", description="d", parameters={"type": "object", "properties": {}})\n'


def offers(kind: str, name: str, factory: str) -> str:
    return f"@hookimpl\ndef register_{kind}(register):\n    register({name!r}, {factory})\n"


def step(name: str, body: str) -> str:
    """A rollout step whose turn ends with these lines, after it has sampled a few tokens."""
    return (
        HEAD + STOPS + f"class {name.title().replace('_', '')}Step:\n    def system_prompt(self, tools):\n"
        f'        return ""\n    async def __call__(self, state, ctx):\n        await ctx.generate(stop=STOPS)\n'
        f"        {body}\n" + offers("rollout_steps", name, f"{name.title().replace('_', '')}Step")
    )


def tool(name: str, call: str, more: str = "") -> str:
    code = HEAD + SCHEMA + f"class {name.title().replace('_', '')}:\n    schema = SCHEMA\n{more}"
    return (
        code + f"    async def __call__(self, call):\n        {call}\n"
        + offers("tools", name, name.title().replace("_", ""))
    )  # fmt: skip


def reward(name: str, body: str, *, head: str = "async def __call__(self, group):") -> str:
    return HEAD + f"import time\nclass R:\n    {head}\n        {body}\n" + offers("rewards", name, "R")


def policy(name: str, body: str) -> str:
    title = name.title().replace("_", "")
    return (
        HEAD + f"class {title}:\n    needs = frozenset()\n    def decide(self, event, group, rng):\n        {body}\n"
        + offers("branch_policies", name, title)
    )  # fmt: skip


def vault(name: str, **methods: str) -> str:
    """An environment; `methods` replace the bodies of its own."""
    bodies = {"open": "return {}", "fork": "return dict(state)", "begin": "return []"} | methods
    return (
        HEAD + STOPS + 'class VaultStep:\n    forks = "copy"\n    def system_prompt(self, tools):\n        return ""\n'
        f"    async def open(self, task, seed):\n        {bodies['open']}\n"
        f"    async def fork(self, state):\n        {bodies['fork']}\n"
        f"    async def begin(self, state):\n        {bodies['begin']}\n"
        "    async def close(self, state):\n        pass\n    async def __call__(self, state, ctx):\n"
        "        await ctx.generate(stop=STOPS)\n"
        '        return StepResult(insert=(Markup(text="."),), stop=StopReason.END if state.turn else None)\n'
        + offers("rollout_steps", name, "VaultStep")
    )


CALLS = step(
    "calls",
    'r = await ctx.call_tool(ToolCall(name="search", arguments={})); '
    "return StepResult(insert=(Untrusted(text=r.text),), stop=StopReason.END if state.turn else None)",
)
FORKS = policy("forks", 'return [StartRoots(n=2)] if isinstance(event, Start) else [Fork(rollout=event.rollout, turn='
               'event.turn)] if isinstance(event, AfterTool) and event.rollout == "0" and group.budget_left '
               "else []")  # fmt: skip
STATE = (
    "    forks = 'copy'\n    async def open(self, task, seed):\n        {open}\n"
    "    async def close(self, state):\n        pass\n"
)
FORK = "    async def fork(self, state):\n        return state\n"
ASKS = "def ask():\n    time.sleep(2)\n"


@dataclass(frozen=True)
class Mistake:
    """Modules named by `RAMET_PLUGINS`, and what is run; without keys `ramet plugins`."""

    code: dict[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    block: str = ""
    exit_code: int = 1


def of_step(name: str, code: str, *more: str) -> Mistake:
    return Mistake({name: code}, (f"rollout_step={name}", *more))


def of_tool(name: str, code: str, *more: str) -> Mistake:
    return Mistake({name: code, "calls": CALLS}, ("tools=[]", f"tools.search.use={name}", "rollout_step=calls", *more))


def of_policy(name: str, body: str) -> Mistake:
    made = of_tool(
        "fine", tool("fine", 'return ToolResult(text="ok")'), f"branch_policy={name}", "rollout.first_tokens=3"
    )
    return Mistake({**made.code, name: policy(name, body)}, made.keys)


def of_reward(name: str, body: str, **named: str) -> Mistake:
    return Mistake({name: reward(name, body, **named)}, (f"rewards=[{name}]",))


NONE = "return [StartRoots(n=2)] if isinstance(event, Start) else None"
EARLY = 'return [StartRoots(n=2)] if isinstance(event, Start) else [Fork(rollout="0", turn=0)]'
VAULT = ("branch_policy=forks",)
CASES = {
    "A hook with a wrong name": Mistake({"misnamed_hook": HEAD + offers("tool", "again", "dict")}, exit_code=0),
    "A hook without": Mistake({"no_hookimpl": HEAD + offers("tools", "x", "dict").partition("\n")[2]}, exit_code=0),
    "No `ramet_contract`": Mistake({"no_contract": "x = 1\n"}, exit_code=0),
    "The contract as a number": Mistake({"int_contract": "ramet_contract = 1\n"}, exit_code=0),
    "An import that fails": Mistake({"bad_import": "import not_installed\n"}, exit_code=0),
    "A typing mistake in": Mistake({"nope": ""}, exit_code=0),
    "A run selects something of a broken": Mistake(
        {"misnamed_hook": HEAD + offers("tool", "again", "dict")}, ("tools=[again]",)
    ),
    "`RAMET_BLOCK_PLUGINS=core`": Mistake(keys=("tools=[]",), block="core"),
    "A typing mistake: `RAMET_BLOCK": Mistake(keys=("tools=[]",), block="rewads"),
    "A run selects something that is blocked": Mistake(keys=("rewards=[math]",), block="rewards"),
    "A number for an option": Mistake(
        {"cased_reward": HEAD + "from dataclasses import dataclass\n@dataclass(kw_only=True, slots=True)\nclass C:\n"
         "    casefold: bool = False\n" + offers("rewards", "cased_reward", "lambda c: None, config=C")},
        ("rewards=[cased_reward]", "rewards.cased_reward.params.casefold=3"),
    ),
    "A reward (or tool, step": of_reward("sync_reward", "return [1.0]", head="def __call__(self, group):"),
    "A state that cannot be forked": of_tool("half_state", tool("half_state", "pass", STATE.format(open="return []"))),
    "`forks = \"none\"`": Mistake(
        {"no_forks": tool("no_forks", "pass", STATE.format(open="return []").replace("copy", "none") + FORK)},
        ("tools=[no_forks]", "branch_policy=arpo"),
    ),
    "A branch policy that returns None at `Start`": of_policy("none_at_start", "return None"),
    "An advantage estimator": Mistake(
        {"bare_advantage": HEAD + "class BareAdvantage:\n    needs = frozenset()\n    def __call__(self, batch):\n"
         "        return batch.mask.float()\n" + offers("advantages", "bare_advantage", "BareAdvantage")},
        ("advantage=bare_advantage",),
    ),
    "A loss returns": Mistake(
        {"bare_loss": HEAD + "class BareLoss:\n    needs = frozenset()\n    def __call__(self, batch):\n"
         "        return -batch.logprobs\n" + offers("policy_losses", "bare_loss", "BareLoss")},
        ("policy_loss=bare_loss",),
    ),
    "A branch policy returns None at a later": of_policy("none_policy", NONE),
    "A branch policy forks the first": of_policy("early_fork", EARLY),
    "A step inserts a plain": of_step("plain_insert", step("plain_insert", 'return StepResult(insert=("hello",))')),
    "The same without a tuple": of_step("str_insert", step("str_insert", 'return StepResult(insert="hello")')),
    '`stop="end"`': of_step("str_stop", step("str_stop", 'return StepResult(stop="end")')),
    "A step returns nothing": of_step("no_result", step("no_result", "return None")),
    "A step raises": of_step("raising", step("raising", "return [][0]")),
    "A tool returns": of_tool("str_tool", tool("str_tool", 'return "b7"')),
    "A `ConfigError` inside a call": of_tool(
        "config_error_tool",
        tool("config_error_tool", 'raise ConfigError("the index is not there; make it with `index build`")'),
    ),
    "A `ConfigError` inside a reward": of_reward(
        "config_error_reward", "raise ConfigError(\"the tasks need a column 'level'\")"
    ),
    "A reward raises": of_reward("raising_reward", 'return [{}["level"]]'),
    "… over 5 %": of_reward("raising_reward", 'return [{}["level"]]'),
    "A reward returns too few": of_reward("short_reward", "return [1.0]"),
    "A reward blocks": Mistake(
        {"slow_reward": reward("slow_reward", "ask(); return [float(i) for i in range(len(group))]") + ASKS},
        ("rewards=[slow_reward]",), exit_code=0,
    ),
    "`rewards=[environment]`": Mistake(keys=("rewards=[environment]",)),
    "`open` of an environment": of_step("vault_strict", vault("vault_strict", open='return task.metadata["code"]')),
    "The same with `raise": of_step(
        "vault_ce", vault("vault_ce", open='raise ConfigError("the tasks need a column code")')
    ),
    "`open` of a tool": of_tool(
        "kv_strict", tool("kv_strict", "pass", STATE.format(open='return task.metadata["store"]') + FORK)
    ),
    "`fork` raises": Mistake(
        {"vault_fork": vault("vault_fork", fork="return state.tries"), "forks": FORKS},
        ("rollout_step=vault_fork", "branch_policy=forks", "rollout.max_masked_share=1"), exit_code=0,
    ),
    "`begin` returns": of_step("vault_begin", vault("vault_begin", begin='return "The vault is locked. "')),
}  # fmt: skip
ELSEWHERE = {  # rows whose messages other tests hold to the code, or that print nothing
    "`fork` returns the state itself": "core/tests/testing/test_check_tool.py",
    "The plugin of the run was uninstalled": "core/tests/config/test_compose_mistakes.py",
    "Its code changed": "core/tests/runs/test_resume.py",
}


def rows() -> list[tuple[str, str]]:
    """Mistake and printed line of every row, as text."""
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0] not in ("mistake", "---"):
            printed = re.match(r"``\s?(.*?)\s?``(?!`)|`([^`]*)`", cells[1])
            found.append((cells[0], "" if printed is None else (printed[1] or printed[2])))
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "tasks.jsonl").write_text(
        "".join(f'{{"prompt": "task {i}", "answer": "x"}}\n' for i in range(6)), encoding="ascii"
    )
    return make_tiny_model(folder / "model", hidden=32, layers=1, heads=2, intermediate=64, max_positions=256)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    load_plugins.cache_clear()
    yield tmp_path
    load_plugins.cache_clear()
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def arguments(mistake: Mistake, model: Path, root: Path) -> list[str]:
    if not mistake.keys:
        return ["plugins"]
    given = {key.partition("=")[0] for key in mistake.keys}
    defaults = [
        f"model.path={model}", f"data.train=[{model.parent / 'tasks.jsonl'}]", "data.max_prompt_tokens=32",
        f"run.root={root}", "run.name=run", "run.deterministic=true", "run.seed=11", "rollout_step=tags",
        "rollout_step.system_prompt=never", "rewards=[format]", "rollout.group_size=4", "engine.params.slots=8",
        "rollout.max_response_tokens=48", "train.steps=1", "train.tasks_per_step=2", "trackers=[jsonl]",
    ]  # fmt: skip
    return ["train", *(key for key in defaults if key.partition("=")[0] not in given), *mistake.keys]


def comparable(line: str) -> str:
    """Entropies differ in their last digit from one CPU to the next; columns of tables are as wide as they must be; a
    busy machine looks at the event loop a little later; packages have new versions.
    """
    line = re.sub(r"\((ramet-\w+) [\d.]+\)", r"(\1 #)", line)
    line = re.sub(r"blocked for 1\.\d s", "blocked for # s", line)
    return re.sub(r" {2,}", "  ", re.sub(r"\d+\.\d{2,3}(?=[,)])", "#", line)).strip()


def test_every_row_of_the_page_has_its_mistake_here() -> None:
    cases = [*CASES, *ELSEWHERE]
    assert [[case for case in cases if mistake.startswith(case)] for mistake, _ in rows()] == [[c] for c in cases]
    assert not re.search(r"\(module \w+ \)", PAGE)


@pytest.mark.parametrize("case", CASES)
def test_the_line_is_what_is_printed(
    case: str, model: Path, modules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    mistake = CASES[case]
    for name, code in mistake.code.items():
        if code:
            (modules / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("RAMET_PLUGINS", ",".join(mistake.code))
    monkeypatch.setenv("RAMET_BLOCK_PLUGINS", mistake.block)
    code = main(arguments(mistake, model, modules / "runs"))
    printed = capsys.readouterr()
    lines = [*printed.out.splitlines(), *printed.err.splitlines(), *caplog.text.splitlines(), *caplog.messages]
    [expected] = [line for found, line in rows() if found.startswith(case)]
    assert comparable(expected) in [comparable(line) for line in lines], "\n".join(lines)
    assert code == mistake.exit_code
    if code:
        assert not any(line.startswith("resume with") for line in lines)
