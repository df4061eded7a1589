"""Running a coroutine to its end, also where an event loop runs already (notebooks); the first error of a task group;
who cancelled a task; calls that may block for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")
END_S = 60.0  # for calls in threads at the end of a loop
left_threads: list[threading.Thread] = []  # whose calls had not returned by then


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run as `asyncio.run` does. Where a loop runs in this thread, `work` gets another thread and loop instead.

    Signals still reach this thread, which waits: one whose handler raises here (`StopListener`) cancels `work`, and is
    raised once `work` has ended.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_with_threads(work))
    done: T = _InThread(work).result()
    return done


async def _with_threads(work: Coroutine[Any, Any, T]) -> T:
    """Bound what the end of the loop waits for: a call of a plugin in `asyncio.to_thread` may never return."""
    asyncio.get_running_loop().set_default_executor(_Threads())
    return await work


class _Threads(ThreadPoolExecutor):
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        ends_at = time.monotonic() + END_S
        for thread in self._threads if wait else ():
            thread.join(max(0.0, ends_at - time.monotonic()))
            if thread.is_alive():
                left_threads.append(thread)


@asynccontextmanager
async def first_error() -> AsyncIterator[None]:
    """Raise the first error of the task groups in the block as it is, instead of a group of all errors."""
    first: BaseException | None = None
    try:
        yield
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    if first is not None:  # raised outside of the handler, whose group would replace the first error
        try:
            raise first
        finally:
            del first


def n_cancelled() -> int:
    """How often the current task was cancelled; 0 outside of one."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def is_cancelled(before: int = 0) -> bool:
    """Whether the current task itself was cancelled. Otherwise its awaited task cancelled itself, which is a failure.

    `before`: `n_cancelled()` of then, for work that begins in a task that is cancelled already, such as closing.
    """
    return n_cancelled() > before


async def cancel_and_wait(tasks: Iterable[asyncio.Future[Any]], *, timeout_s: float) -> None:
    """Cancel what still runs and wait so long for it to end. Results and errors are dropped."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s)
        for task in done:
            if not task.cancelled():
                task.exception()  # read, or asyncio would report it


async def in_daemon_thread(call: Callable[[], T]) -> T:
    """Return what `call` returns, or raise what it raises. The thread is a daemon: the program ends while it waits, as
    for a line of the standard input.
    """
    result = Future[T]()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            value = call()
        except Exception as error:
            result.set_exception(error)
        else:
            result.set_result(value)

    threading.Thread(target=run, name="ramet-waits", daemon=True).start()
    return await asyncio.wrap_future(result)


class _InThread:
    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._started, self._ended = threading.Event(), threading.Event()
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        inside = contextvars.copy_context()
        self._thread = threading.Thread(target=inside.run, args=(self._run,), name="ramet-event-loop", daemon=True)

    def result(self) -> Any:
        self._thread.start()
        try:
            self._ended.wait()  # not join(): interrupted once, it takes the thread for ended (bpo-45274)
        except BaseException:
            self._cancel()
            self._ended.wait()
            raise
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = asyncio.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    async def _main(self) -> Any:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        return await _with_threads(self._work)

    def _cancel(self) -> None:
        self._started.wait()
        assert self._loop is not None and self._task is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
