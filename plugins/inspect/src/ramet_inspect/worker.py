"""Script that runs under the interpreter of Inspect's environment: it lists the samples of a task, or runs them.

    python worker.py list '{"task": …, "args": …}'     a JSON line for each sample, then ends
    python worker.py serve '{"task": …, "args": …}'    reads requests as JSON lines, writes an outcome for each

`serve` imports Inspect and loads the task once. Each sample runs in a copy of this process: Inspect runs one evaluation
in a process at a time, each rollout has a key of its own, and a rollout that is cancelled is ended with all that it
started. A message on standard output is always the protocol's; what the task prints goes to standard error.

This file imports nothing of Ramet, and works with Python 3.10 as Inspect does.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import random
import selectors
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

MODEL = "openai-api/ramet/"  # Inspect's provider for servers with OpenAI's chat completions
LOOK_S = 0.5  # between two looks at which samples' processes have ended
PATIENCE_S = 15.0  # for the end of a cancelled sample, in which Inspect closes its sandbox
LAST_LINES = 15  # of a traceback in messages


class TaskProblem(Exception):
    """The user named a task that cannot be loaded or run as it is."""


def load_task(spec: str, arguments: dict[str, Any]) -> Any:
    """Return the `Task` that `FILE.py@NAME` or `PACKAGE/NAME` builds. Raises `TaskProblem`."""
    try:
        function = _from_file(spec) if ".py" in spec else _from_package(spec)
        task = function(**arguments)
    except TaskProblem:
        raise
    except Exception as error:
        raise TaskProblem(f"the task {spec} cannot be loaded: {_with_place(error)}") from error
    if not hasattr(task, "dataset"):
        raise TaskProblem(f"{spec} returned {type(task).__name__}, not a Task of inspect_ai")
    return task


def _from_file(spec: str) -> Callable[..., Any]:
    name, _, function = spec.partition("@")
    path = Path(name).expanduser().absolute()
    if not path.is_file():
        raise TaskProblem(f"no file {name} (working directory {Path.cwd()})")
    if not function:
        raise TaskProblem(f"{spec}: append the name of the task, as in {name}@my_task")
    sys.path.insert(0, str(path.parent))
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    if module_spec is None or module_spec.loader is None:
        raise TaskProblem(f"{name} is not a file of Python")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[path.stem] = module
    module_spec.loader.exec_module(module)
    return _attribute(module, function, name)


def _from_package(spec: str) -> Callable[..., Any]:
    package, _, function = spec.partition("/")
    points = [p for p in importlib.metadata.entry_points(group="inspect_ai") if p.name == package]
    if not points or not function:
        installed = sorted({p.name for p in importlib.metadata.entry_points(group="inspect_ai")})
        raise TaskProblem(
            f"task {spec!r}: give FILE.py@NAME or PACKAGE/NAME; packages with tasks in this environment: "
            f"{', '.join(installed) or 'none'}"
        )
    return _attribute(points[0].load(), function, package)


def _attribute(module: Any, name: str, where: str) -> Callable[..., Any]:
    if not callable(function := getattr(module, name, None)):
        raise TaskProblem(f"{where} has no task {name!r}")
    return function  # type: ignore[no-any-return]


def samples_of(task: Any) -> dict[str, Any]:
    """Return the samples by id, in the order of the data set; without an id it is the sample's number, from 1."""
    samples: dict[str, Any] = {}
    for number, sample in enumerate(task.dataset, start=1):
        if sample.id is None:
            sample.id = number
        if str(sample.id) in samples:
            raise TaskProblem(f"two samples have the id {sample.id!r}: ids must be unique")
        samples[str(sample.id)] = sample
    if not samples:
        raise TaskProblem("the task has no samples: tasks that make them while they run are not supported")
    return samples


def described(name: str, sample: Any) -> dict[str, Any]:
    """Return what a benchmark shows of a sample: id, messages as (role, text), gold answers."""
    messages = [("user", sample.input)] if isinstance(sample.input, str) else [(m.role, m.text) for m in sample.input]
    targets = [sample.target] if isinstance(sample.target, str) else list(sample.target)
    return {"id": name, "messages": messages, "target": targets}


def run_sample(task: Any, sample: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate one sample with the policy at `base_url` and return its outcome.

    The request has base_url, key, model, seconds, seed, log_dir, cache, model_roles.
    """
    os.environ["INSPECT_CACHE_DIR"] = request["cache"]  # a reply from a cache would not be the policy's
    random.seed(request["seed"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(request["seed"] % 2**32)
    log = _evaluate(task, sample, _policy(request), request["model_roles"], request["log_dir"])
    if not log.samples:
        return {"status": "infra", "error": log.error.message if log.error else f"the evaluation ended {log.status}"}
    return {**outcome(log.samples[0], MODEL + request["model"]), "log": log.location}


def warm_up() -> None:
    """Evaluate a sample without a request: what Inspect imports and reads at first use is then in every copy."""
    inspect_ai, dataset, scorer, solver = map(_part_of_inspect, ("", ".dataset", ".scorer", ".solver"))
    policy = _policy({"model": "policy", "base_url": "http://127.0.0.1/v1", "key": "none", "seconds": 1})
    policy.api.model_family()
    task = inspect_ai.Task(solver=solver.chain([]), scorer=scorer.includes())
    with tempfile.TemporaryDirectory() as folder:
        _evaluate(task, dataset.Sample(input=""), policy, {}, folder)


def _policy(request: dict[str, Any]) -> Any:
    """Return the policy as a model of Inspect, which asks the gateway once for each turn."""
    model = _part_of_inspect(".model")
    return model.get_model(
        MODEL + request["model"],
        base_url=request["base_url"],
        api_key=request["key"],
        config=model.GenerateConfig(max_retries=0, max_connections=100),
        memoize=False,
        max_retries=0,  # of the client library
        client_timeout=request["seconds"],
    )


def _evaluate(task: Any, sample: Any, policy: Any, roles: dict[str, str], log_dir: str) -> Any:
    """Return the log of an evaluation of one sample. It changes the task, which is this process's own."""
    inspect_ai, dataset = map(_part_of_inspect, ("", ".dataset"))
    [log] = inspect_ai.eval(
        inspect_ai.task_with(task, dataset=dataset.MemoryDataset([sample]), model=policy, epochs=1),
        model=policy,
        model_roles=roles or None,
        display="none",
        log_dir=log_dir,
        log_format="eval",
        log_realtime=False,
        fail_on_error=False,
        retry_on_error=0,
        ctl_server=False,
    )
    return log


def _part_of_inspect(name: str) -> Any:
    return importlib.import_module(f"inspect_ai{name}")


def outcome(sample: Any, policy: str) -> dict[str, Any]:
    """Return status, answer, scores and limit of a sample of a log, and `reasons`: why a scorer could not judge.

    An error is the agent's own once the policy has replied, unless a call of a model failed, which is an outage.
    """
    calls = [event for event in sample.events if event.event == "model"]
    scores: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for name, score in (sample.scores or {}).items():
        parts = dict(numbers(name, score.value))
        scores |= parts
        if reason := getattr(score, "reason", None):
            reasons |= dict.fromkeys(parts, reason)
    choices, limit = sample.output.choices, sample.limit.type if sample.limit else None
    if limit is None and choices and choices[0].stop_reason == "model_length":
        limit = "context"  # the gateway's, whose message is the output
    answer = choices[0].message.text if choices and limit is None else None
    result = {"status": "done", "answer": answer, "scores": scores, "reasons": reasons, "limit": limit}
    if _scored_by(sample.events, policy):
        return {"status": "config", "error": "a scorer asks the policy itself: name its model in model_roles"}
    if sample.error is None:
        return result
    error = f"{sample.error.message}\n{_end_of(sample.error.traceback)}"
    own = bool(calls) and not any(call.error for call in calls)
    return {**result, "status": "failed" if own else "infra", "error": error}


def _scored_by(events: Any, policy: str) -> bool:
    """Whether a scorer called this model. Calls in a scorer come after the beginning of its span."""
    scoring = False
    for event in events:
        scoring = scoring or (event.event == "span_begin" and event.type == "scorer")
        if scoring and event.event == "model" and event.model == policy:
            return True
    return False


def numbers(name: str, value: Any) -> Iterator[tuple[str, float | None]]:
    """Yield the numbers of a score, each with its name; None for what Inspect has no number for."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from numbers(f"{name}/{key}", part)
        return
    number = None
    if isinstance(value, str):
        known = {"c": 1.0, "yes": 1.0, "true": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "no": 0.0, "false": 0.0}
        number = known.get(value.lower())
        with suppress(ValueError):
            number = float(value) if number is None else number
    elif isinstance(value, int | float):
        number = float(value)
    yield name, number if number is not None and math.isfinite(number) else None


def _end_of(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-LAST_LINES:])


def _with_place(error: BaseException) -> str:
    return _end_of("".join(traceback.format_exception(type(error), error, error.__traceback__)))


class _Running:
    """A sample that runs in a process of its own."""

    def __init__(self, number: int, pid: int, pipe: int) -> None:
        self.number, self.pid, self.pipe = number, pid, pipe
        self.received = b""
        self.kill_at = math.inf

    def has_ended(self) -> bool:
        """Whether its process wrote its outcome or is gone."""
        return (
            self.received.endswith(b"\n")
            or os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        )

    def cancel(self) -> None:
        """Have Inspect end the sample and close its sandbox; later `kill` ends what is left."""
        self.kill_at = time.monotonic() + PATIENCE_S
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def kill(self) -> int:
        """End the process and all that it started. Returns its exit status."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]


class SampleServer:
    """Runs samples by request until standard input ends, any number at once."""

    def __init__(self, task: Any, samples: dict[str, Any], requests: int, replies: BinaryIO) -> None:
        self.task, self.samples = task, samples
        self.requests, self.replies = requests, replies
        self.selector = selectors.DefaultSelector()
        self.running: dict[int, _Running] = {}
        self.unread = b""

    def serve(self) -> None:
        self.selector.register(self.requests, selectors.EVENT_READ)
        is_open = True
        while is_open or self.running:
            for key, _ in self.selector.select(LOOK_S):
                if key.fd == self.requests:
                    is_open = self._read_requests()
                else:
                    key.data.received += os.read(key.fd, 1 << 20)
            for sample in list(self.running.values()):
                if sample.has_ended() or time.monotonic() > sample.kill_at:
                    self._finish(sample)

    def _read_requests(self) -> bool:
        """Return whether there may be more. At the end of the input all samples are cancelled."""
        part = os.read(self.requests, 1 << 20)
        *lines, self.unread = (self.unread + part).split(b"\n")
        for line in lines:
            self._follow(json.loads(line))
        if not part:
            self.selector.unregister(self.requests)
            for sample in self.running.values():
                sample.cancel()
        return bool(part)

    def _follow(self, request: dict[str, Any]) -> None:
        number = request["number"]
        if "cancel" in request:
            if number in self.running:
                self.running[number].cancel()
        elif request["sample"] not in self.samples:
            self._reply(number, {"status": "config", "error": f"the task has no sample {request['sample']!r}"})
        else:
            self._start(number, request)

    def _start(self, number: int, request: dict[str, Any]) -> None:
        read, write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
                answer = _outcome_of(self.task, self.samples[request["sample"]], request)
                with open(write, "wb") as pipe:
                    _write(pipe, answer)
            finally:
                os._exit(0)
        os.close(write)
        self.running[number] = sample = _Running(number, pid, read)
        self.selector.register(read, selectors.EVENT_READ, sample)

    def _finish(self, sample: _Running) -> None:
        """Reply, and end what the sample's process has left."""
        del self.running[sample.number]
        self.selector.unregister(sample.pipe)
        status = sample.kill()
        while part := os.read(sample.pipe, 1 << 20):
            sample.received += part
        os.close(sample.pipe)
        if sample.received.endswith(b"\n"):
            self._reply(sample.number, json.loads(sample.received))
        else:
            error = f"the sample's process ended without an outcome (status {status})"
            self._reply(sample.number, {"status": "infra", "error": error})

    def _reply(self, number: int, answer: dict[str, Any]) -> None:
        _write(self.replies, {"number": number, **answer})


def _end_with(parent: int) -> None:
    """Kill this process and what it has started once its parent has ended."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.killpg(0, signal.SIGKILL)


def _outcome_of(task: Any, sample: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return run_sample(task, sample, request)
    except BaseException as error:  # of Inspect itself: samples' own errors are in its log
        status = "config" if type(error).__name__ == "PrerequisiteError" else "infra"
        return {"status": status, "error": str(getattr(error, "message", "")) or _with_place(error)}


def main(mode: str, options: dict[str, Any]) -> None:
    """Write a first line with the problem of the task, or null; then do what `mode` says."""
    requests, replies = os.dup(0), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path[0] = os.getcwd()  # instead of the folder of this file
    problem = None
    try:
        for module in ("inspect_ai", "openai"):  # the provider needs openai, which inspect_ai does not bring
            importlib.import_module(module)
        samples = samples_of(task := load_task(options["task"], options["args"]))
    except (ImportError, TaskProblem) as error:
        problem = str(error)
    _write(replies, {"problem": problem})
    if problem is None and mode == "serve":
        warm_up()
        SampleServer(task, samples, requests, replies).serve()
    elif problem is None:
        for name, sample in samples.items():
            _write(replies, described(name, sample))


def _write(lines: BinaryIO, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message).encode() + b"\n")
    lines.flush()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
