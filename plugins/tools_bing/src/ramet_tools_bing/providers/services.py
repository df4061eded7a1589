"""Search services with a plain JSON interface: Serper, Tavily, Brave, and servers in the form of Search-R1.

Each one is what to send and how to read what comes back; the rest is `HttpProvider`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ramet.helpers import HttpFailure
from ramet_tools_bing.providers.base import FaultKind, HttpRequest, ProviderError, ServiceClient
from ramet_tools_bing.queries import options_in_words, search_key
from ramet_tools_bing.results import SearchItem


class SearchService(Protocol):
    """`url`: its address; `key`: None where none is needed."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def key(self) -> str | None: ...

    def request(self, query: str, k: int) -> HttpRequest: ...

    def read(self, answer: Any) -> Sequence[SearchItem]:
        """Return the hits of an answer. Raises `ProviderError` otherwise."""
        ...


class HttpProvider:
    """`Provider` for a service."""

    cached = True

    def __init__(self, service: SearchService, country: str) -> None:
        self.name = service.name
        self._service = service
        self._country = country
        self._client = ServiceClient(service.name, service.url, service.key)

    def cache_keys(self, query: str, k: int) -> Sequence[str]:
        return [search_key(self.name, query=query, k=k, country=self._country, url=self._service.url)]

    def options(self, k: int) -> Sequence[tuple[str, str]]:
        return [(self.name, options_in_words(max_results=k, country=self._country, url=self._service.url))]

    async def search(self, query: str, k: int, *, timeout_s: float) -> tuple[SearchItem, ...]:
        try:
            answer = await self._client.ask(self._service.request(query, k), timeout_s)
        except HttpFailure as error:
            raise ProviderError.from_http(error) from error
        return tuple(self._service.read(answer))

    async def aclose(self) -> None:
        await self._client.http.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Serper:
    """Google through serper.dev."""

    key: str | None
    country: str
    url: str = "https://google.serper.dev/search"
    name: str = "serper"

    def request(self, query: str, k: int) -> HttpRequest:
        headers = {"X-API-KEY": self.key or ""}
        return HttpRequest(
            method="POST", url=self.url, headers=headers, json={"q": query, "gl": self.country, "num": min(k, 100)}
        )

    def read(self, answer: Any) -> Sequence[SearchItem]:
        return read_items(answer, self.name, ("organic",), url="link", text="snippet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tavily:
    key: str | None
    url: str = "https://api.tavily.com/search"
    name: str = "tavily"

    def request(self, query: str, k: int) -> HttpRequest:
        headers = {"Authorization": f"Bearer {self.key}"}
        return HttpRequest(
            method="POST", url=self.url, headers=headers, json={"query": query, "max_results": min(k, 20)}
        )

    def read(self, answer: Any) -> Sequence[SearchItem]:
        return read_items(answer, self.name, ("results",), url="url", text="content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Brave:
    """Brave's own index. Its answer has no `web` where nothing was found."""

    key: str | None
    country: str
    url: str = "https://api.search.brave.com/res/v1/web/search"
    name: str = "brave"

    def request(self, query: str, k: int) -> HttpRequest:
        headers = {"X-Subscription-Token": self.key or "", "Accept": "application/json"}
        params = {"q": query, "count": str(min(k, 20)), "country": self.country.upper(), "text_decorations": "0"}
        return HttpRequest(method="GET", url=self.url, headers=headers, params=params)

    def read(self, answer: Any) -> Sequence[SearchItem]:
        if isinstance(answer, Mapping) and answer.get("type") == "search" and answer.get("web") is None:
            return ()
        return read_items(answer, self.name, ("web", "results"), url="url", text="description")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """A server in the form of Search-R1: `POST {queries, topk, return_scores}` -> `{result: [[{document, score}]]}`.

    The first line of a document's `contents` is its title, in quotation marks.
    """

    url: str
    key: str | None = None
    name: str = "retrieval"

    def request(self, query: str, k: int) -> HttpRequest:
        body = {"queries": [query], "topk": k, "return_scores": True}
        return HttpRequest(method="POST", url=self.url, json=body)

    def read(self, answer: Any) -> Sequence[SearchItem]:
        lists = answer.get("result") if isinstance(answer, Mapping) else None
        if not isinstance(lists, list) or len(lists) != 1 or not isinstance(lists[0], list):
            raise ProviderError(
                FaultKind.BROKEN, "retrieval: the answer has no list `result` with one list for the query"
            )
        return [_document(item) for item in lists[0]]


def _document(item: Any) -> SearchItem:
    document = item.get("document", item) if isinstance(item, Mapping) else None
    contents = document.get("contents") if isinstance(document, Mapping) else None
    if not isinstance(contents, str):
        raise ProviderError(FaultKind.BROKEN, "retrieval: a document without `contents`")
    title, separator, text = contents.partition("\n")
    if not separator:
        title, text = "", contents
    url = document.get("url") if isinstance(document, Mapping) else None
    return SearchItem(title=title.strip().strip('"'), text=text.strip(), url=url if isinstance(url, str) else "")


def read_items(answer: Any, who: str, path: Sequence[str], *, url: str, text: str) -> Sequence[SearchItem]:
    """The list at `path`, whose items have a `title` and these keys; missing ones are empty.

    Raises `ProviderError` if there is no such list: then the service is at fault, not the query.
    """
    node = answer
    for name in path:
        if not isinstance(node, Mapping) or name not in node:
            what = f"no `{'.'.join(path)}`" if isinstance(answer, Mapping) else f"a {type(answer).__name__}"
            raise ProviderError(FaultKind.BROKEN, f"{who}: the answer has {what}; no search results could be read")
        node = node[name]
    if not isinstance(node, list) or not all(isinstance(item, Mapping) for item in node):
        raise ProviderError(FaultKind.BROKEN, f"{who}: `{'.'.join(path)}` of the answer is not a list of objects")
    return [SearchItem(title=_text(item, "title"), url=_text(item, url), text=_text(item, text)) for item in node]


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return value if isinstance(value, str) else ""
