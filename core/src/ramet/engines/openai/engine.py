"""Generation by servers that speak the OpenAI API (`/completions`): several share the requests, one task's stay at one.

Token ids go in and come out where the server allows it, as vLLM does. Other servers are asked for text: then the ids
are the tokenizer's. Two kinds of requests are counted and reported: the text does not give the ids back, or the number
of tokens differs from the server's count.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ramet.engines.checks import check_request
from ramet.engines.config import OpenAIEngineConfig
from ramet.engines.counters import Counters
from ramet.engines.openai.completion_reply import ServerReply, read_reply
from ramet.engines.protocol import Capability, Completion, EngineInfo, FinishReason, FirstReport, Request
from ramet.errors import ConfigError, InfraError
from ramet.event_loop import run_async
from ramet.helpers.openai.client import OpenAIClient
from ramet.helpers.openai.options import RequestRefused
from ramet.io import repeats
from ramet.models.encoder import Encoder

if TYPE_CHECKING:
    from torch import Tensor

CAPABILITIES = frozenset({Capability.SEEDS})
NAME = "engine.params.server"
TEXT_WORDS = ("token", "prompt", "string", "str type")  # of a refusal that may be one of ids
logger = logging.getLogger(__name__)


def check_servers(config: OpenAIEngineConfig) -> list[str]:
    """Ask every server for its models. Several may fail as long as one answers, which is logged."""
    problems, failures = list[str](), list[str]()
    for url in config.server.urls:
        try:
            run_async(_check(config, url))
        except ConfigError as error:
            problems.append(str(error))
        except InfraError as error:
            failures.append(str(error))
    if len(failures) == len(config.server.urls):
        return [*problems, *failures]
    for failure in failures:
        logger.warning("a server of the pool does not answer, the others serve: %s", failure)
    return problems


async def _check(config: OpenAIEngineConfig, url: str) -> None:
    client = OpenAIClient(config.server_at([url]), NAME)
    try:
        await client.check()
    finally:
        await client.aclose()


class OpenAIEngine:
    """`ramet.engines.protocol.Engine` over a pool of servers.

    Their weights cannot be changed, so it cannot be used for training.
    """

    def __init__(self, config: OpenAIEngineConfig, *, encoder: Encoder, max_tokens: int) -> None:
        self.info = EngineInfo(
            name="openai", capabilities=CAPABILITIES, vocab_size=encoder.vocab_size, max_tokens=max_tokens
        )
        self.in_flight = False
        self._encoder = encoder
        self._client = OpenAIClient(config.server_at(config.server.urls), NAME)
        self._wants_logprobs = config.logprobs
        self._takes_ids = config.token_ids
        self._counters = Counters()
        self._running: dict[str, asyncio.Task[Completion]] = {}
        self._requests = self._drifted = 0

    @property
    def policy_version(self) -> int:
        return 0

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        check_request(request, self.info, self._running)
        task = self._running[request.id] = asyncio.create_task(self._complete(request))
        self._counters.request_began()
        try:
            completion = await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                task.cancel()
                raise
            return _aborted(request)
        except InfraError:
            self._counters.add(failed_requests=1)
            raise
        finally:
            del self._running[request.id]
            self._counters.request_ended()
        if on_first is not None:
            on_first(FirstReport(request=request.id, entropies=()))
        return completion

    async def _complete(self, request: Request) -> Completion:
        affinity = request.cache_key.rpartition("/")[0]  # the rollouts of a task begin with the same prompt
        as_ids = self._takes_ids  # another request may find out meanwhile that the server takes none
        try:
            reply = await self._client.post("/completions", self._body(request, as_ids=as_ids), affinity=affinity)
        except RequestRefused as error:
            if not as_ids or not any(word in str(error).lower() for word in TEXT_WORDS):
                raise
            reply = await self._client.post("/completions", self._body(request, as_ids=False), affinity=affinity)
            self._ask_for_text(str(error))  # not reached if the text is refused too, such as a prompt that is too long
        server_reply = read_reply(reply, request, self._encoder)
        if as_ids and not server_reply.has_ids:
            self._ask_for_text("its replies have no token_ids")
        self._count(request, server_reply)
        return server_reply.completion

    def _body(self, request: Request, *, as_ids: bool) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,  # off; SGLang refuses 0
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": request.seed,
            "stop": list(sampling.stop),
            "stop_token_ids": list(sampling.stop_token_ids),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "add_special_tokens": False,
        }
        if self._wants_logprobs:
            body["logprobs"] = 0
        if as_ids:
            return {**body, "prompt": request.token_ids.tolist(), "return_token_ids": True}
        return {**body, "prompt": self._encoder.decode(request.token_ids)}

    def _ask_for_text(self, why: str) -> None:
        if self._takes_ids:
            self._takes_ids = False
            logger.warning(
                "%s: no token ids (%s): from here on text is sent and read, and its tokens may be others than those "
                "that the model sees and samples; requests that show it are counted as engine/drifted_requests",
                NAME,
                why,
            )

    def _count(self, request: Request, server_reply: ServerReply) -> None:
        completion = server_reply.completion
        self._requests += 1
        drifted = not server_reply.has_ids and (
            server_reply.counted not in (None, len(completion.token_ids))
            or self._encoder.markup(self._encoder.decode(request.token_ids)) != request.token_ids
        )
        if drifted:
            self._drifted += 1
            message = "%s: %d of %d requests so far have other tokens as text than as ids"
            repeats.warn(logger, "token ids drift", message, NAME, self._drifted, self._requests)
        self._counters.add(
            prompt_tokens=len(request.token_ids),
            cached_tokens=completion.cached_tokens,
            sampled_tokens=len(completion.token_ids),
        )

    def abort(self, request_id: str) -> None:
        if request_id in self._running:
            self._running[request_id].cancel()

    def release(self, cache_keys: Sequence[str]) -> None:
        """Servers keep and drop their caches by themselves."""

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        raise ConfigError("engine=openai cannot be trained with: the servers' weights are their own")

    def metrics(self) -> Mapping[str, float]:
        return {**self._counters.take(), "engine/drifted_requests": float(self._drifted)}

    async def close(self) -> None:
        usage = self._client.usage
        logger.info(
            "%s: %d requests in %d attempts, %d failed, %d tokens in, %d out%s",
            NAME,
            usage.requests,
            usage.attempts,
            usage.failures,
            usage.input_tokens,
            usage.output_tokens,
            f"; {self._drifted} requests drifted" if self._drifted else "",
        )
        await self._client.aclose()


def _aborted(request: Request) -> Completion:
    return Completion(
        token_ids=array("i"),
        logprobs=array("f"),
        entropies=array("f"),
        finish=FinishReason.ABORT,
        stop=None,
        policy_versions=array("i"),
        prompt_tokens=len(request.token_ids),
        cached_tokens=0,
    )
