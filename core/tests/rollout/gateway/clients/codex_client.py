"""Scenarios of Codex: the command `codex exec`, in a folder and with settings of its own."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from common import QUESTION, main

CODEX = Path(os.environ["RAMET_CLIENT"], "node_modules", ".bin", "codex")
SETTINGS = {
    "model_provider": '"ramet"',
    "model": '"policy"',
    "web_search": '"disabled"',  # tools of OpenAI's own are refused
    "features.multi_agent": "false",
}


def command(url: str, *arguments: str, **settings: str) -> list[str]:
    provider = f'{{name="ramet", base_url="{url}", env_key="OPENAI_API_KEY", wire_api="responses"}}'
    given = SETTINGS | {"model_providers.ramet": provider} | settings
    options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
    unguarded = "--dangerously-bypass-approvals-and-sandbox"  # the commands are those of the test
    return [str(CODEX), "exec", *arguments, "--skip-git-repo-check", unguarded, *options]


def environ(key: str, folder: str) -> dict[str, str]:
    """`PATH` begins with the environment's own node."""
    path = os.pathsep.join((str(Path(os.environ["RAMET_CLIENT"], "bin")), os.environ["PATH"]))
    return os.environ | {"PATH": path, "HOME": folder, "CODEX_HOME": folder, "OPENAI_API_KEY": key}


def answer(key: str, folder: str, program: list[str]) -> str:
    done = subprocess.run(
        program, env=environ(key, folder), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def responses_stream(url: str, key: str) -> str:
    with TemporaryDirectory() as folder:
        return answer(key, folder, command(url, QUESTION))


def resume(url: str, key: str) -> list[str]:
    """A second process continues the conversation of the first."""
    with TemporaryDirectory() as folder:
        first = answer(key, folder, command(url, QUESTION))
        return [first, answer(key, folder, command(url, "resume", "--last", "Are you sure?"))]


def parallel(url: str, key: str) -> list[str]:
    """Two processes at the same time."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda _: responses_stream(url, key), range(2)))


def retries(url: str, key: str) -> str:
    """The engine fails once; the program tries again."""
    with TemporaryDirectory() as folder:
        return answer(key, folder, command(url, "First?"))


def compaction(url: str, key: str) -> str:
    """The program's own compaction: before its second request it has the policy sum up."""
    with TemporaryDirectory() as folder:
        return answer(key, folder, command(url, QUESTION, model_auto_compact_token_limit="10"))


def agent(url: str, key: str, question: str) -> str:
    """Becomes the program."""
    folder = os.environ["RAMET_FOLDER"]
    os.execve(CODEX, command(url, question), environ(key, folder))


def version(package: str) -> str:
    return subprocess.run(
        [str(CODEX), "--version"], env=environ("", "/"), capture_output=True, text=True, check=True
    ).stdout.split()[-1]


if __name__ == "__main__":
    scenarios = (responses_stream, resume, parallel, retries, compaction)
    main("codex", *scenarios, agent=agent, killed=responses_stream, version=version)
