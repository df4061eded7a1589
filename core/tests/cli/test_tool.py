"""`ramet tool call`: one call from the shell, with the settings of a run."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import pytest

import ramet
from ramet.cli import main
from ramet.errors import InfraError, ToolError
from ramet.helpers import function_tool
from ramet.testing.doubles import echo_tool

pytest.importorskip("transformers", reason="ramet[train] is not installed")


def now() -> str:
    """Needs nothing."""
    return "noon"


BROKEN = (
    f"tool 'broken' (ramet.testing.doubles.EchoTool of plugin 'core' (ramet {ramet.__version__})) raised "
    "KeyError: 'key'; if the model caused it, raise ramet.ToolError instead\n"
)


@pytest.fixture(autouse=True)
def tools(register: Callable[..., None]) -> None:
    register("tools", "say", lambda: echo_tool("say"))
    register("tools", "refuses", lambda: echo_tool("refuses", error=ToolError("no such file")))
    register("tools", "down", lambda: echo_tool("down", error=InfraError("it is down")))
    register("tools", "broken", lambda: echo_tool("broken", error=KeyError("key")))
    register("tools", "now", lambda: function_tool(now))


@pytest.mark.parametrize(
    ("arguments", "code", "out", "status"),
    [
        (["say", "x=1\nprint(x)"], 0, "x=1\nprint(x)\n", "ok: "),
        (["now"], 0, "noon\n", "ok: "),
        (["say"], 1, "The say call is empty: write its input between <say> and </say>.\n", "error: "),
        (["refuses", "a"], 1, "no such file\n", "error: "),
        (["down", "a", "tools=[down]", "tools.down.retries=0"], 2, "it is down\n", "infra: "),
        (["broken", "a", "tools.broken.retries=0"], 1, BROKEN, "infra: "),
        (["say", "a", "tools.say.timeout_s=5"], 0, "a\n", "ok: "),
        (["other", "hello", "tools.other.use=say"], 0, "hello\n", "ok: "),
    ],
)
def test_a_call_prints_its_result_and_ends_with_a_code_that_says_whose_fault_it_was(
    arguments: list[str], code: int, out: str, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tool", "call", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == out
    assert printed.err.startswith(status) and " s, attempts: " in printed.err


def test_arguments_as_json_for_a_tool_of_one_text_are_taken_as_the_text_with_a_hint(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    hint = "tool call: say takes one text, text, and was given the JSON object as that text; write only the text"
    for text, hints in (('{"text": "a"}', 1), ('{"other": "a"}', 0), ("{}", 0), ("{a}", 0)):
        assert main(["tool", "call", "say", text]) == 0
        assert capsys.readouterr().out == f"{text}\n"
        assert caplog.messages.count(hint) == hints
        caplog.clear()


def test_a_single_call_belongs_to_no_question(register: Callable[..., None]) -> None:
    """A tool that hands the question on, as a summariser's server gets it, makes none up."""
    tool = echo_tool("seen")
    register("tools", "seen", lambda: tool)
    assert main(["tool", "call", "seen", "a"]) == 0
    assert [call.task.question for call in tool.calls if call.task is not None] == [""]


def test_arguments_may_come_from_the_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("tools=[say]\n"))
    assert main(["tool", "call", "say", "-"]) == 0
    assert capsys.readouterr().out == "tools=[say]\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tool: give the call, as in `ramet tool call python 'print(1)'`; see `ramet tool --help`"),
        (["say", "a", "b"], "tool call: one text of arguments, got 2: 'a', 'b'; put it in quotes"),
        (["say", "a", "tools=[now]"], "tool: no tool 'say'; configured: now"),
        (["say", "a", "--http", "80"], "tool call: --http is an option of `ramet tool serve`"),
        (["sya", "a", "tools=[say]"], "tool: no tool 'sya'; configured: say. Did you mean 'say'?"),
    ],
)
def test_what_is_wrong_with_the_command_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tool", "call", *arguments]) == 1
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tool serve: name the tools, as in `ramet tool serve python search`; see `ramet tool --help`"),
        (["say", "--http", "x"], "--http=x: expected HOST:PORT, as in 127.0.0.1:8080 (port 0: any free one)"),
        (["now", "--http", "0", "tools=[say]"], "tool: no tool 'now'; configured: say"),
    ],
)
def test_what_is_wrong_with_what_is_served_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcp", reason="ramet[mcp] is not installed")
    assert main(["tool", "serve", *arguments]) == 1
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_server_without_the_library_of_the_protocol_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["tool", "serve", "say"]) == 1
    assert "pip install 'ramet[mcp]'" in capsys.readouterr().err


def test_a_call_without_a_model_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from ramet.cli import main; main(['tool', 'call', 'mcp', 'tools.mcp.params.command=[gone]']);"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


def test_a_tool_without_the_word_call_is_told_the_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tool", "calc", "3*4"]) == 1
    assert capsys.readouterr().err == "error: tool: no command 'calc'; a call is `ramet tool call calc 3*4`\n"
