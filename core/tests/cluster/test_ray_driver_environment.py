"""What a worker takes over from the driver, wherever it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ramet.cluster.ray.driver_environment import DriverEnvironment
from ramet.errors import ConfigErrors


def test_settings_are_given_to_ray_and_secrets_are_not(monkeypatch):
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HF_TOKEN", "SEARCH_API_KEY", "RAY_ADDRESS", "WEATHER"):
        monkeypatch.setenv(name, "1")
    here = DriverEnvironment.capture()
    assert {"OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"} <= set(here.settings)
    assert not {"HF_TOKEN", "SEARCH_API_KEY", "RAY_ADDRESS", "WEATHER"} & set(here.settings)
    assert {"HF_TOKEN", "SEARCH_API_KEY", "WEATHER"} <= set(here.variables)
    assert "RAY_ADDRESS" not in here.variables


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "1"), ("HF_HUB_AUTH", "1"), ("VLLM_DSN", "1"), ("RAMET_DB_PASS", "1"), ("RAMET_DB_PWD", "1"),
        ("TORCH_CREDENTIAL", "1"), ("TORCH_CREDENTIALS", "1"), ("HF_ENDPOINT", "https://me:hunter2@example.org"),
        ("RAMET_JUDGE", "sk-0123456789abcdefghijkl"),
    ],
)  # fmt: skip
def test_secrets_are_known_by_many_names_and_by_their_values(monkeypatch, name: str, value: str):
    monkeypatch.setenv(name, value)
    here = DriverEnvironment.capture()
    assert name not in here.settings and here.variables[name] == value


def test_a_worker_gets_keys_settings_modules_and_folder_and_keeps_what_is_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("SEARCH_API_KEY", "of the driver")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("LOGNAME", "driver")
    driver = replace(DriverEnvironment.capture(), folder=str(tmp_path), sys_path=(str(tmp_path / "plugins"), *sys.path))
    monkeypatch.delenv("SEARCH_API_KEY")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("LOGNAME", "node")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(os.getcwd())
    driver.apply()
    assert (os.environ["SEARCH_API_KEY"], os.environ["OMP_NUM_THREADS"]) == ("of the driver", "3")
    assert os.environ["LOGNAME"] == "node"
    assert sys.path[-1] == str(tmp_path / "plugins")
    assert os.getcwd() == str(tmp_path)
    driver.check("here")


WORKER = """
import logging, os
from ramet.cluster.ray.actor_base import Actor
from ramet.cluster.ray.driver_environment import DriverEnvironment
from ramet.config.compose import compose

os.environ["MY_JUDGE"] = "correct horse"
compose(["model.path=m", "run.root=${oc.env:MY_JUDGE}"], job="train")
driver = DriverEnvironment.capture()
from ramet.config import secrets
secrets._values.clear()  # a worker has composed nothing
actor = Actor(driver, b"", None)
logging.getLogger("library").warning("401 for correct horse \x1b[2J")
print(actor._log.take()[0].text)
"""


def test_a_workers_own_log_shows_no_value_that_the_configuration_took_from_the_environment():
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, timeout=120, check=True)
    logged = r"401 for ${oc.env:MY_JUDGE} \x1b[2J"
    assert (done.stdout, done.stderr) == (f"{logged}\n", f"{logged}\n")


def test_a_node_without_the_drivers_folder_is_refused_with_its_address(tmp_path):
    elsewhere = replace(DriverEnvironment.capture(), folder=str(tmp_path / "none"))
    with pytest.raises(ConfigErrors, match=r"^cluster: node 10.0.0.7 has no folder .*/none, where this command runs"):
        elsewhere.check("10.0.0.7")
