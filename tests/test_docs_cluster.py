"""docs/cluster.md is true as far as a machine without a cluster can say: its scripts run, its commands compose."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ramet.config.compose import compose

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
BLOCKS = re.findall(r"^```([^\n]*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
HOSTS, SLURM = [text for language, text in BLOCKS if language == "bash"]
[MANIFESTS] = [text for language, text in BLOCKS if language == "yaml"]
HEAD = "gpu1:6379"


def commands() -> list[str]:
    """Every `ramet …` of the page, the job's of Kubernetes too, without what the shell adds."""
    text = "\n".join(text for language, text in BLOCKS if language != "yaml").replace("\\\n", " ")
    shell = [line.strip().removesuffix("&").strip() for line in text.splitlines() if line.startswith("ramet ")]
    return [*shell, job()["spec"]["entrypoint"]]


def job() -> dict[str, Any]:
    [found] = [each for each in yaml.safe_load_all(MANIFESTS) if each["kind"] == "RayJob"]
    return found


def pods() -> list[dict[str, Any]]:
    """Specs of the head's and the nodes' pods."""
    cluster = job()["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_composes(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, name, *overrides = shlex.split(command)
    config = compose(overrides, job=name).config
    assert config.cluster.name == "ray" and config.cluster.address and config.run.root == "/shared/runs"


def test_every_pod_has_the_shared_folder_and_the_gpus_are_the_workers_of_the_command() -> None:
    claims = [each["metadata"]["name"] for each in yaml.safe_load_all(MANIFESTS) if each["kind"] != "RayJob"]
    for pod in pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        [container] = pod["containers"]
        assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
            "shared": "/shared",
            "shm": "/dev/shm",
        }
        assert [volumes["shared"]["persistentVolumeClaim"]["claimName"]] == claims
        assert container["resources"]["limits"] == container["resources"]["requests"]
    [group] = job()["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    gpus = group["replicas"] * int(pods()[1]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert f"cluster.policy_workers={gpus} cluster.rollout_workers={gpus}" in commands()[-1]


def test_the_versions_of_ray_are_those_of_the_image() -> None:
    [pinned] = re.findall(r" ray==([\d.]+)", (ROOT / "docker" / "Dockerfile.gpu").read_text())
    assert f'"ray[default]=={pinned}"' in PAGE
    assert job()["spec"]["rayClusterSpec"]["rayVersion"] == pinned


def test_the_script_for_slurm_is_bash() -> None:
    assert SLURM.startswith("#!/bin/bash\n#SBATCH ")
    ran = subprocess.run(["bash", "-n"], input=SLURM, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stderr


def test_the_script_for_hosts_starts_joins_and_stops_ray_with_its_token(tmp_path: Path) -> None:
    """`ssh HOST COMMAND` and Ray are programs here that write down what they are given."""
    shared, programs, log = tmp_path / "folder", tmp_path / "programs", tmp_path / "log"
    (shared / "env/bin").mkdir(parents=True)
    programs.mkdir()
    for path, body in (
        (programs / "ssh", f'echo "on $1" >>{log}; shift; exec "$@"'),
        (shared / "env/bin/ray", f'echo "$RAY_AUTH_MODE $(cat "$RAY_AUTH_TOKEN_PATH") $*" >>{log}'),
    ):
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    script = tmp_path / "cluster.sh"
    script.write_text(HOSTS.replace("shared=/shared ", f"shared={shared} "))

    def run(*arguments: str) -> list[str]:
        log.write_text("")
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        subprocess.run(["bash", str(script), *arguments], check=True, env=environment)
        return log.read_text().splitlines()

    quiet = "--disable-usage-stats"
    started = run("start")
    token = (shared / "ray-token").read_text().strip()
    assert len(token) == 64 and (shared / "ray-token").stat().st_mode & 0o077 == 0
    assert started == [
        "on gpu1",
        f"token {token} start --head --port=6379 {quiet}",
        "on gpu2",
        f"token {token} start --address={HEAD} {quiet}",
    ]
    assert run("join", "gpu3") == ["on gpu3", f"token {token} start --address={HEAD} {quiet}"]
    assert run("stop") == ["on gpu1", f"token {token} stop", "on gpu2", f"token {token} stop"]
    assert run("start")[1] == started[1], "the token stays"
    wrong = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert wrong.returncode == 1 and wrong.stderr == "# cluster.sh start | join HOST | stop\n"
