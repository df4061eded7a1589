"""The agent `command` against programs that fail, flood, linger, and write results that nobody can read."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import ConfigError, InfraError
from ramet.rollout.agents import command
from ramet.rollout.agents.command import CommandAgent, ProgramFailed, filled, read_result
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.config import CommandConfig, RandomBranchConfig
from ramet.types import AgentStatus, Rollout, StopReason

ASK = """
import json, os, subprocess, sys, time, urllib.request
def ask():
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    body = json.dumps({"messages": [{"role": "user", "content": "?"}]}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]
"""
Run = Callable[..., Rollout]


@pytest.fixture
def run(play: Callable[..., Any]) -> Run:
    """One rollout of a program in Python, whose policy writes `four`."""

    def rollout(code: str, *arguments: str, deadline_s: float = 60, **options: Any) -> Rollout:
        options.setdefault("result", "file" if "RAMET_RESULT" in code else "output")
        agent = CommandAgent(CommandConfig(argv=[sys.executable, "-c", ASK + code, *arguments], **options))
        (only,) = play(lambda *key: "four", step=agent, tools={}, group_size=1, deadline_s=deadline_s).rollouts
        return only  # type: ignore[no-any-return]

    return rollout


def fault(rollout: Rollout) -> str:
    assert rollout.fault is not None
    return f"{rollout.fault.where}: {rollout.fault.message}"


def crash(rollout: Rollout) -> str:
    assert rollout.valid and rollout.answer is None and rollout.turn_rewards == (0.0,)
    return str(rollout.infos[-1]["error"])


def is_gone(pid: int, within_s: float = 5) -> bool:
    """Whether a process has ended; a zombie has."""
    ends_at = time.monotonic() + within_s
    while time.monotonic() < ends_at:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_standard_output_is_the_answer(run: Run) -> None:
    rollout = run("print(ask())")
    assert (rollout.answer, rollout.stop, rollout.valid) == ("four", StopReason.ANSWER, True)


def test_a_tool_of_the_program_cannot_write_its_result(run: Run) -> None:
    """A policy that has a shell would choose its reward, or be masked."""
    forged = "open('.ramet_result.json', 'w').write('{\"reward\": 1000}'); assert 'RAMET' + '_RESULT' not in os.environ"
    rollout = run(f"{forged}; print(ask())")
    assert (rollout.answer, rollout.turn_rewards) == ("four", (None,))


def test_no_output_is_no_answer(run: Run) -> None:
    rollout = run("ask(); print(' ')")
    assert (rollout.answer, rollout.stop, rollout.valid) == (None, StopReason.DONE, True)


def test_a_result_file_goes_before_the_output(run: Run) -> None:
    result = {"answer": "4", "reward": 0.5, "info": {"n": 1}, "status": "done"}
    rollout = run(f"ask(); print('5'); open(os.environ['RAMET_RESULT'], 'w').write({json.dumps(result)!r})")
    assert (rollout.answer, rollout.turn_rewards, rollout.infos) == ("4", (0.5,), ({"n": 1},))


def test_exit_code_75_is_an_outage_with_what_the_program_said(run: Run) -> None:
    said = fault(run("ask(); sys.stderr.write('noise ' * 9999 + 'the index is away'); sys.exit(75)"))
    assert said.startswith("agent: the program reported an outage (exit code 75): ")
    assert said.endswith("the index is away") and len(said) < 2100


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit('it broke')", 1), ("print('it broke', file=sys.stderr, flush=True); os.abort()", -6)]
)
def test_another_exit_code_is_a_crash_with_what_the_program_said(run: Run, end: str, code: int) -> None:
    said = crash(run(f"ask(); print('five', flush=True); {end}"))
    assert f"ended with exit code {code}: it broke" in said


def test_a_crash_before_the_first_request_is_nothing_to_train(run: Run) -> None:
    assert "without a complete request to the policy: ProgramFailed: the program ended with exit code 1: no" in fault(
        run("sys.exit('no module')")
    )


def test_much_output_is_read_and_cut(run: Run) -> None:
    rollout = run("ask(); print('x' * 10_000_000); sys.stderr.write('y' * 10_000_000)")
    assert rollout.answer is not None and len(rollout.answer) == command.MOST_OUTPUT


def test_a_program_that_takes_too_long_crashes_and_is_gone(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = (
        f"ask(); open({str(file)!r}, 'w').write(str(os.getpid())); print('busy', file=sys.stderr); sys.stderr.flush()"
    )
    said = crash(run(f"{code}; time.sleep(60)", timeout_s=8.0))
    assert "did not end within rollout_step.params.timeout_s=8: busy" in said
    assert is_gone(int(file.read_text()))


LINGERS = "import time; time.sleep(60)"
START = f"child = subprocess.Popen([sys.executable, '-c', {LINGERS!r}], start_new_session=True)"


def test_a_child_in_a_session_of_its_own_is_killed(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    began = time.monotonic()
    rollout = run(f"ask(); {START}; open({str(file)!r}, 'w').write(str(child.pid)); print('done')")
    assert rollout.answer == "done" and is_gone(int(file.read_text())) and time.monotonic() - began < 30


def test_a_child_that_hides_and_keeps_the_output_open_holds_nothing_up(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without the rollout's variables in a session of its own cannot be found."""
    monkeypatch.setattr(command, "READ_S", 0.2)
    file = tmp_path / "pid"
    start = START.replace("start_new_session=True", "start_new_session=True, env={}")
    began = time.monotonic()
    try:
        rollout = run(f"ask(); {start}; open({str(file)!r}, 'w').write(str(child.pid)); print('done')")
        assert rollout.answer == "done" and time.monotonic() - began < 30
    finally:
        os.kill(int(file.read_text()), 9)


def test_a_deadline_kills_all(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    pids = f"open({str(file)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')"
    said = fault(run(f"{START}; {pids}; time.sleep(60)", deadline_s=8.0))
    assert said.startswith("deadline: ")
    assert all(is_gone(int(pid)) for pid in file.read_text().split())


def test_a_program_whose_fork_differs_is_killed_at_once(play: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "pids"
    body = "{'messages': [{'role': 'user', 'content': str(os.getpid())}]}"
    code = (
        ASK.replace('{"messages": [{"role": "user", "content": "?"}]}', body)
        + f"""
{START}
open({str(file)!r}, 'a').write(f'{{os.getpid()}} {{child.pid}}\\n')
try:
    ask()
    print(ask())
except OSError:
    time.sleep(60)
"""
    )
    agent = CommandAgent(CommandConfig(argv=[sys.executable, "-c", code], forks="replay"))
    policy = RandomBranching(RandomBranchConfig(initial_rollouts=1, probability=1.0))
    began = time.monotonic()
    played = play(lambda *key: "four", step=agent, policy=policy, tools={}, group_size=2)
    assert time.monotonic() - began < 30
    root, fork = played.rollouts
    assert root.answer == "four" and "state:agent: run again, the agent made another request" in fault(fork)
    assert all(is_gone(int(pid)) for pid in file.read_text().split())


def test_a_program_that_is_not_there_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "agent.sh").write_text("#!/bin/sh\necho four\n")
    for options, said in [
        ({"argv": []}, "argv=[]: give a program"),
        ({"argv": ["no-such-program"]}, "no program 'no-such-program'"),
        ({"argv": ["sh", "{result}"]}, "argv names {result}, which is read only with result=file"),
        ({"argv": ["./agent.sh"], "folder": str(tmp_path)}, "agent.sh"),  # nobody may execute it
        ({"argv": ["sh"], "folder": str(tmp_path / "none")}, "there is no such folder"),
        ({"argv": ["sh"], "env": {"PATH": str(tmp_path)}}, f"no program 'sh' (PATH={tmp_path})"),
    ]:
        with pytest.raises(ConfigError) as caught:
            CommandAgent(CommandConfig(**options))  # type: ignore[arg-type]
        assert said in str(caught.value)


def test_a_name_that_is_not_filled_in_is_refused_before_the_start() -> None:
    with pytest.raises(ConfigError) as caught:
        CommandAgent(CommandConfig(argv=[sys.executable, "agent.py", "--ask={qestion}", "{task}"]))
    assert str(caught.value) == (
        "rollout_step.params.argv: {qestion} is not filled in; allowed: {question}, {task}, {result}, {folder}, "
        "{base_url}, {key}, {model}; {{qestion}} gives the program the text {qestion}"
    )


def test_a_program_of_the_folder_is_found_there(play: Callable[..., Any], tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(f"#!{sys.executable}\n{ASK}\nprint(ask(), os.getcwd())\n")
    program.chmod(0o755)
    agent = CommandAgent(CommandConfig(argv=["./agent.py"], folder=str(tmp_path)))
    (rollout,) = play(lambda *key: "four", step=agent, tools={}, group_size=1).rollouts
    assert rollout.answer == f"four {tmp_path}"


def test_a_program_that_cannot_be_started_masks(play: Callable[..., Any], tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    agent = CommandAgent(CommandConfig(argv=[str(program)]))
    program.unlink()
    (rollout,) = play(lambda *key: "four", step=agent, tools={}, group_size=1).rollouts
    assert fault(rollout).startswith(f"agent: the program {str(program)!r} cannot be started: ")


def test_the_program_gets_the_task_without_gold_answers_and_few_variables(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    file = tmp_path / "seen"
    seen = "json.dumps([dict(os.environ), sys.argv[1:], os.getcwd(), os.listdir()])"
    code = f"ask(); open({str(file)!r}, 'w').write({seen})"
    names = ["{question}", "{task}", "{result}", "{folder}", "{base_url}", "{key}", "{model}", "{{other}} ${HOME} {"]
    task = "; print(open(os.environ['RAMET_TASK']).read())"
    rollout = run(code + task, *names, env={"MINE": "1"}, result="file")
    assert json.loads(rollout.answer or "") == {
        "id": "t",
        "question": "What is 2+2?",
        "prompt": [{"role": "user", "content": "What is 2+2?"}],
        "data_source": rollout.task.data_source,
        "metadata": {},
    }
    env, arguments, cwd, files = json.loads(file.read_text())
    assert arguments == [
        "What is 2+2?", env["RAMET_TASK"], env["RAMET_RESULT"], env["RAMET_FOLDER"], env["OPENAI_BASE_URL"],
        env["OPENAI_API_KEY"], "policy", "{other} ${HOME} {",
    ]  # fmt: skip
    assert env["MINE"] == "1" and "SECRET_OF_THE_HOST" not in env
    assert cwd == env["RAMET_FOLDER"] and files == [] and not Path(cwd).exists()


def test_what_is_filled_in_is_not_filled_in_again() -> None:
    assert filled("{question}, {key}, {x}", {"question": "{key}", "key": "k"}) == "{key}, k, {x}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the result is not JSON"),
        ("{", "the result is not JSON"),
        ("\xff", "the result is not JSON"),
        ("[" * 100_000, "the result is not JSON"),
        ('"four"', "the result is 'four'; write a JSON object with some of answer, reward, info, status"),
        ('{"answers": 4}', "unknown keys: answers; allowed: answer, reward, info, status"),
        ('{"answer": 4}', "answer of the result is 4: give a string"),
        ('{"answer": "\\ud800"}', "cannot be recorded: half of a surrogate pair"),
        ('{"reward": "1"}', "reward of the result is '1': give a finite number"),
        ('{"reward": true}', "reward of the result is True"),
        ('{"reward": NaN}', "cannot be recorded: NaN or an infinite number"),
        ('{"reward": 1e39}', "reward of the result is 1e+39"),
        (f'{{"reward": {10**400}}}', "reward of the result is 1000"),
        ('{"info": []}', "info of the result is not a JSON object (it is list)"),
        ('{"info": "x"}', "info of the result is not a JSON object"),
        ('{"info": ' + '{"a":' * 300 + "1" + "}" * 301, "cannot be recorded: is too deep"),
        ('{"status": "ok"}', "status of the result is 'ok'; allowed: done, failed, infra"),
        ('{"status": ["done"]}', "status of the result is ['done']"),
        ('{"answer": "' + "x" * (1 << 20) + '"}', "the result has more than 1 MiB"),
    ],
)
def test_a_result_that_cannot_be_read_is_a_crash_that_says_why(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ProgramFailed) as caught:
        read_result(file, "five")
    assert said in str(caught.value)


def test_results_that_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    assert read_result(file, " five\n").answer == "five"
    file.write_text("{}")
    assert (read_result(file, "five").answer, read_result(file, "five").status) == (None, AgentStatus.DONE)
    file.write_text('{"answer": null, "reward": null, "info": null, "status": null}')
    assert read_result(file, "").info == {}
    file.write_text('{"status": "failed", "reward": 1}')
    assert (read_result(file, "").reward, read_result(file, "").status) == (1, AgentStatus.FAILED)
    file.write_text('{"status": "infra", "info": {"why": "the index is away"}}')
    with pytest.raises(InfraError, match="the index is away"):
        read_result(file, "")


def test_a_result_file_that_is_huge_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    with file.open("wb") as opened:
        opened.truncate(1 << 36)
    with pytest.raises(ProgramFailed, match="more than 1 MiB"):
        read_result(file, "")
