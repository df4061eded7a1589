"""The guides install, supported, memory, tuning, one_gpu, troubleshooting: commands compose, numbers are the code's."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ramet.config.compose import compose
from ramet.config.schema import Config
from ramet.planning.memory import Inputs, estimate
from ramet.planning.memory_sft import plan_sft_memory
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import machine_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("install", "supported", "memory", "tuning", "one_gpu", "troubleshooting")
}
FENCES = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYPROJECT = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
JOBS = ("train", "sft", "eval", "play", "check-logprobs")


def commands() -> list[str]:
    text = "\n".join(block for page in PAGES.values() for _, block in FENCES.findall(page)).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip().startswith("ramet ")]


def of_jobs() -> list[str]:
    """Commands with keys. Those of the page's own plugin need it, and one has a place that the reader fills."""
    return [c for c in commands() if c.split()[1] in JOBS and "weather" not in c and "…" not in c]


@pytest.mark.parametrize("command", of_jobs())
def test_a_command_of_a_guide_composes(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    job, *words = shlex.split(command, comments=True)[1:]
    keys = [word for word in words if re.match(r"[a-z_.]+=", word)]
    assert compose([*keys], job={"check-logprobs": "train"}.get(job, job))


def test_there_are_commands_of_all_jobs() -> None:
    assert {command.split()[1] for command in of_jobs()} >= {"train", "eval", "play"}


def test_keys_that_the_guides_name_exist() -> None:
    sections = {field.name: field.default_factory for field in dataclasses.fields(Config)}
    text = "\n".join(PAGES.values())
    named = set(re.findall(r"`(cluster|policy|train|model|rollout|run|sft|data|evaluate)\.(?!log`)(\w+)[=`]", text))
    assert len(named) > 30
    for section, key in named:
        factory = sections[section]
        assert callable(factory) and hasattr(factory(), key), f"{section}.{key}"


def test_the_tool_of_the_first_multi_turn_run_answers(tmp_path: Path) -> None:
    ((name, code),) = re.findall(r"^`(\w+\.py)`\n\n```python\n(.*?)^```", PAGES["one_gpu"], re.MULTILINE | re.DOTALL)
    (tmp_path / name).write_text(code)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "RAMET_PLUGINS": name.removesuffix(".py"), "PYTHONPATH": path}
    words = shlex.split(next(command for command in commands() if command.startswith("ramet tool call weather")))
    ran = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "17 degrees"), ran.stderr


def test_the_retriever_of_the_page_answers_the_tool(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    ((name, code),) = re.findall(r"^`(\w+\.py)`\n\n```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / name).write_text(code)
    passages = [("Canada", "The capital of Canada is Ottawa."), ("Peru", "Lima is on the coast.")]
    lines = "".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in passages)
    (tmp_path / "passages.jsonl").write_text(lines)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, name, "passages.jsonl", str(port)], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(port)
        keys = ("provider=retrieval", f"url=http://127.0.0.1:{port}", "when_down=mask", "max_results=1", "cache=off")
        words = [
            "ramet",
            "tool",
            "call",
            "search",
            "capital of Canada",
            *(f"tools.search.params.{key}" for key in keys),
        ]
        ran = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    finally:
        server.kill()
        server.wait()
    assert ran.returncode == 0 and "Ottawa" in ran.stdout and "Lima" not in ran.stdout, ran.stderr


def wait_for(port: int) -> None:
    """Wait until a server listens there, 30 s at most."""
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"nothing listens on port {port}")


def script() -> ModuleType:
    spec = util.spec_from_file_location("memory_table", ROOT / "scripts" / "memory_table.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_row_of_the_memory_table_is_that_of_the_plan(tmp_path: Path) -> None:
    assert script().row("Qwen2.5-0.5B", tmp_path) in PAGES["memory"].splitlines()


def test_every_model_of_the_script_has_a_row() -> None:
    assert re.findall(r"^\| (Qwen\S+) \|", PAGES["memory"], re.MULTILINE) == list(script().SHAPES)


def test_needs_of_the_recipes_for_one_gpu_are_those_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    rows = re.findall(
        r"^\| `(\w[\w.]+)`.*? \| `Qwen/(\S+)-Instruct` \|.*\| ([\d.]+) \|$", PAGES["one_gpu"], re.MULTILINE
    )
    assert len(rows) == 4
    table = script()
    for recipe, model, shown in rows:
        job = recipe.partition("_")[0].replace("arpo", "train")
        config = compose([f"experiment={recipe}", f"model.path={table.folder(model, tmp_path)}"], job=job).config
        assert table.gib(need(config, job)) == shown, recipe


def need(config: Any, job: str) -> int:
    machine = machine_of(config, "1x24GB")
    if job == "sft":
        return int(plan_sft_memory(config, machine).need)  # type: ignore[union-attr]
    return estimate(Inputs(config=config, shape=read_shape(config.model), machine=machine)).need


def test_pins_of_the_image_satisfy_what_the_core_asks_for() -> None:
    pins = dict(re.findall(r" (\w+)==([\d.]+)", (ROOT / "docker" / "Dockerfile.gpu").read_text(encoding="utf-8")))
    needs = [Requirement(text) for extra in PYPROJECT["optional-dependencies"].values() for text in extra]
    wanted = {need.name: need.specifier for need in needs}
    assert set(pins) >= {"torch", "vllm", "transformers", "ray"}
    assert {name: pin for name, pin in pins.items() if not wanted[name].contains(pin)} == {}
    assert SpecifierSet(PYPROJECT["requires-python"]).contains("3.11") and "FROM python:3.11-" in (
        ROOT / "docker" / "Dockerfile.gpu"
    ).read_text(encoding="utf-8")


def test_every_extra_has_a_row() -> None:
    rows = re.findall(r"^\| (`[\w`, -]+`) \|", PAGES["install"], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert set(PYPROJECT["optional-dependencies"]) - {"test"} <= named
