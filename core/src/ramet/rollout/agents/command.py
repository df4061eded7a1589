"""The agent `command`: a program in any language, started once for each rollout.

It finds the policy by environment variables (`AgentContext.environ`), and the task as JSON in the file `RAMET_TASK`:
`id`, `question`, `prompt`, `data_source`, `metadata`; gold answers are not in it. Its standard output is the answer, or
with `result=file` what it writes to the file `RAMET_RESULT`: `{"answer", "reward", "info", "status"}`. Exit
code 0 is `done`, 75 an outage (`EX_TEMPFAIL`; the rollout is masked), any other a crash of the agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

from ramet.errors import ConfigError, InfraError, RametError
from ramet.io.json_values import json_fault, too_deep
from ramet.plugins.output_checks import agent_value_problem
from ramet.processes import kill_tagged, own_reaper
from ramet.rollout.config import CommandConfig
from ramet.types import AgentContext, AgentResult, AgentStatus, Task

KEY = "rollout_step.params"
OUTAGE = 75  # EX_TEMPFAIL of sysexits.h
MOST_OUTPUT = 1 << 20  # bytes of standard output and of the result
SHOWN_ERROR = 2000  # characters of standard error in messages
READ_S = 1.0  # for the rest of its output, once all of its processes are killed
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "SHELL", "TERM")
FILLED_IN = ("question", "task", "result", "folder", "base_url", "key", "model")  # in argv
NAMES = re.compile(r"(\$?)(?:\{(\{\w+\})\}|\{(\w+)\})")  # a shell's $, the text of {{name}}, the name of {name}
RESULT_KEYS = ("answer", "reward", "info", "status")


class ProgramFailed(RametError):
    """The program crashed, ran out of time, or wrote a result that cannot be read: the policy's doing."""


class CommandAgent:
    """Runs a program, and kills it with its children at the end of the rollout."""

    def __init__(self, config: CommandConfig) -> None:
        """Raises `ConfigError` for a program or a folder that is not there."""
        self.forks = cast(Literal["replay", "none"], config.forks)
        self.settings = replace(config.settings, timeout_s=None)  # it kills the program itself
        self._config = config
        if not config.argv:
            raise ConfigError(f"{KEY}.argv=[]: give a program and its arguments, as in argv=[python,/srv/agent.py]")
        for name in dict.fromkeys(name for argument in config.argv for name in unknown_names(argument)):
            raise ConfigError(
                f"{KEY}.argv: {{{name}}} is not filled in; allowed: {', '.join(f'{{{one}}}' for one in FILLED_IN)}; "
                f"{{{{{name}}}}} gives the program the text {{{name}}}"
            )
        if config.result != "file" and any("{result}" in argument for argument in config.argv):
            raise ConfigError(
                f"{KEY}.result={config.result}: argv names {{result}}, which is read only with result=file"
            )
        if config.folder is not None and not Path(config.folder).is_dir():
            raise ConfigError(f"{KEY}.folder={config.folder}: there is no such folder")
        program, path = self._program(config.argv[0]), config.env.get("PATH", os.environ.get("PATH"))
        if "{" not in program and shutil.which(program, path=path) is None:
            raise ConfigError(f"{KEY}.argv: no program {program!r} (PATH={path})")

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        folders = ctx.folder.parent  # removed with what a killed run left there
        with TemporaryDirectory(prefix="command-", dir=folders, ignore_cleanup_errors=True) as private:
            return await self._run(task, ctx, Path(private))

    async def _run(self, task: Task, ctx: AgentContext, private: Path) -> AgentResult:
        """`private` is outside the working directory: what a tool of the program writes there is no result."""
        task_file, result_file = private / "task.json", private / "result.json"
        task_file.write_text(json.dumps(task_fields(task), ensure_ascii=False), encoding="utf-8")
        values = {
            "question": task.question,
            "task": str(task_file),
            "result": str(result_file),
            "folder": str(ctx.folder),
            "base_url": ctx.base_url,
            "key": ctx.key,
            "model": ctx.model,
        }
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        files = {"RAMET_TASK": str(task_file), "RAMET_FOLDER": str(ctx.folder)}
        if self._config.result == "file":
            files["RAMET_RESULT"] = str(result_file)
        program, *arguments = [filled(argument, values) for argument in self._config.argv]
        code, out, said = await self._finished(
            [self._program(program), *arguments],
            passed_on | ctx.environ() | files | self._config.env | own_reaper().tag(),
            self._config.folder or str(ctx.folder),
            f"RAMET_KEY={ctx.key}",
        )
        if code == OUTAGE:
            raise InfraError(
                f"the program reported an outage (exit code {OUTAGE}): {said or 'nothing on standard error'}"
            )
        if code != 0:
            raise ProgramFailed(f"the program ended with exit code {code}: {said or 'nothing on standard error'}")
        if self._config.result == "file":
            return read_result(result_file, out)
        return AgentResult(answer=out.strip() or None)

    def _program(self, name: str) -> str:
        """Return the file of a program that is named with its folder, otherwise the name, which PATH is searched for.

        A relative one begins in `folder`, without that in the working directory.
        """
        return os.path.abspath(os.path.join(self._config.folder or "", name)) if os.sep in name else name

    async def _finished(self, argv: list[str], env: dict[str, str], folder: str, tag: str) -> tuple[int, str, str]:
        """Exit code, standard output and the end of standard error. Nothing of the program runs afterwards."""
        async with _pipe() as (out, read_out), _pipe() as (err, read_err):
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    env=env,
                    cwd=folder,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            except OSError as error:
                raise InfraError(f"the program {argv[0]!r} cannot be started: {error}") from error
            finally:
                os.close(out)
                os.close(err)
            kept, said = bytearray(), bytearray()
            reading = asyncio.gather(_first(read_out, kept, MOST_OUTPUT), _last(read_err, said, 4 * SHOWN_ERROR))
            try:
                async with asyncio.timeout(self._config.timeout_s):
                    await process.wait()
            except TimeoutError:
                limit = f"{KEY}.timeout_s={self._config.timeout_s:g}"
                raise ProgramFailed(f"the program did not end within {limit}: {_text(said, SHOWN_ERROR)}") from None
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(asyncio.to_thread(kill_tagged, tag))
                await asyncio.shield(process.wait())
                await asyncio.wait([reading], timeout=READ_S)  # a process without the variables may hold the pipes
                reading.cancel()
        assert process.returncode is not None
        return process.returncode, kept.decode("utf-8", "replace"), _text(said, SHOWN_ERROR)


def task_fields(task: Task) -> dict[str, Any]:
    """The task as an agent outside this process gets it: without gold answers."""
    return {
        "id": task.id,
        "question": task.question,
        "prompt": [{"role": message.role, "content": message.content} for message in task.prompt],
        "data_source": task.data_source,
        "metadata": dict(task.metadata),
    }


def unknown_names(text: str) -> list[str]:
    """Names in braces that `filled` does not know; `${name}` of a shell and `{{name}}` are not among them."""
    return [m[3] for m in NAMES.finditer(text) if m[3] and not m[1] and m[3] not in FILLED_IN]


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with `{name}` replaced, and `{{name}}` by `{name}`; other braces stay, and so do those in the values."""
    return NAMES.sub(lambda m: m[1] + (m[2] or values.get(m[3], f"{{{m[3]}}}")), text)


def read_result(file: Path, out: str) -> AgentResult:
    """The result that a program wrote. Raises `ProgramFailed` for one that cannot be read, `InfraError` for an outage
    that it reports.
    """
    if not file.is_file():
        return AgentResult(answer=out.strip() or None)
    with file.open("rb") as opened:
        raw = opened.read(MOST_OUTPUT + 1)
    if len(raw) > MOST_OUTPUT:
        raise ProgramFailed(f"the result has more than {MOST_OUTPUT >> 20} MiB")
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ProgramFailed(f"the result is not JSON: {error}") from error
    return result_of(fields)


def result_of(fields: Any) -> AgentResult:
    """The result from JSON. Raises as `read_result`."""
    allowed = ", ".join(RESULT_KEYS)
    if not isinstance(fields, dict):
        raise ProgramFailed(f"the result is {fields!r:.80}; write a JSON object with some of {allowed}")
    if unknown := sorted(fields.keys() - set(RESULT_KEYS)):
        raise ProgramFailed(f"the result has unknown keys: {', '.join(unknown):.200}; allowed: {allowed}")
    if (fault := "is too deep" if too_deep(fields) else json_fault(fields)) is not None:
        raise ProgramFailed(f"the result cannot be recorded: {fault}")
    answer, reward, info, status = (fields.get(key) for key in RESULT_KEYS)
    if status == "infra":
        raise InfraError(f"the agent reported an outage: {info!r:.2000}")
    if status not in (None, *AgentStatus):
        raise ProgramFailed(f"status of the result is {status!r:.80}; allowed: done, failed, infra")
    result = AgentResult(
        answer=answer, reward=reward, info={} if info is None else info, status=AgentStatus(status or AgentStatus.DONE)
    )
    if (problem := agent_value_problem(result)) is not None:
        raise ProgramFailed(problem)
    return result


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[int, asyncio.StreamReader]]:
    """The end to write to, which the caller closes, and a reader that is closed in the end, even if others write."""
    read, write = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read, "rb"))
    try:
        yield write, reader
    finally:
        transport.close()


async def _first(stream: asyncio.StreamReader, kept: bytearray, most: int) -> None:
    """Keep the first bytes; the rest is read and dropped, so that the program does not wait."""
    while chunk := await stream.read(1 << 16):
        kept += chunk[: max(0, most - len(kept))]


async def _last(stream: asyncio.StreamReader, kept: bytearray, most: int) -> None:
    """Keep the last bytes."""
    while chunk := await stream.read(1 << 16):
        kept += chunk
        del kept[:-most]


def _text(said: bytearray, most: int) -> str:
    return said.decode("utf-8", "replace")[-most:].strip()
