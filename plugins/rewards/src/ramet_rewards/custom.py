"""`custom`: your function, in a file, without a package. The parameters decide between two forms:

    compute_score(data: list[dict]) -> list[float]                              one call a group
    compute_score(data_source, solution_str, ground_truth, extra_info) -> float   one call a rollout, by keyword

A dict is `{"output", "answer", "data_source", "extra_info"}`. A score may also be a dict with `score`, whose other
numbers are logged as parts, or None: not judged. The function may be async. It runs in the main thread of a separate
process, so it may compute for long and use signals. Exceptions, and calls of more than `timeout_s`, are not judged. The
file is read when the run begins: it may be edited while the run continues, which changes none of its scores.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any

from ramet import ConfigError, InfraError, PluginError, Rollout, Score, Services
from ramet.helpers import ProcessLost, ProcessPool
from ramet_rewards.config import CustomConfig
from ramet_rewards.custom_worker import UnusableFile, takes_list

logger = logging.getLogger(__name__)
DYNAMIC = (
    "*",
    "exec",
    "globals",
    "vars",
    "setattr",
    "__getattr__",
)  # may make names that a file never writes


class FunctionRaised(Exception):
    """The function raised, which trying again does not change."""


class Custom:
    per_rollout = False  # a list form may compare the rollouts of a group

    def __init__(self, config: CustomConfig) -> None:
        self.config = config
        self._path, self._source = _file(config)
        arguments = [str(self._path), config.function]
        self._pool = ProcessPool(
            "ramet_rewards.custom_worker", arguments, size=config.workers, deadline_s=config.timeout_s
        )
        self._takes_list: bool | None = None

    async def start(self, services: Services) -> None:
        """Load the file once. Raises `ConfigError` if that fails, or if the function has neither form."""
        await self._form()

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        samples = [sample_of(rollout) for rollout in group]
        if await self._form():
            replies = await self._call({"data": samples})
            if not isinstance(replies, list) or len(replies) != len(group):
                n = len(replies) if isinstance(replies, list) else type(replies).__name__
                raise PluginError(f"{self._where()} returned {n} for {len(group)} rollouts; allowed: a list as long")
            return [self._score(reply) for reply in replies]
        calls = (self._call({"sample": sample}) for sample in samples)
        return await self._each(await asyncio.gather(*calls, return_exceptions=True))

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _each(self, replies: Sequence[Any]) -> list[Score | None]:
        """Scores of single calls.

        An exception of one does not affect the others; if all raised, the first is raised.
        """
        failed = [reply for reply in replies if isinstance(reply, BaseException)]
        if failed and (len(failed) == len(replies) or not isinstance(failed[0], InfraError | FunctionRaised)):
            raise failed[0]
        for error in failed[:1]:
            logger.warning("custom: %d of %d rollouts are not judged: %s", len(failed), len(replies), error)
        return [None if isinstance(reply, BaseException) else self._score(reply) for reply in replies]

    async def _form(self) -> bool:
        """Whether the function takes the complete group."""
        if self._takes_list is None:
            reply = await self._ask({"form": True, "arguments": dict(self.config.arguments)})
            if "problem" in reply:
                raise ConfigError(f"rewards.custom: {reply['problem']}")
            self._takes_list = bool(reply["takes_list"])
        return self._takes_list

    async def _call(self, request: Mapping[str, Any]) -> Any:
        reply = await self._ask({**request, "arguments": dict(self.config.arguments)})
        for key in ("problem", "raised"):
            if key in reply:
                raise FunctionRaised(f"{self._where()}: {reply[key]}")
        return reply["value"]

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = await self._pool.ask({**request, "source": self._source})
            return reply
        except ProcessLost as error:
            raise InfraError(f"{self._where()}: {error}") from error

    def _score(self, reply: Any) -> Score | None:
        if reply is None:
            return None
        if not isinstance(reply, dict):
            return Score(value=reply)
        if "score" not in reply:
            raise PluginError(
                f"{self._where()} returned a dict without 'score'; found: {', '.join(reply) or 'nothing'}"
            )
        parts = {name: float(part) for name, part in reply.items() if name != "score" and isinstance(part, int | float)}
        reason = reply.get("reason")
        return Score(value=reply["score"], parts=parts, reason=reason if isinstance(reason, str) else None)

    def _where(self) -> str:
        return f"{self._path.name}: {self.config.function}"


def sample_of(rollout: Rollout) -> dict[str, Any]:
    """A rollout as a function gets it; only JSON. One gold answer is a text, several are a list."""
    task = rollout.task
    extra = {
        **task.metadata,
        "id": task.id,
        "question": task.question,
        "sampled": rollout.sampled,
        "final_answer": rollout.answer,
        "stop": rollout.stop.value,
        "n_tokens": rollout.n_response_tokens,
        "tool_calls": [
            {"name": call.name, "arguments": dict(call.arguments), "status": call.status.value, "text": call.text}
            for call in rollout.tool_calls
        ],
    }
    return {
        "output": rollout.response,
        "answer": task.answer[0] if len(task.answer) == 1 else list(task.answer),
        "data_source": task.data_source,
        "extra_info": extra,
    }


def _file(config: CustomConfig) -> tuple[Path, str]:
    """The file and its content. Read, not run: only the processes run it."""
    path = Path(config.path).expanduser().absolute()
    if not config.path or not path.is_file():
        here = "" if Path(config.path).is_absolute() else f" (working directory: {Path.cwd()})"
        raise ConfigError(f"rewards.custom.params.path is {config.path!r}; allowed: a Python file that is there{here}")
    try:
        source = importlib.util.decode_source(path.read_bytes())
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"rewards.custom.params.path: {path} is not Python: {error}") from error
    _check_form(path, tree, config.function)
    return path, source


def _check_form(path: Path, tree: ast.Module, name: str) -> None:
    """Check before the start, and without running the file, a function that is plainly written there.

    What a decorator, an import or a second definition makes of the name, the processes see. Raises `ConfigError`.
    """
    words = {word for node in ast.walk(tree) for word in (getattr(node, "name", None), getattr(node, "id", None))}
    words |= {node.asname for node in ast.walk(tree) if isinstance(node, ast.alias)}
    if not words & {name, *DYNAMIC}:
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        raise ConfigError(
            f"rewards.custom: {path} has no function {name!r}; it has: {', '.join(functions) or 'none'} "
            "(rewards.custom.params.function)"
        )
    named = [node for node in ast.walk(tree) if name in (getattr(node, "name", None), getattr(node, "id", None))]
    written = named[0] if len(named) == 1 and named[0] in tree.body else None
    if not isinstance(written, ast.FunctionDef | ast.AsyncFunctionDef) or written.decorator_list:
        return
    try:
        takes_list(f"{name}({ast.unparse(written.args)})", _parameters(written.args))
    except UnusableFile as error:
        raise ConfigError(f"rewards.custom: {path}: {error}") from error


def _parameters(arguments: ast.arguments) -> list[Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    parameters = [
        Parameter(argument.arg, Parameter.POSITIONAL_OR_KEYWORD, default=Parameter.empty if number < required else None)
        for number, argument in enumerate(positional)
    ]
    parameters += [Parameter(argument.arg, Parameter.KEYWORD_ONLY) for argument in arguments.kwonlyargs]
    return parameters + ([Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD)] if arguments.kwarg else [])
