"""Bing through Bright Data's SERP API.

There are two documented ways to get parsed results, and the zone decides which one works. With `brd_json=1` in the
address the body is the JSON. With `data_format: parsed_bing` the body is an envelope with status, headers and the JSON
as a text. An envelope with a status of 400 or more comes with HTTP 200.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from ramet.helpers import HttpFailure
from ramet_tools_bing.providers.base import FaultKind, HttpRequest, ProviderError, ServiceClient
from ramet_tools_bing.providers.services import read_items
from ramet_tools_bing.queries import is_chinese, options_in_words, search_key
from ramet_tools_bing.results import SearchItem

URL = "https://api.brightdata.com/request"
QUERY_REJECTED_S = 15.0  # how long a query is blocked that was asked too often, or that failed
REJECTED = ("repeat_query_rejected", "failed_query_rejected")
HTML = (b"<!doctype", b"<html", b"<head", b"<body")
READABLE_FORMS = ("brd_json", "parsed_bing")


class BrightData:
    """`Provider`. With `parse="auto"` the form that has worked is kept."""

    name = "brightdata"
    cached = True

    def __init__(self, *, key: str, zone: str, country: str, parse: str = "auto", url: str | None = None) -> None:
        self._key = key
        self._zone = zone
        self._country = country
        self._url = url or URL
        self._parse = parse
        self._form = READABLE_FORMS[0] if parse == "auto" else parse
        self._client = ServiceClient(f"{self.name} (zone {zone})", self._url, key)

    def cache_keys(self, query: str, k: int) -> Sequence[str]:
        """Results do not depend on the zone, nor on how many are shown of what Bing's page has."""
        return [search_key(self.name, query=query, market=_market(query)[0], country=self._country)]

    def options(self, k: int) -> Sequence[tuple[str, str]]:
        return [(self.name, options_in_words(country=self._country))]

    def request(self, query: str, form: str) -> HttpRequest:
        market, language = _market(query)
        fields = {"q": query, "mkt": market, "setLang": language}
        body = {"zone": self._zone, "format": "raw" if form == "brd_json" else "json"}
        if form == "brd_json":
            fields["brd_json"] = "1"
        else:
            body["data_format"] = form
        fields["cc"] = self._country
        body["url"] = f"https://www.bing.com/search?{urlencode(fields)}"
        headers = {"Authorization": f"Bearer {self._key}"}
        return HttpRequest(method="POST", url=self._url, headers=headers, json=body)

    async def search(self, query: str, k: int, *, timeout_s: float) -> tuple[SearchItem, ...]:
        try:
            return await self._ask(query, self._form, timeout_s)
        except _NotParsed as error:
            other = READABLE_FORMS[READABLE_FORMS.index(self._form) - 1]
            if self._parse != "auto":
                raise
            try:
                items = await self._ask(query, other, timeout_s)
            except _NotParsed:
                raise error from None
            self._form = other
            return items

    async def _ask(self, query: str, form: str, timeout_s: float) -> tuple[SearchItem, ...]:
        try:
            answer = self._unwrapped(await self._client.ask(self.request(query, form), timeout_s))
        except HttpFailure as failure:
            if failure.status == 200 and failure.content.lstrip().lower().startswith(HTML):
                raise _NotParsed(self._client.who, "it sends HTML") from failure
            error = ProviderError.from_http(failure, _code(failure.headers))
            if error.fault is FaultKind.THROTTLED and any(code in str(error) for code in REJECTED):
                error.retry_after_s = error.retry_after_s or QUERY_REJECTED_S
            raise error from failure
        if "organic" not in answer:
            raise _NotParsed(self._client.who, "its answers have no `organic`")
        return tuple(read_items(answer, self._client.who, ("organic",), url="link", text="description"))

    def _unwrapped(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The content of an envelope, or the answer itself."""
        if not {"status_code", "body"} <= answer.keys():
            return answer
        status, body, headers = answer["status_code"], answer["body"], answer.get("headers")
        content = (body if isinstance(body, str) else json.dumps(body)).encode("utf-8", "replace")
        if status == 200:
            return self._client.http.json_object(self._client.who, content)
        named = {str(k).lower(): str(v) for k, v in headers.items()} if isinstance(headers, Mapping) else {}
        raise self._client.http.failure(self._client.who, status if isinstance(status, int) else 0, named, content)

    async def aclose(self) -> None:
        await self._client.http.aclose()


def _code(headers: Mapping[str, str]) -> str:
    """Bright Data's own code and words, which are in headers of one of two names."""
    code = headers.get("x-brd-error-code") or headers.get("x-brd-err-code")
    words = headers.get("x-brd-error") or headers.get("x-brd-err-msg")
    return f" ({', '.join(part[:100] for part in (code, words) if part)})" if code or words else ""


class _NotParsed(ProviderError):
    """The zone answered, and not in a form that can be read."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(FaultKind.BROKEN, f"{who} does not parse Bing's pages: {why}")


def _market(query: str) -> tuple[str, str]:
    """Bing's market and language."""
    return ("zh-CN", "zh") if is_chinese(query) else ("en-US", "en")
