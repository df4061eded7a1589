"""Bing through Bright Data: every row of its table of answers, in both forms, over real connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramet import ConfigError, InfraError
from ramet_tools_bing import SearchTool
from ramet_tools_bing.cache_disk import open_disk
from ramet_tools_bing.cache_entries import entries
from ramet_tools_bing.results import NOTHING

GOOD = "[1] q 1\nhttps://example.org/1\nabout q, 1\n\n[2] q 2\nhttps://example.org/2\nabout q, 2"
WHO = "brightdata (zone serp_api1)"
DOWN, BROKEN = 3, 3  # requests of one call
FORMS = 2  # that are tried where an answer is in neither
FAULTS = {  # behaviour -> requests of one call, and what the error says
    "500": (DOWN, f"{WHO}: 500 Internal Server Error: internal error"),
    "502": (DOWN, f"{WHO}: 502 Bad Gateway (unexpected_q, Unexpected query)"),
    "503 after 0": (DOWN, f"{WHO}: 503 Service Unavailable: busy"),
    "429": (1, f"{WHO}: 429 Too Many Requests: slow down"),
    "429 after 1": (1, f"{WHO}: 429 Too Many Requests: slow down"),
    "429 rate": (1, f"{WHO}: 429 Too Many Requests (sr_rate_limit, Rate limit of 20 per s)"),
    "429 repeated": (1, f"{WHO}: 429 Too Many Requests (repeat_query_rejected, asked too often)"),
    "html": (FORMS * BROKEN, f"{WHO} does not parse Bing's pages: it sends HTML"),
    "html as json": (FORMS * BROKEN, f"{WHO} does not parse Bing's pages: it sends HTML"),
    "garbage": (BROKEN, f"{WHO}: the reply is not JSON: "),
    "no utf-8": (BROKEN, f"{WHO}: the reply is not JSON: "),
    "truncated": (DOWN, f"{WHO}: Response payload is not completed"),
    "cut json": (BROKEN, f"{WHO}: the reply is not JSON: "),
    "empty": (BROKEN, f"{WHO}: the reply is not JSON: "),
    "null": (BROKEN, f"{WHO}: the reply is not a JSON object: "),
    "[]": (BROKEN, f"{WHO}: the reply is not a JSON object: "),
    "no organic": (FORMS * BROKEN, f"{WHO} does not parse Bing's pages: its answers have no `organic`"),
    "organic is a text": (BROKEN, f"{WHO}: `organic` of the answer is not a list of objects"),
    "organic of texts": (BROKEN, f"{WHO}: `organic` of the answer is not a list of objects"),
    "nested": (BROKEN, f"{WHO}: the reply is not JSON: "),
    "wrapped 502": (DOWN, f"{WHO}: 502 Bad Gateway: bad gateway (unexpected_q)"),
    "wrapped 429": (1, f"{WHO}: 429 Too Many Requests (bucket_rate_limit)"),
    "wrapped nothing": (BROKEN, f"{WHO}: the reply is not JSON: "),
    "wrapped null": (BROKEN, f"{WHO}: 0: None"),
    "30 MB": (BROKEN, f"{WHO}: the reply has more than 5000000 bytes"),
    "drip": (DOWN, f"{WHO}: no reply within 0.3 s"),
    "reset": (DOWN, f"{WHO}: "),
    "30 s": (DOWN, f"{WHO}: no reply within 0.3 s"),
    "redirect": (BROKEN, f"{WHO}: 302 Found"),
    "400": (1, f"{WHO}: 400 Bad Request: bad request"),
}
WAITS = {"429": 2.0, "429 after 1": 1.0, "429 rate": 2.0, "429 repeated": 15.0, "wrapped 429": 2.0}


@pytest.mark.parametrize("behaviour", FAULTS)
def test_what_is_no_answer_is_an_infrastructure_failure_and_is_not_stored(bing: Any, behaviour: str) -> None:
    requests, said = FAULTS[behaviour]

    async def steps(tool: SearchTool, server: Any) -> None:
        with pytest.raises(InfraError) as caught:
            await bing.call(tool, "q")
        assert str(caught.value).startswith(said)
        assert server.total == requests
        left = WAITS.get(behaviour)
        assert caught.value.retry_after_s == (None if left is None else pytest.approx(left, abs=0.2))
        assert not list(entries(open_disk(bing.folder)))

    fast = {"request_timeout_s": 0.3} if behaviour in ("drip", "30 s") else {}
    bing.session(lambda query, n: behaviour, steps, **fast)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("401", "401 Unauthorized: invalid key"),
        ("402", "402 Payment Required: no credit"),
        ("403", "403 Forbidden: zone is disabled (client_10110, no access)"),
        ("404", "404 Not Found: not found"),
        ("407", "407 Proxy Authentication Required: wrong zone (client_10000)"),
    ],
)
def test_a_key_or_zone_that_never_worked_stops_the_run_with_one_request(bing: Any, status: str, said: str) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            await bing.call(tool, "q")
        assert str(caught.value) == f"{WHO}: {said}; look at its key, account, zone and address"
        assert server.total == 1

    bing.session(lambda query, n: status, steps)


def test_a_key_that_has_worked_masks_rollouts_and_is_not_asked_with_again_at_once(bing: Any) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        assert (await bing.call(tool, "good")).text
        for query in ("a", "b"):
            with pytest.raises(InfraError) as caught:
                await bing.call(tool, query)
            assert str(caught.value).startswith(f"{WHO}: 403 Forbidden") and caught.value.retry_after_s is None
        assert (await bing.call(tool, "good")).cached
        assert server.total == 2

    bing.session(lambda query, n: "good" if query == "good" else "403", steps)


@pytest.mark.parametrize("parse", ["auto", "brd_json", "parsed_bing"])
def test_both_forms_of_parsed_results_are_read(bing: Any, parse: str) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        assert (await bing.call(tool, "q")).text == GOOD
        assert server.authorizations == {"Bearer key-3f8a1c77e2"}
        [body] = server.bodies
        address = "https://www.bing.com/search?q=q&mkt=en-US&setLang=en"
        if parse == "parsed_bing":
            expected = {"format": "json", "data_format": "parsed_bing", "url": f"{address}&cc=us"}
        else:
            expected = {"format": "raw", "url": f"{address}&brd_json=1&cc=us"}
        assert body == {"zone": "serp_api1", **expected}

    bing.session(lambda query, n: "good", steps, parse=parse)


@pytest.mark.parametrize("first", ["html", "no organic"])
def test_the_form_that_a_zone_parses_is_found_and_kept(bing: Any, first: str) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        await bing.call(tool, "q")
        await bing.call(tool, "r")
        assert [body.get("data_format", "raw") for body in server.bodies] == ["raw", "parsed_bing", "parsed_bing"]

    bing.session(lambda query, n: first if (query, n) == ("q", 1) else "good", steps)


@pytest.mark.parametrize(
    "fault", ["500", "502", "empty", "[]", "garbage", "truncated", "reset", "30 MB", "wrapped 502"]
)
def test_a_fault_that_passes_is_tried_again(bing: Any, fault: str) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        assert (await bing.call(tool, "q")).text == GOOD
        assert server.total == 3

    bing.session(lambda query, n: fault if n < 3 else "good", steps)


def test_nothing_found_is_an_answer_that_is_remembered_for_a_day(bing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        first, second = await bing.call(tool, "q"), await bing.call(tool, "q")
        assert (first.text, first.cached) == (NOTHING, False) and (second.text, second.cached) == (NOTHING, True)
        monkeypatch.setattr("ramet_tools_bing.cache.NOTHING_FOUND_S", 0)
        assert not (await bing.call(tool, "q")).cached
        assert server.total == 2

    bing.session(lambda query, n: "nothing found", steps)


def test_a_chinese_query_asks_for_the_chinese_market(bing: Any) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        await asyncio.gather(*(bing.call(tool, query) for query in ("甄嬛传导演", "東京タワー", "서울", "a & b=c")))
        urls = {body["url"].partition("&mkt=")[0]: body["url"] for body in server.bodies}
        assert [("zh-CN&setLang=zh" in url) for url in urls.values()] == [True, False, False, False]
        assert "https://www.bing.com/search?q=a+%26+b%3Dc" in urls

    bing.session(lambda query, n: "good", steps, cache="off")
