"""`ramet play`: one prompt through the rollout code that trains, printed turn by turn."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = re.compile(r"\d+\.\d\d s")
COLOUR = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def keys(workspace) -> list[str]:
    return [
        f"model.path={workspace.model}", "data.max_prompt_tokens=64", "rollout.max_response_tokens=96",
        "rollout_step=e2e_turns", "rollout_step.system_prompt=never", "tools=[e2e_digest]", "run.seed=7",
    ]  # fmt: skip


def play(*words: str, environment: dict[str, str], cwd: Path, questions: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ramet", "play", *words],
        input=questions, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_every_turn_is_printed_and_nothing_is_written(ramet, keys: list[str], tmp_path: Path) -> None:
    ended = ramet("play", "What is 1+1?", *keys, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert list(tmp_path.iterdir()) == []
    text = SECONDS.sub("N s", ended.out)
    headers = [line for line in text.splitlines() if re.match(r"prompt:|turn \d|stop:", line)]
    calls = len(re.findall(r"^<result>[0-9a-f]{6}</result>$", text, re.MULTILINE))
    assert calls >= 1  # a model with random weights may end early
    turns = [
        line
        for turn in range(1, calls + 1)
        for line in (
            rf"turn {turn}, sampled: \d+ tokens? in N s",
            rf"turn {turn}, call: e2e_digest \{{\"text\": .*",
            rf"turn {turn}, result of e2e_digest: ok after N s",
            rf"turn {turn}, inserted: 8 tokens",
        )
    ]
    expected = [
        r"prompt: \d+ tokens", *turns, rf"turn {calls + 1}, sampled: \d+ tokens? in N s",
        rf"stop: end; {calls + 1} turns, {calls} tool calls?; tokens: \d+ prompt, \d+ sampled, {8 * calls} inserted; "
        "N s, of which N s in tools",
    ]  # fmt: skip
    assert len(headers) == len(expected)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(expected, headers, strict=True)), headers
    assert "What is 1+1?" in text
    assert "\x1b" not in ended.out


def test_the_same_seed_plays_the_same_text_and_another_does_not(ramet, keys: list[str], tmp_path: Path) -> None:
    played = [
        SECONDS.sub("", ramet("play", "1+1?", *keys, *more, cwd=tmp_path).out) for more in ([], [], ["run.seed=8"])
    ]
    assert played[0] == played[1] != played[2]


def test_several_rollouts_are_told_apart(ramet, keys: list[str], tmp_path: Path) -> None:
    ended = ramet("play", "1+1?", "--n", "3", *keys, cwd=tmp_path)
    stops = [line for line in ended.out.splitlines() if "stop: end" in line]
    assert [stop.partition(", ")[0] for stop in stops] == ["rollout 0", "rollout 1", "rollout 2"]


def test_lines_are_questions_and_one_that_is_too_long_costs_nothing_else(
    keys: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """Each has the text that it has alone, since its seeds are the same."""
    long = "long " * 20
    ended = play(*keys, environment=environment, cwd=tmp_path, questions=f"one\n\n{long}\ntwo")
    assert ended.returncode == 0, ended.stderr
    [error] = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert re.fullmatch(
        r"error: data\.max_prompt_tokens=64: the question makes a prompt of \d+ tokens, and training leaves out what "
        r"is longer; raise it, or ask for less",
        error,
    )
    assert ended.stdout.count("stop: end") == 2 and ended.stdout.count("prompt: ") == 1
    alone = play("two", *keys, environment=environment, cwd=tmp_path)
    sampled = SECONDS.sub("", alone.stdout[alone.stdout.index("turn 1, ") :])
    assert SECONDS.sub("", ended.stdout).endswith(sampled)


def at_a_terminal(lines: bytes, keys: list[str], environment: dict[str, str], folder: Path, *, code: int = 0) -> str:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(sys.executable, [sys.executable, "-m", "ramet", "play", *keys], {**environment, "TERM": "xterm"})
    seen = b""
    os.write(terminal, lines)
    while True:
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # the other side is closed
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code, seen
    return seen.decode().replace("\r\n", "\n")


def test_a_terminal_is_asked_and_gets_colours(keys: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    text = at_a_terminal(b"one\n\x04", keys, environment, tmp_path)
    assert "> " in text and "\x1b[1m" in text and "\x1b[36m<result>" in text  # bold headers, inserted text in cyan
    assert re.search(r"stop: end; \d turns, \d tool calls?; ", COLOUR.sub("", text))


def test_at_a_terminal_each_line_continues_the_conversation(
    keys: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """Until it is too long, which ends nothing: `/new` begins another one, whose question has the text it has alone."""
    limits = ["data.max_prompt_tokens=128", "rollout.max_response_tokens=48"]
    lines = f"one\ntwo\n{'long ' * 20}\n/new\none\n/quit\nthree\n"
    text = COLOUR.sub("", at_a_terminal(lines.encode(), [*keys, *limits], environment, tmp_path))
    played = re.findall(r"^stop: .*tokens: (\d+) prompt, (\d+) sampled, (\d+) inserted", text, re.MULTILINE)
    first, second, again = ([int(number) for number in numbers] for numbers in played)
    assert first == again
    assert second[0] >= sum(first) + len("two")
    assert text.count(f"prompt: {second[0]} tokens, with the conversation so far\n") == 1
    assert re.search(
        r"error: data\.max_prompt_tokens=128: the conversation with this question makes a prompt of \d+ tokens, and "
        r"training leaves out what is longer; raise it, or begin another conversation with /new\n",
        text,
    )


def test_a_question_that_infrastructure_failed_is_left_out_of_the_conversation(
    keys: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    late = ["tools.e2e_digest.timeout_s=0.001", "tools.e2e_digest.retries=0"]
    environment = {**environment, "E2E_LATENCY_S": "inf"}
    text = COLOUR.sub("", at_a_terminal(b"one\none\n/quit\n", [*keys, *late], environment, tmp_path, code=2))
    prompts = re.findall(r"^stop: fault; .*tokens: (\d+) prompt", text, re.MULTILINE)
    assert len(prompts) == 2 and prompts[0] == prompts[1]
    assert "with the conversation so far" not in text


def test_a_reader_that_goes_away_breaks_nothing(keys: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "ramet", "play", "one", *keys])
    piped = ["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"]
    done = subprocess.run(piped, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert re.fullmatch(r"prompt: \d+ tokens\n0\n", done.stdout), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["what", "is", "it"], "play: .* 3: 'what', 'is', 'it'; "),
        (["one", "--n", "0"], r"--n 0: .* rollout\.max_concurrent=256$"),
        (["one", "run.name=x"], r"run\.name: "),
        (["one", "rollout.group_size=2"], r"rollout\.group_size: .* set --n$"),
        (["one", "policy.lr=1"], r"policy\.lr: .* 'policy' "),
        (["one", "tools=[e2e_digst]"], "tools: no 'e2e_digst'.*'e2e_digest'"),
    ],
)
def test_mistakes_are_met_before_anything_starts(
    ramet, keys: list[str], tmp_path: Path, words: list[str], said: str
) -> None:
    ended = ramet("play", *keys, *words, cwd=tmp_path)
    [error] = ended.errors
    assert (ended.code, ended.out) == (1, "") and re.match(said, error)


def test_a_rollout_that_infrastructure_failed_is_told_and_is_exit_code_2(
    ramet, keys: list[str], tmp_path: Path
) -> None:
    keys = [*keys, "tools.e2e_digest.timeout_s=0.001", "tools.e2e_digest.retries=0"]
    ended = ramet("play", "one", *keys, cwd=tmp_path, E2E_LATENCY_S="inf")
    assert ended.code == 2
    assert "result of e2e_digest: failed after" in ended.out
    assert re.search(r"^masked: tool:e2e_digest: .*\nstop: fault; 1 turn, 1 tool call; ", ended.out, re.MULTILINE)


def test_defaults_fit_themselves_to_a_small_model(ramet, keys: list[str], tmp_path: Path) -> None:
    """2,048 tokens of a prompt and 4,096 of a response are more than the model's positions; this prompt is not."""
    defaults = [key for key in keys if "max_prompt_tokens" not in key and "max_response_tokens" not in key]
    ended = ramet("play", "1+1?", *defaults, cwd=tmp_path)
    assert ended.code == 0, ended.err
    long = ramet("play", "long " * 300, *defaults, cwd=tmp_path)
    assert long.code == 1
    [error] = long.errors
    assert re.fullmatch(
        r"the question makes a prompt of \d+ tokens, and model and engine have room for 256 with the response; "
        r"ask for less",
        error,
    )
