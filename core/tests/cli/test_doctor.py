"""`ramet doctor`: findings of the core and of packages, and how each is fixed."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ramet.cli import main
from ramet.config.compose import compose
from ramet.doctor import host, job
from ramet.doctor.job import examine
from ramet.plugins.extensions import DOCTOR, ExtensionEntry
from ramet.types import DoctorContext, Finding, Severity

OF_RUNS = {"rollouts": [], "page": None, "name": None}  # fields that findings about a run have


class Check:
    """An entry point that is not installed."""

    group = DOCTOR

    def __init__(self, check: Any) -> None:
        self.check = check

    def load(self) -> Any:
        if isinstance(self.check, ImportError):
            raise self.check
        return self.check


def healthy(context: DoctorContext) -> Iterable[Finding]:
    yield Finding(what="cache", severity=Severity.OK, text="12 entries")


def ill(context: DoctorContext) -> Iterable[Finding]:
    text = f"the key {context.options['tools.mcp'].env['KEY']} is refused"
    yield Finding(what="key", severity=Severity.PROBLEM, text=text, fix="export KEY=…")


async def slow(context: DoctorContext) -> list[Finding]:
    return [Finding(what="network", severity=Severity.NOTE, text=f"offline: {context.offline}")]


def broken(context: DoctorContext) -> Iterable[Finding]:
    raise KeyError("zone")


def offer(monkeypatch: pytest.MonkeyPatch, **checks: Any) -> None:
    entries = [ExtensionEntry(name, f"ramet-{name}", Check(check)) for name, check in checks.items()]  # type: ignore[arg-type]
    monkeypatch.setattr(job.extensions, "extensions", lambda group: entries if group == DOCTOR else [])
    monkeypatch.setattr(job, "check_host", lambda config: [Finding(what="disk", severity=Severity.OK, text="much")])


def test_packages_are_asked_one_after_the_other_and_none_stops_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(
        monkeypatch, healthy=healthy, broken=broken, slow=slow, gone=ImportError("no module 'x'"), odd=lambda _: ["x"]
    )
    assert main(["doctor", "--offline"]) == 1
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:6] == [
        "ramet",
        "  ok       disk     much",
        "healthy (ramet-healthy)",
        "  ok       cache    12 entries",
        "broken (ramet-broken)",
        lines[5],
    ]
    assert lines[5].startswith("  problem  doctor   the check itself failed: KeyError: 'zone' (")
    assert lines[6:] == [
        "                    fix: report it to the authors of ramet-broken",
        "slow (ramet-slow)",
        "  note     network  offline: True",
        "gone (ramet-gone)",
        "  problem  doctor   doctor 'gone' of ramet-gone: ImportError: no module 'x'",
        "                    fix: report it to the authors of ramet-gone",
        "odd (ramet-odd)",
        "  problem  doctor   the check itself failed: TypeError: returned 'x', which is not a Finding",
        "                    fix: report it to the authors of ramet-odd",
        "2 ok, 1 note, 3 problem",
    ]


def test_the_mcp_servers_of_a_run_are_started_and_say_why_they_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcp", reason="needs ramet[mcp]")
    offer(monkeypatch)
    keys = [f"tools.{name}.use=mcp" for name in ("well", "ill")]
    counter = Path(__file__).parents[1] / "rollout/mcp_counter.py"
    keys += [f"tools.well.params.command=['{sys.executable}','{counter}']", "tools.well.params.tools=[add,read]"]
    keys += [f"""tools.ill.params.command=['{sys.executable}','-c','import sys; sys.exit("no key given")']"""]
    assert main(["doctor", "--json", *keys]) == 1
    [well, ill] = json.loads(capsys.readouterr().out)[0]["findings"][-2:]
    assert (well["what"], well["severity"], well["text"]) == ("tools.well", "ok", "the MCP server offers: add, read")
    assert (ill["what"], ill["severity"]) == ("tools.ill", "problem")
    assert ill["text"].startswith(f"MCP server tools.ill ({sys.executable} -c ")
    assert ill["text"].endswith("; it said: no key given")
    assert main(["doctor", "--offline", *keys]) == 0
    assert capsys.readouterr().out.count("the MCP server was not started (--offline)") == 2
    assert main(["tool", "call", "x", "{}", keys[1], keys[-1]]) == 2
    assert f"MCP server tools.ill ({sys.executable} -c " in capsys.readouterr().err


def test_a_check_sees_the_options_of_the_run_and_prints_no_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCTORS_SECRET", "abcdefgh12345678")
    offer(monkeypatch, ill=ill)
    keys = ["tools=[mcp]", "tools.mcp.params.command=[x]", "tools.mcp.params.env.KEY='${oc.env:DOCTORS_SECRET}'"]
    assert main(["doctor", "--json", *keys]) == 1
    (_, found) = json.loads(capsys.readouterr().out)
    (finding,) = found["findings"]
    assert finding == {
        "what": "key",
        "severity": "problem",
        "text": "the key ${oc.env:DOCTORS_SECRET} is refused",
        "fix": "export KEY=…",
        **OF_RUNS,
    }


def test_json_is_a_list_of_packages_and_the_exit_code_says_whether_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(monkeypatch, healthy=healthy)
    assert main(["doctor", "--offline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "core",
            "distribution": "ramet",
            "findings": [{"what": "disk", "severity": "ok", "text": "much", "fix": None} | OF_RUNS],
        },
        {
            "name": "healthy",
            "distribution": "ramet-healthy",
            "findings": [{"what": "cache", "severity": "ok", "text": "12 entries", "fix": None} | OF_RUNS],
        },
    ]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--nonsense", "unrecognized arguments: --nonsense; see `ramet doctor --help`"),
        ("words", "no run 'words'"),
        ("trian.steps=1", "trian.steps: no such key"),
        ("train.steps=0", None),  # a key of another job says nothing of this machine
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argument: str, said: str | None
) -> None:
    offer(monkeypatch, healthy=healthy)
    code = main(["doctor", "--json", argument])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "") if said else code == 0
    assert err.startswith(f"error: {said}") if said else err == ""


def test_what_the_cores_own_checks_find_is_hidden_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(monkeypatch)
    found = Finding(what="cluster", severity=Severity.PROBLEM, text="ray://me:p@ss@head: gone", fix="ask me:x")
    monkeypatch.setattr(job, "check_host", lambda config: [found])
    assert main(["doctor"]) == 1
    assert "ray://me:***@head: gone" in capsys.readouterr().out


def test_options_without_a_configured_component_are_the_defaults() -> None:
    context = DoctorContext(options={"tools.a": 1, "tools.b": "x"})
    assert context.configured(int, "tools.c") == {"tools.a": 1}
    assert context.configured(float, "tools.c") == {"tools.c": 0.0}


def test_the_cores_own_checks_find_a_small_disk_and_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        total = free = 1 << 29

    monkeypatch.setattr(host.shutil, "disk_usage", lambda _: Usage)
    monkeypatch.setattr(host, "SHARED", host.Path("/"))
    mcp = ["tools.clock.use=mcp", "tools.clock.params.command=[no-such-program]"]
    resolved = compose(["cluster=ray", "engine=torch", "model.path=''", *mcp], job="doctor")
    found = {one.what: one for one in host.check_host(resolved.config)}
    assert found["versions"].severity is Severity.OK
    assert (found["runs"].severity, found["runs"].fix) == (
        Severity.WARNING,
        "make room, or set run.root to a folder on a larger disk",
    )
    assert found["tools.clock"] == Finding(
        what="tools.clock",
        severity=Severity.PROBLEM,
        text="there is no program 'no-such-program'",
        fix="install it, or correct tools.clock.params.command",
    )
    assert (found["shared memory"].severity, found["shared memory"].text) == (Severity.WARNING, "0.5 GiB in /")


@pytest.mark.parametrize(
    ("driver", "engine", "severity"),
    [
        ("570.86.15", "vllm", Severity.PROBLEM),
        ("570.86.15", "torch", Severity.NOTE),
        ("580.65.06", "vllm", Severity.OK),
    ],
)
def test_a_driver_that_is_too_old_for_vllm_is_told(
    driver: str, engine: str, severity: Severity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho {driver}\necho {driver}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (found,) = host._driver(compose(["model.path=m", f"engine={engine}"], job="train").config)
    assert found.severity is severity and found.text.startswith(f"NVIDIA {driver}")
    assert ("580 or later" in found.text) == (severity is not Severity.OK)


@pytest.mark.parametrize(
    ("listed", "visible", "cuda", "severity", "text"),
    [
        ("GPU 0: H100 (UUID: x)", "", "13.0", Severity.NOTE, "CUDA_VISIBLE_DEVICES='' hides the GPUs"),
        (
            "GPU 0: H100 (UUID: x)",
            "7",
            "13.0",
            Severity.PROBLEM,
            "correct CUDA_VISIBLE_DEVICES=7, or install the build",
        ),
        ("GPU 0: H100 (UUID: x)", "0", None, Severity.PROBLEM, "built without CUDA"),
        ("No devices found.", "0", None, Severity.NOTE, "no GPU (nvidia-smi -L lists none)"),
    ],
)
def test_torch_without_a_gpu_is_a_problem_if_the_driver_lists_one_that_is_not_hidden(
    listed: str, visible: str, cuda: str | None, severity: Severity, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="needs ramet[train]")
    monkeypatch.setattr(host, "_said_by_driver", lambda *options: listed)
    monkeypatch.setattr(host.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = next(one for one in host._torch() if one.what == "torch")
    assert found.severity is severity and text in f"{found.text} {found.fix}"


def test_an_mcp_program_that_is_missing_is_reported_once() -> None:
    pytest.importorskip("mcp", reason="needs ramet[mcp]")
    keys = ["model.path=''", "engine=torch", "tools.clock.use=mcp", "tools.clock.params.command=[no-such-program]"]
    core = examine(compose(keys, job="doctor"), offline=False)[0]
    assert [one.text for one in core.findings if one.what == "tools.clock"] == ["there is no program 'no-such-program'"]


def test_a_broken_plugin_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    class Info:
        name, distribution, broken = "weather", "ramet-weather", "ImportError:\n no module"

    class Plugins:
        infos = (Info,)

    offer(monkeypatch)
    monkeypatch.setattr(job, "load_plugins", lambda: Plugins)
    (core,) = examine(compose(["model.path=''"], job="doctor"), offline=True)
    assert core.findings[-1] == Finding(
        what="plugin weather",
        severity=Severity.PROBLEM,
        text="ImportError: no module",
        fix="pip install --upgrade ramet-weather, or leave it out: RAMET_BLOCK_PLUGINS=weather",
    )


@pytest.mark.parametrize(
    ("keys", "asked"),
    [([], ["mine"]), (["tools=[mine]"], ["mine"]), (["tools=[other]", "tools.other.use=mine"], ["mine"]),
     (["tools=[theirs]"], [])],
)  # fmt: skip
def test_a_package_of_which_a_run_with_tools_uses_none_is_left_out(
    keys: list[str], asked: list[str], monkeypatch: pytest.MonkeyPatch, register: Callable[..., None]
) -> None:
    for name in ("mine", "theirs"):
        register("tools", name, dict, distribution=f"ramet-{name}")
    offer(monkeypatch, mine=healthy)
    found = examine(compose(["model.path=''", *keys], job="doctor"), offline=True)
    assert [one.name for one in found] == ["core", *asked]


@pytest.mark.parametrize("kind", ["tools", "rewards"])
def test_a_package_is_left_out_of_a_run_that_chooses_only_others(
    kind: str, monkeypatch: pytest.MonkeyPatch, register: Callable[..., None]
) -> None:
    register(kind, "mine", dict, distribution="ramet-mine")
    offer(monkeypatch, mine=healthy)
    others = "rewards=[environment]"
    for keys, asked in ([others], []), ([others, f"{kind}.other.use=mine"], ["mine"]), ([], ["mine"]):
        found = examine(compose(["model.path=''", *keys], job="doctor"), offline=True)
        assert [one.name for one in found] == ["core", *asked]


def test_what_a_component_logs_of_its_start_is_not_above_the_findings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def logs(context: DoctorContext) -> Iterable[Finding]:
        logging.getLogger("ramet.tools.mine").info("isolation level 3")
        logging.getLogger("ramet.tools.mine").warning("a warning")
        return []

    offer(monkeypatch, logs=logs)
    with caplog.at_level(logging.INFO, "ramet"):
        examine(compose(["model.path=''"], job="doctor"), offline=True)
        assert caplog.messages == ["a warning"] and logging.getLogger("ramet").level == logging.INFO


def test_a_check_of_before_that_says_mend_is_read() -> None:
    found = Finding(what="key", severity=Severity.PROBLEM, text="not set", mend="export KEY=…")
    assert found.mend == "export KEY=…"
    assert found == Finding(what="key", severity=Severity.PROBLEM, text="not set", fix="export KEY=…")
