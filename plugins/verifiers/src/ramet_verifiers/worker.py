"""The worker: lists the tasks of an environment of `verifiers` and runs its episodes.

It runs as a script under the interpreter of the environment that has `verifiers`, and imports nothing of Ramet.
Messages are JSON lines over standard input and output; all that the environment prints goes to standard error.

`worker.py tasks` reads the settings and writes `{"task": …}` lines, then `{"end": true}`. `worker.py serve` reads the
settings, writes `{"ready": true}`, and answers each `{"run": ID, …}` by `{"id": ID, "episode": …}`, several at a time;
`{"cancel": ID}` ends one. It ends with its input. `{"failed": TEXT}` means that the environment cannot be loaded, and
`{"id": ID, "failed": TEXT}` that an episode could not be run.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from typing import Any, BinaryIO, Protocol

MAX_LINE = 64 << 20  # bytes of a message
FIRST_VERSION = (0, 4)  # of verifiers with the interface that this file uses
MAX_TEXT = 2000  # characters of an error
MAX_START = 500  # of them from its beginning
NO_KEY = "RAMET_VERIFIERS_NO_KEY"  # a variable that is never set: the session's key is in the address


class ServedEnvironment(Protocol):
    """The part of an environment that the worker uses."""

    def tasks(self, limit: int | None) -> Iterator[dict[str, Any]]: ...

    def serving(self) -> AbstractAsyncContextManager[None]: ...

    async def run(self, request: Mapping[str, Any]) -> dict[str, Any]: ...


Load = Callable[[Mapping[str, Any]], ServedEnvironment]


class Refused(Exception):
    """An environment, or a setting of it, that Ramet cannot use; the text is for the user."""


class VerifiersEnvironment:
    """An environment of `verifiers` with one agent."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Import and load it. Raises `Refused`, and what its code raises."""
        _check_version()
        self._verifiers = importlib.import_module("verifiers.v1")
        self._loaders = importlib.import_module("verifiers.v1.utils.loaders")
        block = copy.deepcopy(dict(settings["arguments"]))
        block["taskset"] = {**block.get("taskset", {}), "id": settings["environment"]}
        kind = self._loaders.env_config_type(settings["environment"], block.get("id", ""))
        self._role = self._only_role(kind)
        is_default = self._choose_runtime(block, kind.model_fields[self._role].default)
        config = self._loaders.resolve_env_config(block)
        self._check(config, is_default)
        self._env = self._loaders.load_environment(config)
        self._task_type = type(self._env.taskset).task_type()
        self._data_type = self._task_type.data_type()
        self._check_pairing()

    def _only_role(self, kind: Any) -> str:
        fields = kind.model_fields.items()
        roles = [name for name, field in fields if isinstance(field.default, self._verifiers.AgentConfig)]
        if len(roles) != 1:
            raise Refused(f"it has {len(roles)} agents ({', '.join(roles)}); environments with one are supported")
        return str(roles[0])

    def _choose_runtime(self, block: dict[str, Any], default: Any) -> bool:
        """Use this machine, as a subprocess, where neither the user nor the environment chose; whether that is so.

        The default of `verifiers` is a sandbox in its maker's cloud.
        """
        agent = block[self._role] = dict(block.get(self._role, {}))
        if "runtime" in agent or "runtime" in default.model_fields_set:
            return False
        agent["runtime"] = {"type": "subprocess"}
        return True

    def _check(self, config: Any, default_runtime: bool) -> None:
        agent = getattr(config, self._role)
        for name, retries in (("retries", config.retries), (f"{self._role}.retries", agent.retries)):
            if retries.max_retries or retries.rules:
                raise Refused(f"arguments.{name} must be empty: a second attempt would be a part of the same rollout")
        harness = self._harness(config)
        if default_runtime and harness.EXECUTES_CODE:
            key = f"arguments.{self._role}"
            raise Refused(
                f"its harness {harness.config.id!r} runs commands that the model writes. Choose where: "
                f"{key}.runtime.type=subprocess (this machine, without a sandbox), another runtime, or "
                f"{key}.harness.id=null (a conversation without such commands)"
            )

    def _harness(self, config: Any) -> Any:
        return self._loaders.load_harness(config.agent_harnesses()[self._role])

    def _check_pairing(self) -> None:
        """Refuse what no episode could run, such as tasks that need a container in a subprocess."""
        pairing = importlib.import_module("verifiers.v1.utils.compile").validate_pairing
        config = self._env.config
        try:
            pairing(self._harness(config), self._task_type, getattr(config, self._role).runtime)
        except ValueError as error:
            raise Refused(str(error)) from error
        excluded = [name for name, field in self._data_type.model_fields.items() if field.exclude]
        if excluded:
            raise Refused(f"its tasks have fields that are not written out ({', '.join(excluded)})")

    def tasks(self, limit: int | None) -> Iterator[dict[str, Any]]:
        """Prompt as text messages, and all data, of each task in the order of the task set."""
        taskset = self._env.taskset
        if limit is None and not taskset.bounded:
            raise Refused("its task set has no end: set n_tasks")
        for task in islice(taskset, limit):
            yield {"messages": _messages(task.data), "data": task.data.model_dump(mode="json")}

    def serving(self) -> AbstractAsyncContextManager[None]:
        """Run its shared servers inside."""
        served: AbstractAsyncContextManager[None] = self._env.serving()
        return served

    async def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One episode of `request["data"]` against the model at `request["base_url"]`."""
        data = self._data_type.model_validate(request["data"])
        env = self._limited(request["max_turns"])
        (slot,) = env.slots(self._task_type(data, env.config.taskset.task))
        client = self._verifiers.EvalClientConfig(base_url=request["base_url"], api_key_var=NO_KEY)
        episode = await env.run_slot(slot, self._verifiers.ModelContext(model=request["model"], client=client))
        return report(episode)

    def _limited(self, max_turns: int) -> Any:
        """The environment with at most so many turns: it ends the episode itself and scores it."""
        env, agent = copy.copy(self._env), getattr(self._env.config, self._role)
        turns = max_turns if agent.max_turns is None else min(max_turns, agent.max_turns)
        limited = agent.model_copy(update={"max_turns": turns})
        env.config = self._env.config.model_copy(update={self._role: limited})
        return env


def _check_version() -> None:
    try:
        version = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError as error:
        raise Refused(f"the package verifiers is not installed for {sys.executable}") from error
    if tuple(map(int, version.split(".")[:2])) < FIRST_VERSION:
        raise Refused(f"verifiers {version} is installed for {sys.executable}; 0.4 or newer is needed")


def report(episode: Any) -> dict[str, Any]:
    """The episode as JSON. `began`, `ended`: whether the program was started, and came to its end."""
    if len(episode.traces) > 1:
        raise Refused(f"an episode ran its agent {len(episode.traces)} times; once is supported")
    out: dict[str, Any] = {"ok": episode.ok, "errors": [_error(error) for error in episode.errors]}
    for trace in episode.traces:
        last = trace.calls[-1].error if trace.calls else None
        out |= {
            "reward": trace.reward,
            "rewards": {name: None if reward is None else reward.value for name, reward in trace.rewards.items()},
            "metrics": dict(trace.metrics),
            "answer": trace.last_reply or None,
            "stop": trace.stop_condition,
            "turns": trace.num_turns,
            "began": trace.timing.agent.start > 0,
            "ended": trace.timing.finalize.start > 0,
            "last_call": None if last is None else _error(last),
        }
        out["errors"] += [_error(error) for error in trace.errors]
    return out


def _error(error: Any) -> dict[str, Any]:
    """The beginning of a message says where it failed, the end what the program wrote."""
    message = error.message
    if len(message) > MAX_TEXT:
        message = f"{message[:MAX_START]} … {message[MAX_START - MAX_TEXT :]}"
    return {"type": error.type, "status": error.status_code, "message": message}


def _messages(data: Any) -> list[dict[str, str]]:
    """The prompt without what is not text; the description where the environment opens the conversation."""
    messages = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    if isinstance(data.prompt, str):
        return [*messages, {"role": "user", "content": data.prompt}]
    text = importlib.import_module("verifiers.v1.types").content_text
    messages += [{"role": message.role, "content": text(message.content)} for message in data.prompt or []]
    if not any(message["role"] == "user" and message["content"].strip() for message in messages):
        opening = data.description or data.name or "(the environment opens the conversation)"
        messages.append({"role": "user", "content": opening})
    return messages


def list_tasks(load: Load, read: BinaryIO, write: BinaryIO) -> None:
    """Read the settings, write the tasks."""
    settings = json.loads(read.readline())
    try:
        for task in load(settings).tasks(settings["limit"]):
            _send(write, {"task": task})
        _send(write, {"end": True})
    except Exception as error:
        _send(write, {"failed": _text(error)})


async def serve(load: Load, read: BinaryIO, write: BinaryIO) -> None:
    """Run episodes until the input ends; those that are running then are cancelled."""
    async with _lines(read) as lines:
        try:
            environment = load(json.loads(await lines.readline()))
            async with environment.serving():
                _send(write, {"ready": True})
                await _answer_all(environment, lines, write)
        except Exception as error:
            _send(write, {"failed": _text(error)})


async def _answer_all(environment: ServedEnvironment, lines: asyncio.StreamReader, write: BinaryIO) -> None:
    running: dict[int, asyncio.Task[None]] = {}
    while line := await lines.readline():
        message = json.loads(line)
        if "run" in message:
            id = message["run"]
            running[id] = asyncio.create_task(_answer(environment, message, write))
            running[id].add_done_callback(lambda _, id=id: running.pop(id))  # type: ignore[misc]
        elif (task := running.get(message["cancel"])) is not None:
            task.cancel()
    for task in running.values():
        task.cancel()
    await asyncio.gather(*running.values(), return_exceptions=True)


async def _answer(environment: ServedEnvironment, request: Mapping[str, Any], write: BinaryIO) -> None:
    try:
        answer: dict[str, Any] = {"episode": await environment.run(request)}
    except Exception as error:
        answer = {"failed": _text(error)}
    _send(write, {"id": request["run"], **answer})


def _text(error: Exception) -> str:
    """The message for the user; of an unexpected error its type too, and its traceback goes to standard error."""
    if isinstance(error, Refused):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"[:MAX_TEXT]


def _send(write: BinaryIO, message: Mapping[str, Any]) -> None:
    write.write(json.dumps(message).encode() + b"\n")
    write.flush()


@asynccontextmanager
async def _lines(read: BinaryIO) -> AsyncIterator[asyncio.StreamReader]:
    lines = asyncio.StreamReader(limit=MAX_LINE)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), read)
    try:
        yield lines
    finally:
        transport.close()


def private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Take standard input and output for messages: others read nothing, and write to standard error."""
    read, write = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    return read, write


def main(load: Load = VerifiersEnvironment) -> None:
    """Run the mode that the command line names."""
    read, write = private_streams()
    if sys.argv[1] == "tasks":
        list_tasks(load, read, write)
    else:
        asyncio.run(serve(load, read, write))


if __name__ == "__main__":
    main()
