"""How large core is, and how long three paths through it are: a turn with a tool call, an update, the start of a job.

    make quickstart
    python bench/structure/run.py [--root runs]

Files, lines, functions and keys are counted from the source; a private function has one caller if its name occurs once
besides its definition, in all of core. The paths are those of one real training step of the quickstart (engine torch,
one process), with `sys.setprofile`: distinct functions of `ramet` and their files, and how many of the functions have a
name (Python 3.11 calls list comprehensions, too). An update is what its own thread calls: another one writes the step's
record meanwhile. A turn is from one request to the
engine to the next one of the same rollout, less `engines/` and `models/`; frames above the tool are counted from the
rollout's task, frames above the loss from the training loop, across threads and tasks.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import dataclasses
import re
import sys
import tempfile
import threading
import typing
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import print_table

import ramet
from ramet.api import train
from ramet.config.schema import Config
from ramet.engines.torch import engine as torch_engine
from ramet_tools_bing import tool as search_tool

CORE = Path(ramet.__file__).parent
NOT_OF_A_TURN = ("engines/", "models/")


@dataclasses.dataclass
class Walk:
    """Functions that were called while `open`, and the frames above the point of interest."""

    functions: set[CodeType] = dataclasses.field(default_factory=set)
    frames: list[str] = dataclasses.field(default_factory=list)
    open: bool = False
    thread: int | None = None  # whose calls count; None: of all threads

    def row(self, name: str) -> list[str]:
        files = {code.co_filename for code in self.functions}
        named = sum(not code.co_name.startswith("<") for code in self.functions)
        return [name, str(len(self.frames) or "-"), str(len(self.functions)), str(named), str(len(files))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs"), help="of the quickstart's inputs (default: runs)")
    parser.add_argument("--frames", action="store_true", help="print the frames, too")
    options = parser.parse_args()
    print_table(("core", ""), [[name, str(value)] for name, value in sizes().items()])
    walks = paths(options.root / "quickstart_search-inputs")
    print()
    print_table(
        ("path", "frames above", "functions", "named", "files"), [walk.row(name) for name, walk in walks.items()]
    )
    for name, walk in walks.items() if options.frames else ():
        print(f"\n{name}:", *walk.frames, sep="\n  ")


def sizes() -> dict[str, int | float]:
    files = sorted(path for path in CORE.rglob("*.py") if "templates" not in path.parts)
    texts = [path.read_text(encoding="utf-8") for path in files]
    trees = [ast.parse(text) for text in texts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = sum(text.count("\n") for text in texts)
    words = re.findall(r"\w+", "\n".join(texts))
    uses = {name: words.count(name) for name in {f.name for f in functions if f.name.startswith("_")}}
    private = [f for f in functions if re.match(r"_[a-z]", f.name) and uses[f.name] == 2]
    return {
        "files": len(files),
        "lines": lines,
        "lines a file": round(lines / len(files)),
        "functions": len(functions),
        "private functions with one caller (names that occur in one other place)": len(private),
        "of these at most 6 lines": sum((f.end_lineno or 0) - f.lineno < 6 for f in private),
        "try per 1,000 lines": round(1000 * sum(isinstance(node, ast.Try) for node in nodes) / lines, 1),
        "keys": leaves(Config),
    }


def leaves(section: type) -> int:
    hints = typing.get_type_hints(section)
    nested = [hints[field.name] for field in dataclasses.fields(section)]
    return sum(leaves(one) if isinstance(one, type) and dataclasses.is_dataclass(one) else 1 for one in nested)


def paths(inputs: Path) -> dict[str, Walk]:
    """Train one step of two tasks and look on."""
    if not inputs.is_dir():
        sys.exit(f"{inputs}: not found; run `make quickstart` first, or name its folder with --root")
    walks = {"turn with a tool call": Walk(), "policy update": Walk(), "config to the first step": Walk(open=True)}
    with tempfile.TemporaryDirectory() as folder, watched(walks):
        train(
            [
                "experiment=quickstart_search", f"run.root={folder}", "run.name=walk", "train.steps=1",
                "train.tasks_per_step=2", "train.minibatches=1", f"model.path={inputs}/sft/model",
                "train.old_logprobs=trainer", f"data.train=[{inputs}/data/rl.jsonl]",
                f"tools.search.params.corpus={inputs}/data/corpus.sqlite",
            ]
        )  # fmt: skip
    return walks


class Watch:
    """Wrappers of the functions at which a path begins, ends, or has its frames noted."""

    def __init__(self, walks: dict[str, Walk]) -> None:
        self.walks = walks
        self.turn, self.update, self.start = walks.values()
        self.above: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()  # of a task's creator
        self.handed = threading.local()  # `stack`: of the thread that gave this one its work

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(CORE)):
            return
        for walk in self.walks.values():
            if walk.thread not in (None, threading.get_ident()):
                continue
            if walk.open and not (walk is self.turn and any(f"/{part}" in code.co_filename for part in NOT_OF_A_TURN)):
                walk.functions.add(code)

    def stack(self) -> list[str]:
        """Frames of ramet, outermost first; of a task also those that created it, up to the rollout's own task."""
        frame: FrameType | None = sys._getframe(2)
        names: list[str] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(str(CORE)):
                names.append(f"{Path(code.co_filename).relative_to(CORE)}:{code.co_qualname}")
            frame = frame.f_back
        names.reverse()
        names = names[max((i + 1 for i, name in enumerate(names) if name.endswith("run_async")), default=0) :]
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task()
            if task is not None and not task.get_name().startswith("rollout "):
                names = [*self.above.get(task, []), *names]
        return names

    def generate(self, original: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            self.start.open = self.turn.open = False
            result = await original(*args, **options)
            self.turn.open = not self.turn.frames
            return result

        return call

    def tool(self, original: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            self.turn.frames = self.turn.frames or self.stack()
            return await original(*args, **options)

        return call

    def create_task(self, original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            task = original(*args, **options)
            self.above[task] = self.stack()
            return task

        return call

    def submit(self, original: Any) -> Any:
        def call(pool: Any, work: Any, /, *args: Any, **options: Any) -> Any:
            above_work = self.stack()

            def run() -> Any:
                self.handed.stack = above_work
                return work(*args, **options)

            return original(pool, run)

        return call

    def loss(self, original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            here = self.stack()
            if not self.update.frames and any("update" in frame for frame in here):
                both = [*self.handed.stack, *here]
                loop = next(i for i, frame in enumerate(both) if frame.startswith("train/loop.py"))
                self.update.frames = both[loop:]
            return original(*args, **options)

        return call

    def updating(self, original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.update.open, self.update.thread = True, threading.get_ident()
            try:
                return original(*args, **options)
            finally:
                self.update.open = False

        return call


@contextlib.contextmanager
def watched(walks: dict[str, Walk]) -> Iterator[None]:
    """Profile this thread and those that begin meanwhile; note the stacks at the tool and at the loss."""
    from ramet.algorithms.losses import ppo_clip
    from ramet.policy import rank

    watch = Watch(walks)
    wrapped: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (torch_engine.TorchEngine, "generate", watch.generate),
        (search_tool.SearchTool, "__call__", watch.tool),
        (asyncio.BaseEventLoop, "create_task", watch.create_task),
        (ThreadPoolExecutor, "submit", watch.submit),
        (ppo_clip.PpoClip, "__call__", watch.loss),
        (rank.PolicyRank, "update", watch.updating),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, wrap in wrapped:
            stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))
        for module in (sys, threading):
            module.setprofile(watch.profile)
            stack.callback(module.setprofile, None)
        yield


if __name__ == "__main__":
    main()
