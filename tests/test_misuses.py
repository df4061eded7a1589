"""Mistakes that people made with plugins (an audit's 134): each is told with the plugin, the thing and the remedy.

Made here as a module that is loaded and checked as `check_plugin` does it, in this process. What loading or building
refuses, a run refuses with the same words; the rest a run tells by the same checks of what a component returns
(`ramet.plugins.output_checks`), or never, and then the kit is the only place. `NOT_TOLD` names what is told nowhere or only
partly. Trackers, commands and MCP servers have tests of their own.
"""

# ruff: noqa: E501 (a table)
from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramet.testing.expect as expectations
import ramet.testing.plugin as kit
from ramet import ConfigError, Group, PluginError, Task, user_prompt
from ramet.config.schema import BenchmarkConfig
from ramet.evaluate.evaluation import load_benchmark
from ramet.plugins import Plugins, load_from
from ramet.plugins.sources import core_source, module_source
from ramet.policy.batching.rows import Row, TokenVersions
from ramet.rollout.scoring import Scorer, WeightedReward
from ramet.testing import check_plugin, written_rollout
from ramet.testing.batches import root_row
from ramet.train.groups import lag_metrics

NOT_TOLD = {
    "a tool that prints": "harmless: standard output of a run is a log",
    "a text with lone surrogates": "harmless: it is cleaned before it is encoded",
    "a tool that leaves a thread that is no daemon": "partly: the ended command waits for it",
    "a loss that normalises by its micro-batch": "by the kit alone; a run cannot see it",
}


@dataclass(frozen=True)
class Misuse:
    """`words` are in the message, `line`: so is the plugin's line. `given`: arguments of `check_plugin`."""

    code: str
    words: str
    line: bool = True
    given: dict[str, Any] = field(default_factory=dict)
    stall_s: float = 0.5  # an event loop that stands for so long is blocked


HEAD = "import asyncio, dataclasses, random, sys, time\nfrom ramet import *\nramet_contract = '1'\n"
HANG = {"limit_s": 0.3}


def offers(kind: str, factory: str) -> str:
    return f"@hookimpl\ndef register_{kind}(register):\n    register('x', {factory})\n"


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


SCHEMA = (
    "ToolSchema(name='x', description='d', "
    "parameters={'type': 'object', 'properties': {'a': {'type': 'string'}}, 'required': ['a']}{more})"
)


def tool(body: str, words: str, *, members: str = "", schema: str = "", more: str = "", **row: Any) -> Misuse:
    made = schema or SCHEMA.replace("{more}", more)
    code = (
        f"{HEAD}class X:\n    schema = {made}\n{indented(members, 4)}    async def __call__(self, call):\n"
        "        a = call.arguments.get('a')\n        if not isinstance(a, str):\n            raise ToolError('a: a text')\n"
    )
    return Misuse(code + indented(body, 8) + offers("tools", "X"), words, **row)


OK = "return ToolResult(text=a)"
NOTES = "call.state['n'].append(a)\nreturn ToolResult(text=str(call.state['n']))"


def state(open: str = "return {'n': []}", fork: str = "return {'n': list(state['n'])}", forks: str = "copy") -> str:
    return (
        f"forks = {forks!r}\nasync def open(self, task, seed):\n{indented(open, 4)}"
        f"async def fork(self, state):\n{indented(fork, 4)}async def close(self, state):\n    pass"
    )


TOOLS = {
    "a plain __call__": Misuse(
        f"{HEAD}class X:\n    schema = {SCHEMA.replace('{more}', '')}\n    def __call__(self, call):\n        pass\n"
        + offers("tools", "X"), "has a plain `__call__`; expected `async def __call__(call)`", line=False),
    "another signature": Misuse(
        f"{HEAD}class X:\n    schema = {SCHEMA.replace('{more}', '')}\n    async def __call__(self, a, b):\n        pass\n"
        + offers("tools", "X"), "has `__call__(a, b)`; expected `async def __call__(call)`", line=False),
    "a plain function": Misuse(f"{HEAD}def f(a: str):\n    return a\n{offers('tools', 'lambda: f')}",
                               "a function becomes a tool with function_tool(function)", line=False),
    "the object and no factory": Misuse(f"{HEAD}def f(a: str):\n    return a\n{offers('tools', 'function_tool(f)')}",
                                        "register a factory that makes the object: register('x', lambda: …)"),
    "a function without annotations": Misuse(f"{HEAD}def f(a):\n    return a\n{offers('tools', 'lambda: function_tool(f)')}",
                                             "could not build tool 'x': TypeError"),
    "a function that exits": Misuse(
        f"{HEAD}def x(a: str):\n    'Exits.'\n    sys.exit(3)\n{offers('tools', 'lambda: function_tool(x)')}",
        "SystemExit: 3"),
    "None": tool("return None", "returned None: return a ToolResult with a text"),
    "a string": tool("return a", "returned '1': return a ToolResult with a text"),
    "a text that is no text": tool("return ToolResult(text=5)", "whose text is 5: return a ToolResult with a text"),
    "a KeyError": tool("return {}['x']", "crashed with KeyError: 'x' ("),
    "sys.exit": tool("sys.exit(3)", "crashed with SystemExit: 3 ("),
    "no check of arguments": Misuse(
        tool("", "").code.replace("raise ToolError('a: a text')", "return ToolResult(text='')") .replace(
            "@hookimpl", "    pass\n@hookimpl"), "check the arguments and raise ToolError"),
    "time.sleep": tool(f"time.sleep(0.2)\n{OK}", "and every rollout with it: await run_blocking(", stall_s=0.1),
    "an endless loop": tool("while True: pass", "hangs in __call__ (", given=HANG),
    "a wait for ever": tool("await asyncio.Event().wait()", "hangs in __call__ (", given=HANG),
    "an open that hangs": tool(OK, "hangs in open (", members=state(open="await asyncio.sleep(99)"), given=HANG),
    "20 MB": tool("return 20_000_000 * 'x'", "return a ToolResult with a text"),
    "metadata that is no JSON": tool("return ToolResult(text=a, metadata={'s': {1}})", "which is not JSON"),
    "metadata with NaN": tool("return ToolResult(text=a, metadata={'s': float('nan')})", "which is not JSON"),
    "changed arguments": tool(f"call.arguments['b'] = 1\n{OK}", "changed the arguments"),
    "a schema that is a dict": tool(OK, "its attribute 'schema' is {}, not a ToolSchema", schema="{}", line=False),
    "a type that does not exist": tool(
        OK, "has the type 'strin'; allowed: string, integer", schema=SCHEMA.replace("string", "strin").replace("{more}", ""),
        line=False),
    "a required argument that is not described": tool(
        OK, "requires a, which properties do not describe",
        schema=SCHEMA.replace("{'a': {'type': 'string'}}", "{}").replace("{more}", ""), line=False),
    "another name": tool(OK, "schema.name is 'y' but it is registered as 'x': use one",
                         schema=SCHEMA.replace("name='x'", "name='y'").replace("{more}", "")),
    "no description": tool(OK, "say what the tool does", schema=SCHEMA.replace("'d'", "''").replace("{more}", "")),
    "deterministic and not": tool("return ToolResult(text=str(random.random()))", "schema.deterministic is True, but",
                                  more=", deterministic=True"),
    "deterministic and changing": tool(OK, "so a tool that changes something cannot be deterministic",
                                       more=", deterministic=True, idempotent=False"),
    "state on the tool": tool("self.a = a\nawait asyncio.sleep(0)\nreturn ToolResult(text=self.a)", "or set schema.concurrent"),
    "a fork that is the state": tool(NOTES, "fork returned the state itself", members=state(fork="return state")),
    "a fork that shares a list": tool(NOTES, "fork shares what the state holds", members=state(fork="return dict(state)")),
    "a fork that shares, behind calls that fail": tool(
        "raise ToolError('add or list')", "no call was exercised", members=state(fork="return dict(state)")),
    "a fork that nothing shows": tool(OK, "no fork was exercised", members=state(fork="return dict(state)")),
    "open that returns None": tool(NOTES, "open returned None: return a state", members=state(open="return None")),
    "a replay that goes another way": tool(
        NOTES, "draw only from the seed", members=state(open="return {'n': [random.random()]}", forks="replay")),
    "fork is missing": tool(NOTES, "lacks `async def fork(state)`", members=state().replace("def fork", "def fokr"), line=False),
}  # fmt: skip


def reward(body: str, words: str, *, head: str = "async def x(group):", **row: Any) -> Misuse:
    return Misuse(f"{HEAD}{head}\n{indented(body, 4)}{offers('rewards', 'lambda: x')}", words, **row)


REWARDS = {
    "plain": reward("return []", "has a plain `__call__`; expected `async def __call__(group)`", head="def x(group):", line=False),
    "a plain function of one rollout": reward("return 1.0", "becomes a reward with per_rollout(function)", head="def x(rollout):", line=False),
    "a function and no factory": Misuse(f"{HEAD}async def x(group):\n    return []\n{offers('rewards', 'x')}",
                                        "register a factory that makes the object"),
    "an async generator": reward("for one in group: yield 1.0", "with `yield`, which makes it an async generator", line=False),
    "NaN": reward("return [float('nan') for _ in group]", "give a finite number, or None for not judged"),
    "1e39": reward("return [1e39 for _ in group]", "with 1e+39: give a number that fits float32, up to 3.4e38"),
    "text": reward("return ['1' for _ in group]", "with '1': give a float, a Score, or None"),
    "a mapping": reward("return {r.id: 1.0 for r in group}", "returned dict: return a list with one score per rollout"),
    "one number": reward("return 1.0", "returned float: return a list with one score per rollout"),
    "None": reward("return None", "returned NoneType: return a list with one score per rollout"),
    "too few": reward("return [1.0]", "returned 1 scores for 6 rollouts: return one per rollout"),
    "another order": reward("return sorted(len(r.response) for r in group)", "return them in the order of the rollouts"),
    "a changed group": reward("group.sort(key=lambda r: r.response)\nreturn [1.0] * len(group)", "changed the group"),
    "a frozen rollout": reward("group[0].answer = '5'\nreturn [1.0] * len(group)", "crashed with FrozenInstanceError"),
    "sys.exit": reward("sys.exit(1)", "crashed with SystemExit: 1 ("),
    "Score by position": reward("return [Score(1.0) for _ in group]", "crashed with TypeError: Score.__init__() takes 1"),
    "a misspelt attribute": reward("return [len(r.final_answer) for r in group]", "has no attribute 'final_answer'"),
    "a sleep": reward("time.sleep(0.2)\nreturn [1.0] * len(group)", "await run_blocking(function, …)", stall_s=0.1),
    "memory": reward("x.n = getattr(x, 'n', 0) + 1\nreturn [float(x.n)] * len(group)", "keep nothing between calls"),
    "a wait for ever": reward("await asyncio.Event().wait()", "hangs in x (", given=HANG),
}  # fmt: skip


def algorithm(kind: str, body: str, words: str, needs: str = "frozenset()", **row: Any) -> Misuse:
    return Misuse(f"{HEAD}import torch\nclass X:\n    needs = {needs}\n    def __call__(self, batch):\n{indented(body, 8)}"
                  + offers(kind, "X"), words, **row)  # fmt: skip


def advantage(body: str, words: str, needs: str = "frozenset()", **row: Any) -> Misuse:
    return algorithm("advantages", f"a = batch.rewards[:, None] * batch.mask\n{body}", words, needs, **row)


def loss(body: str, words: str, needs: str = "frozenset()", **row: Any) -> Misuse:
    return algorithm("policy_losses", f"t = -batch.logprobs * batch.advantages\n{body}", words, needs, **row)


ADVANTAGES = {
    "a gradient": advantage("return AdvantageOutput(advantages=a.requires_grad_())", "carries a gradient: detach it"),
    "one number per rollout": advantage("return AdvantageOutput(advantages=batch.rewards)", "has shape [11]: return [N, T]"),
    "float64": advantage("return AdvantageOutput(advantages=a.double())", "torch.float64: return float32"),
    "NaN": advantage("return AdvantageOutput(advantages=a / 0)", "is not finite: guard divisions"),
    "in place": advantage("batch.rewards.sub_(1)\nreturn AdvantageOutput(advantages=a)", "changed the input rewards in place"),
    "not masked": advantage("return AdvantageOutput(advantages=a + 1)", "not zero outside the mask"),
    "a need that is not declared": advantage("return AdvantageOutput(advantages=a - batch.ref_logprobs)",
                                             "absent from the batch, because `needs` does not name them"),
    "groups of six": advantage("return AdvantageOutput(advantages=batch.rewards.view(-1, 6))", "shape '[-1, 6]' is invalid"),
    "a metric whose name is a number": advantage("return AdvantageOutput(advantages=a, metrics={5: 1.0})",
                                                 "names a metric 5: give a string"),
    "a list": advantage("return AdvantageOutput(advantages=[1.0])", "advantages is list: return a tensor [N, T]"),
    "a bare tensor": advantage("return a", "returned Tensor: return an AdvantageOutput"),
    "the order of rows": advantage("return AdvantageOutput(advantages=a + torch.arange(11.)[:, None] * batch.mask)",
                                   "never a row's position"),
    "a string that leads nowhere": Misuse(HEAD + offers("advantages", "'not_there:X'"), "No module named 'not_there'", line=False),
}  # fmt: skip
LOSSES = {
    "no gradient": loss("return LossOutput(per_token=t.detach())", "carries no gradient: compute it from batch.logprobs"),
    "a mean": loss("return LossOutput(per_token=t.mean())", "return one value per token"),
    "NaN": loss("return LossOutput(per_token=t / 0)", "the loss is not finite: clamp before exp and log"),
    "a metric with a gradient": loss("return LossOutput(per_token=t, metrics={'m': t})", "is attached to the graph: detach it"),
    "a metric that the run logs itself": loss("return LossOutput(per_token=t, metrics={'loss': t.detach()})",
                                              "metric 'loss': the run logs train/loss itself"),
    "a metric that is a number": loss("return LossOutput(per_token=t, metrics={'m': 1.0})", "metric 'm' is float: give a tensor"),
    "other sequences": loss("return LossOutput(per_token=t - t.mean())", "depends on the other sequences of its micro-batch"),
    "a need that is not declared": loss("return LossOutput(per_token=t - batch.entropies)",
                                        "absent from the batch, because `needs` does not name them"),
    "in place": loss("batch.advantages.mul_(2)\nreturn LossOutput(per_token=t)", "changed the input advantages in place"),
    "a bare tensor": loss("return t", "returned Tensor: return a LossOutput"),
    "an aggregation that does not exist": Misuse(
        loss("return LossOutput(per_token=t)", "").code.replace("needs =", "aggregation = {'sum'}\n    needs ="), "aggregation is {'sum'}"),
}  # fmt: skip


def policy(body: str, words: str, *, head: str = "def decide(self, event, group, rng):", **row: Any) -> Misuse:
    start = "if isinstance(event, Start): return [StartRoots(n=min(2, group.budget_left))]\n"
    code = f"{HEAD}class X:\n    {head}\n{indented(start + body if body else '', 8)}"
    return Misuse(code + offers("branch_policies", "X"), words, **row)


POLICIES = {
    "async": policy("return []", "has an async `decide`; expected", head="async def decide(self, event, group, rng):", line=False),
    "the global random": policy("return [StartRoots(n=1)] if random.random() < 0.5 and group.budget_left else []",
                                "draw only from the rng that decide is given"),
    "memory": policy("self.n = getattr(self, 'n', 0) + 1\nreturn [StartRoots(n=1)] if self.n % 2 and group.budget_left else []",
                     "keep nothing between calls"),
    "too many": policy("return [StartRoots(n=1000)]", "it asks for 1000 rollouts, budget left is"),
    "a turn that is not there": policy("return [Fork(rollout='0', turn=99)] if group.budget_left else []",
                                       "for turn 0 use StartRoots"),
    "texts": policy("return ['fork']", "'fork' is not a branch action: return a list of StartRoots, Fork"),
    "None": policy("return None", "None is not a branch action: return a list"),
    "Stop for all": policy("return [Stop(rollout=r.id) for r in group.rollouts]", "has ended"),
    "an endless loop": policy("while True: pass", "hangs in decide (", given=HANG),
    "an earlier turn that is not declared": policy(
        "return [Fork(rollout=event.rollout, turn=1)] if isinstance(event, AfterTool) and event.turn > 1 and "
        "group.budget_left else []", "a policy that forks such rollouts there declares Need.EARLIER_TURNS"),
    "one root whatever the budget": Misuse(
        policy("return []", "").code.replace("min(2, group.budget_left)", "1"), "StartRoots(n=min(n, group.budget_left))"),
}  # fmt: skip


def step(body: str, words: str, *, members: str = "", **row: Any) -> Misuse:
    code = (
        f"{HEAD}class X:\n    before = ''\n    def system_prompt(self, tools):\n        return ''\n{indented(members, 4)}"
        f"    async def __call__(self, state, ctx):\n{indented(body, 8)}"
    )
    return Misuse(code + offers("rollout_steps", "X"), words, **row)


SAID = "said = (await ctx.generate()).text\n"
ENDS = "return StepResult(stop=StopReason.END)"
ADDS = f"{SAID}state.environment['n'].append(said)\nreturn StepResult(insert=(Untrusted(text=str(state.environment)),))"
READER = "def result(self, text):\n    return [Untrusted(text=text)]\ndef read(self, text, tools):\n    return "
SQL = (
    "async def open(self, task, seed):\n    import sqlite3\n    made = sqlite3.connect(':memory:', isolation_level=None)\n"
    "    made.execute('CREATE TABLE t (n)')\n    return {'db': made}\nforks = 'copy'\n"
    "async def fork(self, state):\n    return dict(state)\nasync def close(self, state):\n    pass"
)
INSERTS = f"{SAID}db = state.environment['db']\ndb.execute('INSERT INTO t VALUES (?)', (said,))\n" + (
    "return StepResult(insert=(Untrusted(text=str(db.execute('SELECT n FROM t').fetchall())),))"
)
STEPS = {
    "the tuple of gym": step(f"{SAID}return 'observation', 1.0, False, {{}}", "returned tuple: return a StepResult"),
    "reset and step": Misuse(
        f"{HEAD}class X:\n    def reset(self):\n        pass\n    def step(self, action):\n        pass\n{offers('rollout_steps', 'X')}",
        "lacks `def system_prompt(tools)`; lacks `async def __call__(state, ctx)`", line=False),
    "nothing": step(f"{SAID}return None", "returned NoneType: return a StepResult"),
    "a reward of NaN": step(f"{SAID}return StepResult(stop=StopReason.END, reward=float('nan'))", "give a finite number"),
    "a reward of 1e39": step(f"{SAID}return StepResult(stop=StopReason.END, reward=1e39)", "give a finite number"),
    "no end": step(f"{SAID}return StepResult(insert=(Markup(text='.'),))", "has not ended after 7 turns"),
    "no generate": step("return StepResult()", "neither calls ctx.generate nor stops"),
    "an end without generate": step(ENDS, "never calls ctx.generate: no token is sampled"),
    "two generates": step(f"{SAID}{SAID}{ENDS}", "generate is called twice in a turn: at most once"),
    "a stop that is a text": step(f"said = await ctx.generate(stop='</a>')\n{ENDS}", "give a list of texts, stop=['</a>']"),
    "a plain insert": step(f"{SAID}return StepResult(insert=('a',))", "use Markup and Untrusted"),
    "a stop as text": step(f"{SAID}return StepResult(stop='end')", "stop is 'end': use a StopReason"),
    "a changed state": step(f"{SAID}state.task.metadata['n'] = 1\n{ENDS}", "changed its state"),
    "a crash": step(f"{SAID}return [][0]", "crashed with IndexError"),
    "a fork that shares a list": step(ADDS, "fork shares what the state holds", members=state(fork="return dict(state)")),
    "a fork that shares its database": step(INSERTS, "fork shares what the state holds", members=SQL),
    "a fork that no reply shows": step(f"{SAID}{ENDS}", "no fork was exercised", members=state(fork="return dict(state)")),
    "a counter on the step": step(f"{SAID}self.n = getattr(self, 'n', 0) + 1\nreturn StepResult(stop=StopReason.END, "
                                  "answer=str(self.n))", "the step keeps something between rollouts"),
    "the last rollout's text": step(f"{SAID}was, self.before = self.before, said\nreturn StepResult(stop=StopReason.END, "
                                    "answer=was + said)", "the step keeps something between rollouts"),
    "time.sleep": step(f"{SAID}time.sleep(0.2)\n{ENDS}", "and every rollout with it", stall_s=0.1),
    "an open that hangs": step(ADDS, "hangs in open (", members=state(open="time.sleep(99)"), given=HANG),
    "a reader that reads nothing": step(f"{SAID}{ENDS}", "do not join to the text", members=f"{READER}[]"),
    "a reader that trains everything": step(ADDS, "what is inserted must not be trained",
                                            members=f"{state()}\n{READER}[Sampled(text=text)]"),
    "a key that is a number": step(ADDS, "return a string, equal for equal states",
                                   members=f"{state()}\ndef state_key(self, state):\n    return 0"),
    "forks and no open": step(ADDS, "lacks `async def open(task, seed)`", members="forks = 'copy'", line=False),
}  # fmt: skip
INFO = "BenchmarkInfo(description='d', splits=('test',), metrics=('acc',), source='s', licence='MIT')"
TASK = "Task(id=str(i), prompt=user_prompt('?'), answer=('5',))"


def benchmark(words: str, *, task: str = TASK, score: str = "return {'acc': float(rollout.answer == '5')}", info: str = INFO,
              body: str = "", **row: Any) -> Misuse:  # fmt: skip
    load = body or f"if split != 'test': raise ConfigError('test')\nreturn [{task} for i in range(3)][:limit]"
    code = (
        f"{HEAD}class X:\n    info = {info}\n    def load(self, split, limit):\n{indented(load, 8)}"
        f"    async def score(self, rollout):\n{indented(score, 8)}"
    )
    return Misuse(code + offers("benchmarks", "X"), words, **row)


BENCHMARKS = {
    "double ids": benchmark("ids are not unique", task=TASK.replace("str(i)", "'a'")),
    "a score of 5": benchmark("'acc' is 5.0: a metric is a number in [0, 1]", score="return {'acc': 5.0}"),
    "another metric": benchmark("score gave ['f1'], info.metrics names ['acc']", score="return {'f1': 1.0}"),
    "a prompt that is a text": benchmark("give a tuple of Message, as user_prompt(text) does", task=TASK.replace("user_prompt('?')", "'?'")),
    "an answer that is a text": benchmark("answer is the text '5': give a tuple", task=TASK.replace("('5',)", "'5'")),
    "dicts": benchmark("load gave dict, not Task", task="{'id': str(i)}"),
    "a generator that raises": benchmark("raise a ConfigError that says which data is missing",
                                         body="if split != 'test': raise ConfigError('test')\nyield from {}['x']"),
    "any split": benchmark("an unknown split is loaded without a word", body=f"return [{TASK} for i in range(3)][:limit]"),
    "a plain score": Misuse(benchmark("").code.replace("async def score", "def score"), "has a plain `score`", line=False),
    "a crash in score": benchmark("score crashed with KeyError: 'x' (", score="return {}['x']"),
    "no gold answer": benchmark("has no gold answer", task=TASK.replace("('5',)", "()")),
    "a licence that is missing": benchmark("info.licence is empty", info=INFO.replace("'MIT'", "''")),
}  # fmt: skip
GOOD = offers("rewards", "lambda: per_rollout(lambda rollout: 1.0)")
CONFIGURED = GOOD.replace("lambda: per", "lambda c: per").replace("1.0))", "1.0), config=C)")
PACKAGES = {
    "a hook with a wrong name": Misuse(HEAD + GOOD.replace("rewards", "reward"), "Did you mean 'register_rewards'?", line=False),
    "no hookimpl": Misuse(HEAD + GOOD.replace("@hookimpl\n", ""), "register_rewards is not decorated with @hookimpl", line=False),
    "no contract": Misuse(HEAD.replace("ramet_contract", "contract") + GOOD, "does not state ramet_contract = '1'", line=False),
    "a contract that is a number": Misuse(HEAD.replace("'1'", "1") + GOOD, 'write it as text: ramet_contract = "1"', line=False),
    "another contract": Misuse(HEAD.replace("'1'", "'9'") + GOOD, "built for contract version 9, this ramet supports 1", line=False),
    "a mistake of syntax": Misuse("def x(:\n", "SyntaxError"),
    "an import that fails": Misuse("import not_there\n", "No module named 'not_there'"),
    "sys.exit": Misuse("import sys\nsys.exit('bye')\n", "SystemExit: bye"),
    "an async hook": Misuse(HEAD + GOOD.replace("def reg", "async def reg"), "write `def register_rewards(register)`", line=False),
    "another parameter": Misuse(HEAD + GOOD.replace("(register)", "(reg)"), "call its parameter `register`", line=False),
    "no hook": Misuse(HEAD, "it registers nothing: write a hook", line=False),
    "a hook that raises": Misuse(HEAD + GOOD.replace("register('x'", "{}['lost']; register('x'"), "KeyError: 'lost'"),
    "a name with a capital": Misuse(HEAD + GOOD.replace("'x'", "'X'"), "lower-case letters, digits and underscores"),
    "a factory that is None": Misuse(HEAD + offers("rewards", "None"), "the factory must be callable, got None"),
    "a string that is no path": Misuse(HEAD + offers("rewards", "'a.b'"), "must be 'package.module:attribute'"),
    "the same name twice": Misuse(f"{HEAD}{GOOD}    register('x', dict)\n", "registered twice: plugin", line=False),
    "a name of the core": Misuse(HEAD + GOOD.replace("'x'", "'environment'"), "Ramet itself cannot be blocked: rename it", line=False),
    "options that are a dict": Misuse(HEAD + "C = {'a': 1}\n" + CONFIGURED, "config must be a dataclass"),
    "options that are no dataclass": Misuse(f"{HEAD}class C:\n    a = 1\n{CONFIGURED}", "config must be a dataclass"),
    "options that cannot be typed": Misuse(
        f"{HEAD}from collections.abc import Callable\n@dataclasses.dataclass\nclass C:\n    a: Callable[[], int] = int\n{CONFIGURED}",
        "its options C cannot be typed", line=False),
    "options that are required": Misuse(f"{HEAD}@dataclasses.dataclass\nclass C:\n    key: str\n{CONFIGURED}",
                                        "give it others in options={'rewards.x': {…}}", line=False),
    "a class with options and no config": Misuse(
        f"{HEAD}class R:\n    def __init__(self, config):\n        pass\n{offers('rewards', 'R')}",
        "options come from config=, a dataclass: register(NAME, CLASS, config=OPTIONS)"),
    "options for a factory without": Misuse(f"{HEAD}@dataclasses.dataclass\nclass C:\n    a: int = 1\n"
                                            + CONFIGURED.replace("lambda c", "lambda"), "is called with its options"),
    "a factory that raises": Misuse(f"{HEAD}def made():\n    return {{}}['lost']\n{offers('rewards', 'made')}", "KeyError: 'lost'"),
    "a factory that is async": Misuse(f"{HEAD}async def made():\n    pass\n{offers('rewards', 'made')}", "or with an async factory"),
    "a factory that hangs": Misuse(f"{HEAD}def made():\n    time.sleep(99)\n{offers('rewards', 'made')}", "hangs in made (", given=HANG),
}  # fmt: skip
OTHERS = {
    "needs that are missing": Misuse(algorithm("policy_losses", "return 1", "").code.replace("needs =", "need ="),
                                     "lacks the attribute 'needs'", line=False),
    "needs that are a list": loss("return 1", "set it to a frozenset of Need", needs="[Need.ENTROPY]"),
    "needs that are texts": advantage("return 1", "set it to a frozenset of Need", needs="frozenset({'entropy'})"),
    "needs that no policy is given": Misuse(
        policy("return []", "").code.replace("class X:\n", "class X:\n    needs = frozenset({Need.REFERENCE})\n"),
        "can be given to it"),
}  # fmt: skip
AREAS = {
    "tools": TOOLS, "rewards": REWARDS, "advantages": ADVANTAGES, "losses": LOSSES, "branch policies": POLICIES,
    "steps": STEPS, "benchmarks": BENCHMARKS, "packages": PACKAGES, "others": OTHERS,
}  # fmt: skip
ROWS = [(area, name) for area, rows in AREAS.items() for name in rows]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def loaded(folder: Path, code: str, name: str) -> Plugins:
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    return load_from([core_source(), module_source(name, name, f"module {name}")])


@pytest.mark.parametrize(("area", "name"), ROWS)
def test_a_misuse_is_told(area: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misuse, module = AREAS[area][name], f"misuse_{ROWS.index((area, name))}"
    monkeypatch.setattr(expectations, "STALL_S", misuse.stall_s)
    try:
        plugins = loaded(folder, misuse.code, module)
        monkeypatch.setattr(kit, "load_plugins", lambda: plugins)
        with pytest.raises(AssertionError, match=f"^plugin '{module}'") as caught:
            check_plugin(module, **misuse.given)
        told = str(caught.value)
    except PluginError as error:  # a name that is taken is fatal at once
        told = str(error)
    assert misuse.words in told
    assert module in told and len(told) < 2500
    assert not misuse.line or re.search(rf"\({module}\.py:\d+\)", told), told


def test_the_table_is_whole() -> None:
    assert len(ROWS) >= 134
    assert sum(told.startswith("partly") for told in NOT_TOLD.values()) <= 10


def built(folder: Path, misuse: Misuse, kind: str, name: str) -> Any:
    return getattr(loaded(folder, misuse.code, name).registries, kind).get("x").build()


@pytest.mark.parametrize("name", ["1e39", "NaN", "one number", "too few", "text"])
def test_a_run_tells_a_reward_the_same(name: str, folder: Path) -> None:
    made = built(folder, REWARDS[name], "rewards", f"run_{len(name)}")
    task = Task(id="t", prompt=user_prompt("?"))
    group = Group(task=task, rollouts=tuple(written_rollout(task, ["a"], id=str(i)) for i in range(6)))
    with pytest.raises(
        PluginError, match=rf"reward 'x' of plugin 'p', task 't': .*\(run_{len(name)}\.py:\d+\)"
    ) as caught:
        asyncio.run(Scorer([WeightedReward(name="x", plugin="p", reward=made)]).score(group))
    assert REWARDS[name].words.partition(":")[2] in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a prompt that is a text", "in load: prompt is '?': give a tuple of Message, as user_prompt(text) does"),
        ("an answer that is a text", "in load: answer is the text '5': give a tuple, as answer=('5',)"),
        ("dicts", "load gave {'id': '0'}, a dict: give Task("),
    ],
)
def test_a_run_tells_a_benchmark_the_same(name: str, words: str, folder: Path) -> None:
    module = f"bench_{len(name)}"
    made = built(folder, BENCHMARKS[name], "benchmarks", module)
    with pytest.raises(PluginError) as caught:
        load_benchmark("x", made, BenchmarkConfig(split="test"))
    assert words in str(caught.value) and f"({module}.py:" in str(caught.value)


def test_a_step_that_never_generates_ends_the_update_with_what_is_wrong() -> None:
    ids = np.array([1], np.int32)
    rows: list[Row] = [root_row(ids, ids, mask=np.zeros(1, np.bool_))]
    with pytest.raises(PluginError, match=r"in 1 rollouts.*the rollout step ends them without ctx\.generate"):
        lag_metrics(TokenVersions.of(rows), len(rows), version=1, allowed=0)


def test_a_module_that_is_installed_and_named_is_told_the_name_of_the_plugin(folder: Path) -> None:
    (folder / "ramet_weather.py").write_text(HEAD + GOOD, encoding="utf-8")
    installed = module_source("weather", "ramet_weather", "ramet-weather")
    plugins = load_from(
        [core_source(), installed, module_source("ramet_weather", "ramet_weather", "module ramet_weather")]
    )
    assert [info.broken for info in plugins.infos] == [None, None, (
        "PluginError: the module ramet_weather is installed as plugin 'weather' (ramet-weather): take it out of "
        "RAMET_PLUGINS, where it is not needed"
    )]  # fmt: skip
    with pytest.raises(ConfigError, match=r"failed to load: ramet_weather .*is installed as plugin 'weather'"):
        plugins.get("tools", "y")


def test_what_a_module_prints_is_no_output_of_the_command_and_a_slow_import_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramet.plugins.SLOW_S", 0.1)
    plugins = loaded(folder, f"{HEAD}print('hello')\ntime.sleep(0.2)\n{GOOD}", "prints")
    captured = capsys.readouterr()
    assert captured.out == "" and "hello" in captured.err
    [slow] = [info.slow for info in plugins.infos if info.name == "prints"]
    assert slow is not None and slow.endswith("or register the factory as a string 'package.module:attribute'")
