"""A client's options, its counts, and what it returns. Public as `ramet.OpenAIOptions` and so on."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass

from ramet.errors import InfraError
from ramet.types.option import option, option_problems


@dataclass(kw_only=True, slots=True)
class OpenAIOptions:
    """Options of a client; a plugin's config has one as a field. The key comes only from the environment."""

    urls: list[str] = option(
        factory=lambda: ["http://127.0.0.1:8000/v1"], help="base addresses of servers, which share the requests"
    )
    model: str | None = None  # name of the model; null: the one that the server offers, where it offers exactly one
    key_variable: str = "OPENAI_API_KEY"  # environment variable with the key; unset: no key is sent
    timeout_s: float = option(120.0, "time-out of one attempt of a request, in seconds", above=0, below=math.inf)
    retries: int = option(
        4,
        "further attempts after a lost connection, a time-out, 408, 425, 429, 5xx and replies that cannot be read",
        minimum=0,
        below=math.inf,
    )
    concurrency: int = option(32, "requests at the same time, in each process", above=0, below=math.inf)
    per_s: float | None = option(
        None, "most requests per second, of all workers of the run together; null: no limit", above=0, below=math.inf
    )
    max_requests: int | None = option(
        None, "most attempts of each process; then all requests fail; null: no limit", above=0, below=math.inf
    )
    input_price: float = option(
        0.0, "US dollars for a million prompt tokens, from which the cost is counted", minimum=0, below=math.inf
    )
    output_price: float = option(0.0, "US dollars for a million generated tokens", minimum=0, below=math.inf)

    def __post_init__(self) -> None:
        self.urls = [url.rstrip("/") for url in self.urls]
        problems = [f"urls holds {url!r}; allowed: http://… and https://…" for url in self.urls if not _is_http(url)]
        problems += ["urls is empty; allowed: one or more of http://… and https://…"] * (not self.urls)
        problems += [
            f"urls holds {re.split('[?#]', url)[0]!r} with a query or a fragment; allowed: a base, to which paths are "
            "added"
            for url in self.urls
            if _is_http(url) and set(url) & set("?#")
        ]
        if not re.fullmatch(r"([A-Za-z_]\w*)?", self.key_variable, re.ASCII):
            problems.append("key_variable holds no name of an environment variable (letters, digits and _); the key "
                            "itself is never written down")  # fmt: skip
        problems += option_problems(self)
        if problems:
            raise ValueError("; ".join(problems))


def _is_http(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    return scheme in ("http", "https") and bool(rest)


@dataclass(slots=True, kw_only=True)
class OpenAIUsage:
    """Counts of a client so far, in this process."""

    requests: int = 0  # calls that were not answered by the cache
    attempts: int = 0  # requests sent, those that were repeated included
    cached: int = 0  # calls answered by the cache
    failures: int = 0  # calls that raised
    input_tokens: int = 0  # as the servers counted them
    output_tokens: int = 0
    dollars: float = 0.0
    wait_s: float = 0.0  # from request to reply, over all attempts

    def metrics(self) -> dict[str, float]:
        """The counts by name, for logs."""
        return {name: float(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """A server's answer. `accepted` is False if the caller's own check refused it twice."""

    text: str
    finish: str  # `stop`, `length`, …; empty if the server does not say
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached: bool = False
    accepted: bool = True


class RequestRefused(InfraError):
    """The server will not answer this request however often it is asked (400, 413, 422): too long, mostly."""

    def __init__(self, message: str = "", *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
