"""`engine=openai` against a real `vllm serve`: token ids in and out, and text where a proxy hides them.

The server takes some seconds to start, so all tests here share one, with a tiny model of random weights.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ramet import OpenAIOptions
from ramet.config.compose import compose
from ramet.engines.config import OpenAIEngineConfig
from ramet.engines.openai import OpenAIEngine, check_servers
from ramet.engines.protocol import Completion, FinishReason, Request, Sampling
from ramet.evaluate.evaluation import run
from ramet.evaluate.files import read_results, read_rollouts
from ramet.evaluate.replay import replay
from ramet.models.encoder import Encoder
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.testing import OpenAIServer, RawReply

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)")
needs_benchmarks = pytest.mark.skipif(
    "arithmetic" not in load_plugins().registries.benchmarks, reason="the plugin ramet-benchmarks is not installed"
)
REFUSED = "engine.params.server: {url}/completions: 400 Bad Request: prompt: str type expected"
START_S = 240.0
MAX_TOKENS = 256
ENVIRONMENT = {  # one thread, and nothing compiled: this model computes for less than that would take
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
OPTIONS = [
    "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-model-len",
    str(MAX_TOKENS), "--max-num-seqs", "8", "--enable-prompt-tokens-details",
]  # fmt: skip


@dataclass(frozen=True)
class Served:
    """A server, and the folder of its model."""

    url: str
    model: Path

    @property
    def encoder(self) -> Encoder:
        return Encoder(AutoTokenizer.from_pretrained(self.model))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    model = make_tiny_model(folder / "tiny", hidden=64, layers=2, heads=2, intermediate=64, initializer_range=0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What `vllm serve` runs; that command itself does not start where vLLM is installed as the package vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), *OPTIONS],
            env=os.environ | ENVIRONMENT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, folder / "log")
        yield Served(f"http://127.0.0.1:{port}/v1", model)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at:
        assert process.poll() is None, f"vllm serve ended:\n{log.read_text()[-2000:]}"
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"vllm serve did not start within {START_S:g} s:\n{log.read_text()[-2000:]}")


def complete(url: str, encoder: Encoder, *chosen: dict[str, Any], **options: Any) -> tuple[list[Completion], int]:
    """What the engine returns for requests of one text, with these samplings and seeds, and how many drifted."""
    config = OpenAIEngineConfig(server=OpenAIOptions(urls=[url], retries=0), **options)
    assert check_servers(config) == []

    async def ask() -> tuple[list[Completion], int]:
        engine = OpenAIEngine(config, encoder=encoder, max_tokens=MAX_TOKENS)
        try:
            requests = [request(encoder, str(number), **one) for number, one in enumerate(chosen)]
            found = await asyncio.gather(*map(engine.generate, requests))
            return found, int(engine.metrics()["engine/drifted_requests"])
        finally:
            await engine.close()

    return asyncio.run(ask())


def request(encoder: Encoder, id: str, *, seed: int = 7, **sampling: Any) -> Request:
    chosen = {"max_tokens": 24, **sampling}
    ids = encoder.markup("<|user|>What is 17*23?<|end|><|assistant|>")
    return Request(id=id, token_ids=ids, sampling=Sampling(**chosen), seed=seed, cache_key="eval/0/t/0")


def test_token_ids_go_in_and_come_out_with_the_log_probabilities_of_transformers(served: Served) -> None:
    encoder = served.encoder
    seeds = [{"seed": seed} for seed in (1, 2**62, 1)]
    found, drifted = complete(served.url, encoder, *seeds, logprobs=True)
    assert found[0].token_ids == found[2].token_ids != found[1].token_ids  # a seed decides
    assert {one.finish for one in found} == {FinishReason.LENGTH} and drifted == 0
    model = AutoModelForCausalLM.from_pretrained(served.model, dtype=torch.float32).eval()
    for one in found[:2]:
        expected = logprobs(model, request(encoder, "r").token_ids, one.token_ids)
        assert torch.tensor(one.logprobs).sub(expected).abs().max() < 1e-3


def logprobs(model: Any, prompt: array[int], sampled: array[int]) -> torch.Tensor:
    """Of these tokens after this prompt."""
    ids = torch.tensor([[*prompt, *sampled]])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(sampled.tolist())[:, None])[:, 0]


def test_the_server_obeys_every_setting(served: Served) -> None:
    encoder = served.encoder
    greedy, top_1, min_p, repeating, nucleus = complete(
        served.url,
        encoder,
        {"temperature": 0.0},
        {"top_k": 1},
        {"min_p": 1.0},
        {"temperature": 0.0, "repetition_penalty": 1e6},
        {"top_p": 1e-6},
    )[0]
    assert greedy.token_ids == top_1.token_ids == min_p.token_ids == nucleus.token_ids
    assert len(set(repeating.token_ids)) == len(repeating.token_ids)
    last = greedy.token_ids[-1]
    before = greedy.token_ids[: greedy.token_ids.index(last)]
    (ended,), _ = complete(served.url, encoder, {"temperature": 0.0, "stop_token_ids": (last,)})
    assert (ended.finish, ended.token_ids) == (FinishReason.END, before + array("i", [last]))


def test_a_stop_string_ends_the_tokens_and_is_told(served: Served) -> None:
    """The model cannot be brought to write a tag, so the stop string is what it writes anyway."""
    encoder = served.encoder
    free = complete(served.url, encoder, *({"seed": seed, "max_tokens": 64} for seed in range(4)))[0]
    seed, stop, n = next((seed, *found) for seed, one in enumerate(free) if (found := stop_in(one.token_ids, encoder)))
    (stopped,), drifted = complete(
        served.url, encoder, {"seed": seed, "max_tokens": 64, "stop": ("</answer>", stop)}, logprobs=True
    )
    assert (stopped.finish, stopped.stop, drifted) == (FinishReason.STOP, stop, 0)
    assert stopped.token_ids == free[seed].token_ids[:n]
    assert len(stopped.logprobs) == n


def stop_in(ids: array[int], encoder: Encoder) -> tuple[str, int] | None:
    """A text of two tokens that is in no text before, and after how many tokens it ends."""
    for n in range(3, len(ids)):
        stop, before = encoder.decode(ids[n - 2 : n]), encoder.decode(ids[: n - 1])
        if len(stop) == 2 and stop.isalnum() and stop.isascii() and stop not in before:
            return stop, n
    return None


@needs_benchmarks
def test_an_evaluation_records_the_tokens_of_the_server_and_is_replayed(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = run(compose(overrides(served.model, tmp_path, served.url), job="eval"))
    assert not [text for text in caplog.messages if "token ids" in text or "tokens as text" in text]
    body = read_results(found.file)
    assert body["results"][0]["judged"] == "6 of 6 judged"
    assert replay(found.file).differences == ()
    model = AutoModelForCausalLM.from_pretrained(served.model, dtype=torch.float32).eval()
    for _, record in read_rollouts(found.file, body):
        for one in record.group.rollouts:
            prompt, sampled = one.rollout.segments[:2]
            assert sampled.logprobs is not None
            expected = logprobs(model, prompt.token_ids, sampled.token_ids)
            assert torch.tensor(sampled.logprobs).sub(expected).abs().max() < 1e-3


AGENT = """
from openai import AsyncOpenAI

async def run(task, ctx):
    async with AsyncOpenAI(base_url=ctx.base_url, api_key=ctx.key) as policy:
        messages = [{"role": "user", "content": task.question}]
        for _ in range(2):
            reply = await policy.chat.completions.create(model=ctx.model, messages=messages, max_tokens=12)
            messages += [{"role": "assistant", "content": reply.choices[0].message.content}]
            messages += [{"role": "user", "content": "again"}]
        return messages[-2]["content"] + "."
"""


@needs_benchmarks
def test_an_agent_is_evaluated_with_a_remote_model_behind_the_gateway(served: Served, tmp_path: Path) -> None:
    """With a server that tells token ids, the record of the agent's turns is exact."""
    (tmp_path / "agent.py").write_text(AGENT)
    step = ["rollout_step=function", f"rollout_step.params.function={tmp_path / 'agent.py'}:run", "tools=[]"]
    keys = [key for key in overrides(served.model, tmp_path, served.url) if not key.startswith("rollout_step")]
    found = run(compose([*keys, *step, "rollout.max_response_tokens=100"], job="eval"))
    body = read_results(found.file)
    model = AutoModelForCausalLM.from_pretrained(served.model, dtype=torch.float32).eval()
    rollouts = [one.rollout for _, record in read_rollouts(found.file, body) for one in record.group.rollouts]
    assert len(rollouts) == 6 and all(rollout.valid and rollout.answer for rollout in rollouts)
    for rollout in rollouts:
        sampled = [segment for segment in rollout.segments if segment.is_sampled]
        assert len(sampled) == 2
        for thread in rollout.threads:
            before = array("i")
            for segment in thread.segments:
                if segment.is_sampled and segment in thread.own:
                    expected = logprobs(model, before, segment.token_ids)
                    assert torch.tensor(segment.logprobs).sub(expected).abs().max() < 1e-3
                before += segment.token_ids


def overrides(model: Path, root: Path, url: str) -> list[str]:
    return [
        f"model.path={model}", f"run.root={root}", "run.name=measured", "engine=openai",
        f"engine.params.server.urls=[{url}]", "engine.params.server.retries=0", "engine.params.logprobs=true",
        "benchmarks=[arithmetic]", "benchmarks.arithmetic.limit=3", "evaluate.k=2", "evaluate.sampling.temperature=1.0",
        "rollout_step.system_prompt=never", "rollout.max_response_tokens=32", "data.max_prompt_tokens=64",
    ]  # fmt: skip


def passed_on(served: Served, *, drops: Sequence[str], refuses_ids: bool) -> Any:
    """What a proxy in front of the server answers."""

    def answer(body: dict[str, Any]) -> RawReply:
        if refuses_ids and isinstance(body["prompt"], list):
            return RawReply(status=400, body='{"error": {"message": "prompt: str type expected"}}')
        sent = {key: value for key, value in body.items() if key not in drops}
        posted = urllib.request.Request(
            f"{served.url}/completions", json.dumps(sent).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(posted) as reply:
            return RawReply(body=reply.read())

    return answer


@pytest.mark.parametrize(
    ("drops", "refuses_ids", "why"),
    [
        (["return_token_ids"], False, "its replies have no token_ids"),
        (["return_token_ids"], True, REFUSED),
        (["return_token_ids", "include_stop_str_in_output"], True, REFUSED),
    ],
    ids=["no ids in replies", "no ids in prompts", "no stop strings either"],
)  # fmt: skip
def test_a_server_that_hides_token_ids_is_told_and_drift_is_counted(
    served: Served, drops: list[str], refuses_ids: bool, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = served.encoder
    seeds = [{"seed": seed, "max_tokens": 64} for seed in range(4)]
    with_ids, _ = complete(served.url, encoder, *seeds)
    caplog.clear()
    with OpenAIServer(passed_on(served, drops=drops, refuses_ids=refuses_ids)) as proxy:
        found, drifted = complete(proxy.url, encoder, *seeds)
    texts = [encoder.decode(one.token_ids) for one in with_ids]
    assert [encoder.decode(one.token_ids) for one in found] == texts
    others = [one.token_ids != other.token_ids for one, other in zip(found, with_ids, strict=True)]
    assert drifted == sum(others) > 0  # bytes that are no characters become others as text
    assert caplog.messages[0].startswith(f"engine.params.server: no token ids ({why.format(url=proxy.url)}): ")
    assert f"engine.params.server: {drifted} of 4 requests so far " in caplog.text
