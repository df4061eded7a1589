from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import time
from collections.abc import Sequence
from email.message import Message
from http.client import RemoteDisconnected
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from ramet.config.schema import ToolConfig
from ramet.errors import ConfigError, InfraError, PluginError, ToolError
from ramet.helpers import function_tool
from ramet.helpers.arguments import argument_problem
from ramet.models.encoder import Encoder
from ramet.rollout.tools import runner as tool_runner
from ramet.rollout.tools.runner import CallEnd, ToolRunner
from ramet.rollout.watchdog import Watchdog
from ramet.testing.doubles import echo_tool
from ramet.types import CallStatus, ToolCall, ToolRecord, ToolResult, ToolSchema


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_runner, "BACKOFF_S", 0.01)


def ends(encoder: Encoder, tool: Any, texts: Sequence[Any], **config: Any) -> tuple[list[CallEnd], Any]:
    """All calls at once, each from a rollout of its own; how they ended, and the metrics."""

    async def main() -> tuple[list[CallEnd], Any]:
        runner = ToolRunner("python", tool, ToolConfig(**config), encoder, Watchdog(60))
        calls = [ToolCall(name="python", arguments={"text": t}, rollout=str(i)) for i, t in enumerate(texts)]
        ended = await asyncio.gather(*(runner.run(call) for call in calls))
        await runner.close()
        return ended, runner.stats.metrics("tool/python")

    return asyncio.run(main())


def run(encoder: Encoder, tool: Any, texts: Sequence[Any], **config: Any) -> tuple[list[ToolRecord], Any]:
    ended, metrics = ends(encoder, tool, texts, **config)
    return [end.record for end in ended], metrics


def test_a_result_comes_back_with_its_times(encoder: Encoder) -> None:
    [outcome], metrics = run(encoder, echo_tool(delay_s=0.05), ["hello"])
    assert (outcome.status, outcome.text, outcome.attempts) == (CallStatus.OK, "hello", 1)
    assert outcome.run_s >= 0.05 > outcome.wait_s
    assert metrics["tool/python/calls"] == metrics["tool/python/executed"] == 1
    assert metrics["tool/python/run_p50_s"] >= 0.05


def test_an_infrastructure_error_is_retried_and_then_succeeds(encoder: Encoder) -> None:
    tool = echo_tool(error=InfraError("outage"), fails=2)
    [outcome], metrics = run(encoder, tool, ["x"], retries=2)
    assert (outcome.status, outcome.attempts, metrics["tool/python/retries"]) == (CallStatus.OK, 3, 2)


@pytest.mark.parametrize("error", [InfraError("outage"), RuntimeError("bug"), SystemExit(3)])
def test_what_is_not_the_models_mistake_becomes_infra_after_the_retries(encoder: Encoder, error: Any) -> None:
    tool = echo_tool(error=error)
    [outcome], metrics = run(encoder, tool, ["x"], retries=1)
    assert (outcome.status, len(tool.calls), metrics["tool/python/infra"]) == (CallStatus.INFRA, 2, 1)


def test_a_tool_error_is_the_models_and_is_not_retried(encoder: Encoder) -> None:
    tool = echo_tool(error=ToolError("name 'x' is not defined"))
    [(outcome, error)], metrics = ends(encoder, tool, ["x"], retries=5)
    assert (outcome.status, type(error), len(tool.calls)) == (CallStatus.ERROR, ToolError, 1)
    assert outcome.text == str(error) == "name 'x' is not defined"
    assert metrics["tool/python/errors"] == 1


def test_a_result_that_reports_the_models_error_is_an_error_with_its_text(encoder: Encoder) -> None:
    tool = echo_tool(returns=ToolResult(text="Traceback", error=True))
    [(outcome, error)], _ = ends(encoder, tool, ["x"])
    assert (outcome.status, outcome.text, error) == (CallStatus.ERROR, "Traceback", None)


def test_a_users_mistake_in_a_tool_stops_the_run(encoder: Encoder) -> None:
    with pytest.raises(ConfigError, match="no key"):
        run(encoder, echo_tool(error=ConfigError("no key in the environment")), ["x"])


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("text", "returned 'text'"),
        (None, "returned None"),
        ({"text": "x"}, "returned {'text': 'x'}"),
        (ToolResult(text=b"bytes"), "returned a ToolResult whose text is b'bytes'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_result_breaks_the_contract_at_once_and_names_the_tool(
    encoder: Encoder, value: Any, problem: str
) -> None:
    class Broken:
        schema = echo_tool().schema
        calls = 0

        async def __call__(self, call: ToolCall) -> Any:
            self.calls += 1
            return value

    tool = Broken()
    with pytest.raises(PluginError) as caught:
        run(encoder, tool, ["x"], retries=3)
    name = f"{Broken.__module__}.{Broken.__qualname__}"
    line = f"core/tests/rollout/test_tool_runner.py:{Broken.__call__.__code__.co_firstlineno}"
    assert str(caught.value) == f"tool 'python' ({name}) {problem}: return a ToolResult with a text ({line})"
    assert tool.calls == 1


def test_a_tool_that_raises_says_in_which_line_also_in_a_thread(encoder: Encoder) -> None:
    def read(text: str) -> str:
        """Read."""
        raise OSError("out of order")

    line = f"core/tests/rollout/test_tool_runner.py:{read.__code__.co_firstlineno + 2}"
    [outcome], _ = run(encoder, function_tool(read), ["x"], retries=0)
    assert outcome.text == (
        f"tool 'python' raised OSError: out of order ({line}); if the model caused it, raise ramet.ToolError instead"
    )


def evaluate(text: str) -> str:
    """Evaluate an expression, as a tool that is written in a minute does."""
    return str(eval(text))


def test_what_an_argument_makes_a_function_raise_goes_to_the_model_and_is_counted_by_type(
    encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["1 + 1", "1 / 0", "(3", "x", "y", "''.x", "next(iter([]))", "exit(3)", "open('/no/such/file')",
             "__import__('subprocess').run(['false'], check=True)", "(lambda f: f(f))(lambda f: f(f))",
             "__import__('sqlite3').connect(':memory:').execute('SELCT')",
             "__import__('urllib.request').request.urlopen('nonsense://a b')",
             "__import__('http.client').client.HTTPConnection('localhost').request('GET', '/a b')"]  # fmt: skip
    outcomes, metrics = run(encoder, function_tool(evaluate), texts, retries=0)
    assert [one.status for one in outcomes] == [CallStatus.OK] + [CallStatus.ERROR] * 13
    assert outcomes[3].text == "NameError: name 'x' is not defined"
    assert outcomes[7].text == "RuntimeError: SystemExit: 3"
    counted = {key: n for key, n in metrics.items() if "/exceptions/" in key}
    assert counted["tool/python/exceptions/NameError"] == 2 and sum(counted.values()) == 13
    logged = [record for record in caplog.records if "it may be a bug of the tool" in record.getMessage()]
    assert len(logged) == len(counted) and all(record.exc_info for record in logged), "the first of each type"
    line = f"core/tests/rollout/test_tool_runner.py:{evaluate.__code__.co_firstlineno + 2}"
    assert f"tool 'python' raised NameError: name 'x' is not defined ({line}). Its text goes" in caplog.text


def test_a_broken_answer_of_a_service_is_not_the_models_mistake_though_it_is_a_value_error(encoder: Encoder) -> None:
    class JSONDecodeError(OSError, ValueError):
        """As that of `requests`."""

    class MissingSchema(OSError, ValueError):
        """As that of `requests`, for an address that the model wrote."""

    def ask(text: str) -> str:
        """Ask a service."""
        raise JSONDecodeError("<html>502</html>") if text == "down" else MissingSchema(text)

    outcomes, _ = run(encoder, function_tool(ask), ["down", "example"], retries=0)
    assert [one.status for one in outcomes] == [CallStatus.INFRA, CallStatus.ERROR]


def status_error(code: int) -> HTTPError:
    return HTTPError("http://service", code, "refused", Message(), None)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (ConnectionRefusedError(111, "refused"), CallStatus.INFRA),
        (TimeoutError(), CallStatus.INFRA),
        (OSError(errno.ENOSPC, "no space left"), CallStatus.INFRA),
        (MemoryError(), CallStatus.INFRA),
        (URLError(socket.gaierror(-3, "temporary failure in name resolution")), CallStatus.INFRA),
        (ssl.SSLError(1, "wrong version number"), CallStatus.INFRA),
        (RemoteDisconnected("closed"), CallStatus.INFRA),
        (status_error(503), CallStatus.INFRA),
        (status_error(429), CallStatus.INFRA),
        (ExceptionGroup("several", [ValueError(), ConnectionResetError()]), CallStatus.INFRA),
        (caused(RuntimeError("search failed"), ConnectionResetError()), CallStatus.INFRA),
        (status_error(404), CallStatus.ERROR),
        (URLError("unknown url type: nonsense"), CallStatus.ERROR),
        (OSError(errno.ENAMETOOLONG, "name too long"), CallStatus.ERROR),
        (PermissionError(errno.EACCES, "denied"), CallStatus.ERROR),
    ],
    ids=repr,
)
def test_of_a_function_tool_only_what_fails_outside_is_infrastructure(
    encoder: Encoder, raised: Exception, status: CallStatus
) -> None:
    def ask(text: str) -> str:
        """Ask a service."""
        raise raised

    [(outcome, error)], _ = ends(encoder, function_tool(ask), ["x"], retries=0)
    assert (outcome.status, getattr(error, "defect", False)) == (status, False)


def test_a_configuration_error_of_a_tool_carries_its_name(encoder: Encoder) -> None:
    def needs_a_key(text: str) -> str:
        """Search."""
        raise ConfigError("no key in the environment")

    line = f"core/tests/rollout/test_tool_runner.py:{needs_a_key.__code__.co_firstlineno + 2}"
    with pytest.raises(ConfigError) as caught:
        run(encoder, function_tool(needs_a_key), ["x"])
    name = f"{needs_a_key.__module__}.{needs_a_key.__qualname__}"
    assert str(caught.value) == f"tool 'python' ({name}): no key in the environment ({line})"


def test_a_tool_that_hangs_ends_with_its_time_out_even_if_it_ignores_cancellation(encoder: Encoder) -> None:
    started = time.monotonic()
    [outcome], _ = run(encoder, echo_tool(hangs=True, stubborn=2), ["x"], timeout_s=0.1, retries=0)
    assert outcome.status is CallStatus.INFRA
    assert "did not return within 0.1 s" in outcome.text
    assert time.monotonic() - started < 2


def test_a_hanging_call_frees_its_slot_for_others(encoder: Encoder) -> None:
    tool = echo_tool(hangs=True, stubborn=2)
    outcomes, _ = run(encoder, tool, ["a", "b", "c"], timeout_s=0.1, retries=0, concurrency=1)
    assert [o.status for o in outcomes] == [CallStatus.INFRA] * 3
    assert len(tool.calls) == 3


def test_concurrency_is_limited_and_waiting_is_counted_as_waiting(encoder: Encoder) -> None:
    tool = echo_tool(delay_s=0.03)
    outcomes, metrics = run(encoder, tool, list("abcdef"), concurrency=2)
    assert tool.most_running == 2
    assert max(o.wait_s for o in outcomes) >= 0.05
    assert metrics["tool/python/wait_p95_s"] >= 0.05


def test_a_tool_that_is_not_concurrent_runs_one_call_at_a_time(encoder: Encoder) -> None:
    tool = echo_tool(concurrent=False, delay_s=0.01)
    run(encoder, tool, list("abc"))
    assert tool.most_running == 1


def test_identical_calls_of_a_deterministic_tool_share_one_execution(encoder: Encoder) -> None:
    tool = echo_tool(deterministic=True, delay_s=0.02)
    outcomes, metrics = run(encoder, tool, ["a", "a", "b", "a"])
    assert [o.text for o in outcomes] == ["a", "a", "b", "a"]
    assert [o.cached for o in outcomes] == [False, True, False, True]
    assert (metrics["tool/python/executed"], metrics["tool/python/shared"], metrics["tool/python/calls"]) == (2, 2, 4)


def test_identical_calls_of_other_tools_are_all_executed(encoder: Encoder) -> None:
    tool = echo_tool(delay_s=0.02)
    run(encoder, tool, ["a", "a", "a"])
    assert len(tool.calls) == 3


def test_a_shared_execution_survives_the_caller_that_began_it(encoder: Encoder) -> None:
    async def main() -> ToolRecord:
        tool = echo_tool(deterministic=True, delay_s=0.05)
        runner = ToolRunner("python", tool, ToolConfig(), encoder, Watchdog(60))
        call = ToolCall(name="python", arguments={"text": "a"})
        first, second = (asyncio.create_task(runner.run(call)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        outcome = (await second).record
        assert first.cancelled()
        assert len(tool.calls) == 1
        return outcome

    assert asyncio.run(main()).text == "a"


def test_a_shared_execution_that_nobody_waits_for_ends(encoder: Encoder) -> None:
    async def main() -> None:
        tool = echo_tool(deterministic=True, hangs=True)
        runner = ToolRunner("python", tool, ToolConfig(), encoder, Watchdog(60))
        call = ToolCall(name="python", arguments={"text": "a"})
        waiting = asyncio.create_task(runner.run(call))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.sleep(0.01)
        assert tool.running == 0

    asyncio.run(main())


def test_ten_megabytes_are_cut_with_a_visible_mark_and_quickly(encoder: Encoder) -> None:
    started = time.monotonic()
    [outcome], metrics = run(encoder, echo_tool(size=10_000_000), ["line\n"], max_result_tokens=200)
    assert outcome.truncated
    assert metrics["tool/python/truncated"] == 1
    assert "[... cut ...]" in outcome.text
    assert len(encoder.untrusted(outcome.text)) <= 200
    assert time.monotonic() - started < 2


def test_arguments_that_do_not_fit_the_schema_never_reach_the_tool(encoder: Encoder) -> None:
    tool = echo_tool()
    [(outcome, error)], _ = ends(encoder, tool, [7])
    assert (outcome.status, type(error), tool.calls) == (CallStatus.ERROR, ToolError, [])
    assert re.search(r"\btext must be .* 7\b", outcome.text)


SCHEMA = ToolSchema(
    name="find",
    description="",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "n": {"type": "integer"},
            "rate": {"type": "number"},
            "sort": {"enum": ["new", "old"]},
            "site": {"type": ["string", "null"]},
        },
        "required": ["query"],
    },
)


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "x"},
        {"query": "x", "n": 3, "rate": 3, "sort": "new", "site": None},
        {"query": "x", "n": None},
    ],
)
def test_arguments_that_fit_pass(arguments: dict[str, Any]) -> None:
    assert argument_problem(SCHEMA, arguments) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "query is missing"),
        ({"query": 3}, "query must be of type string, got 3"),
        ({"query": None}, "query must be of type string, got None"),
        ({"query": "x", "n": True}, "n must be of type integer, got True"),
        ({"query": "x", "n": "3"}, "n must be of type integer, got '3'"),
        ({"query": "x", "sort": "best"}, "sort must be one of 'new', 'old', got 'best'"),
        ({"query": "x", "qurey": "y"}, r"there is no qurey \(known: query, n, rate, sort, site\)"),
        ({"query": ["x" * 1000]}, r"got \['x{70,80}\.\.\.$"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], message: str) -> None:
    assert re.search(message, argument_problem(SCHEMA, arguments) or "")


def test_arguments_nested_without_end_are_refused() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert (argument_problem(SCHEMA, {"x": deep}) or "").startswith(f"{SCHEMA.name}: the arguments are nested ")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("\ud800", "half of a surrogate pair, which is no character"),
        ([float("inf")], "NaN or an infinite number, which JSON does not have"),
    ],
)
def test_arguments_that_are_no_json_never_reach_a_tool(value: Any, fault: str) -> None:
    """They would fail on the way to a server or a process, which is infrastructure: a way not to be judged."""
    assert argument_problem(SCHEMA, {"query": value}) == f"{SCHEMA.name}: the arguments hold {fault}"


def test_all_mistakes_are_told_at_once() -> None:
    assert re.search(r"\bquery is missing; n must be .*'many'", argument_problem(SCHEMA, {"n": "many"}) or "")
