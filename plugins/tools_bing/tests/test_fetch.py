"""The tool `fetch`: pages become text, private addresses stay private, and hostile pages harm nobody."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramet import InfraError, ToolCall, ToolError
from ramet.helpers import process_pool
from ramet_tools_bing import FetchTool, PageConfig
from ramet_tools_bing.fetch.addresses import is_public, refused_url
from ramet_tools_bing.fetch.pages import PageReader

HERE = ["127.0.0.1/32"]
EXTRACTOR = "ramet_tools_bing.fetch.extractor"
NOT_PUBLIC = "this address is not public"


@pytest.fixture
def pages(tmp_path: Path, load_module: Callable[[str], ModuleType]) -> Callable[..., Any]:
    """`pages(steps, names, **options)` runs `steps(tool, server, names)`; the server is called pages.example."""
    module = load_module("page_server")

    def session(
        steps: Callable[[FetchTool, Any, Any], Awaitable[Any]], table: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        async def run() -> Any:
            async with module.PageServer() as server:
                names = module.Names({"pages.example": [["127.0.0.1"]], **(table or {})})
                chosen = {"allow_private": HERE, "cache_folder": str(tmp_path / "cache"), **options}
                tool = FetchTool(PageConfig(**chosen))
                tool._reader._build = lambda: PageReader(tool.config, tool.cache, names)
                try:
                    return await steps(tool, server, names)
                finally:
                    await tool.aclose()

        return asyncio.run(run())

    return session


async def read(tool: FetchTool, address: str) -> str:
    return (await tool(ToolCall(name="fetch", arguments={"url": address}))).text


def pids(tool: FetchTool) -> list[int]:
    """Of the processes that wait for a page."""
    return [process._process.pid for process in tool.reader.extractor.pool._idle]


async def refusal(tool: FetchTool, address: str) -> str:
    with pytest.raises(ToolError) as caught:
        await read(tool, address)
    return str(caught.value)


def test_pages_become_text(pages: Any) -> None:
    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        text = await read(tool, server.at("/article"))
        assert text.startswith(f"Westerheversand\n{server.at('/article')}\n\n")
        assert "built in 1908" in text and "21 nautical miles" in text and "alert" not in text and "cookies" not in text
        assert "vierzig Füße" in await read(tool, server.at("/latin"))
        assert (await read(tool, server.at("/plain"))).endswith("\n\njust text")
        assert "A paper about lighthouses" in await read(tool, server.at("/pdf"))
        assert (await read(tool, server.at(f"/to?{server.at('/plain')}"))).startswith(f"{server.at('/plain')}\n")
        assert len(await read(tool, server.at("/large"))) < 21_000
        assert len(pids(tool)) == 1

    pages(steps)


def test_what_cannot_be_read_is_said_to_the_model(pages: Any) -> None:
    no_text = "fetch: the page has no text that can be read"

    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        said = {path: await refusal(tool, server.at(path)) for path in ("/gone", "/image", "/large.pdf", "/empty")}
        assert said == {
            "/gone": "fetch: the page answered with HTTP 410",
            "/image": "fetch: the page is of the type image/png; only HTML, plain text and PDF can be read",
            "/large.pdf": "fetch: the page has more than 2 MB",
            "/empty": no_text,
        }
        assert await refusal(tool, server.at("/broken.pdf")) == no_text
        assert await refusal(tool, server.at("/round")) == "fetch: the page leads on to others more than 3 times"
        assert await refusal(tool, server.at("/slow")) == "fetch: the page did not answer within 1 s"
        assert await refusal(tool, "http://unknown.example/") == "fetch: the page cannot be reached"
        assert await refusal(tool, "ftp://pages.example/") == (
            "fetch: only addresses that begin with http:// or https:// can be read"
        )
        assert await refusal(tool, "file:///etc/passwd") == (
            "fetch: only addresses that begin with http:// or https:// can be read"
        )

    pages(steps, page_timeout_s=1)


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://0/", "http://0.0.0.0/", "http://127.1/",
        "http://2130706433/", "http://0x7f.1/", "http://0177.0.0.1/", "http://１２７.0.0.1/", "http://127。0。0。1/",
        "http://10.0.0.1/", "http://172.16.3.4/", "http://192.168.1.1/", "http://169.254.169.254/latest/meta-data/",
        "http://100.100.100.200/", "http://168.63.129.16/", "http://[fe80::1]/", "http://[fd00:ec2::254]/",
        "http://[::ffff:127.0.0.1]/", "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/", "http://224.0.0.1/",
        "http://255.255.255.255/", "http://user:password@127.0.0.1/", "http://127.0.0.1:8000/v1/models",
    ],
)  # fmt: skip
def test_no_private_address_is_asked_in_any_spelling(pages: Any, address: str) -> None:
    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        assert await refusal(tool, address) == f"fetch: {NOT_PUBLIC}"
        assert server.requests.total() == 0

    pages(steps, {"localhost": [["::1"]]}, allow_private=[])


def test_a_redirect_to_a_private_address_is_not_followed(pages: Any) -> None:
    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        for address in ("http://[::1]/", "http://10.1.2.3/", "http://inside.example/", "file:///etc/passwd"):
            said = await refusal(tool, server.at(f"/to?{address}"))
            assert said == f"fetch: {NOT_PUBLIC}" or said.startswith("fetch: only addresses that begin with http")
        assert server.requests == {"/to": 4} and names.asked["inside.example"] == 1

    pages(steps, {"inside.example": [["192.168.7.7"]]})


def test_every_number_of_a_name_is_checked_where_the_connection_takes_it(pages: Any) -> None:
    """A name that is public first and private at the next question, or both at once."""

    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        both = f"http://both.example:{server.port}/article"
        assert await refusal(tool, both) == f"fetch: {NOT_PUBLIC}"
        rebinding = f"http://turns.example:{server.port}"
        assert "1908" in await read(tool, f"{rebinding}/article")
        assert await refusal(tool, f"{rebinding}/plain") == f"fetch: {NOT_PUBLIC}"
        assert server.requests == {"/article": 1} and names.asked["turns.example"] == 2

    table = {"both.example": [["127.0.0.1", "10.0.0.9"]], "turns.example": [["127.0.0.1"], ["10.0.0.9"]]}
    pages(steps, table)


@pytest.mark.parametrize("number", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_numbers_are_public(number: str) -> None:
    assert is_public(ipaddress.ip_address(number))


@pytest.mark.parametrize(
    "number",
    "192.0.0.192 192.0.0.9 fec0::1 192.88.99.1 3fff::1 5f00::1 2001:db8::1 2001:20::1 64:ff9b:1::1 ::8.8.8.8 100::1 "
    "4000::1 198.18.0.1 203.0.113.9 ff02::1 2002:a00:1::1".split(),
)
def test_numbers_of_no_host_of_the_internet_are_not_public_whatever_the_interpreter_knows(number: str) -> None:
    assert not is_public(ipaddress.ip_address(number))


def test_an_address_loses_user_and_fragment() -> None:
    url, why = refused_url(" https://user:password@example.org/a?b=c#d ", [])
    assert (str(url), why) == ("https://example.org/a?b=c", None)
    assert refused_url("http://h/" + "x" * 2000, [])[1] == "the address has more than 2000 characters"
    assert refused_url("http://h:99999/", [])[1] == refused_url("http://[::1/", [])[1] == "this is no address of a page"


def test_hostile_pages_harm_no_other_page(pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """F12 for pages: nested without end, bytes, broken PDF, among good ones."""

    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        async def one(path: str) -> str:
            try:
                return await read(tool, server.at(path))
            except ToolError as error:
                return str(error)

        paths = ["/deep", "/bytes", "/broken.pdf", "/article", "/pdf"] * 3
        texts = await asyncio.gather(*map(one, paths))
        assert all("1908" in text for path, text in zip(paths, texts, strict=True) if path == "/article")
        assert all("lighthouses" in text for path, text in zip(paths, texts, strict=True) if path == "/pdf")
        assert 1 <= len(pids(tool)) <= 2

    pages(steps, cache="off")


def test_a_process_that_is_killed_is_replaced_and_the_page_is_read(pages: Any) -> None:
    """F11: while it waits and while it works."""

    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        await read(tool, server.at("/article"))
        [first] = pids(tool)
        os.kill(first, signal.SIGKILL)
        assert "1908" in await read(tool, server.at("/article"))
        [second] = pids(tool)
        assert second != first
        os.kill(second, signal.SIGSTOP)
        started = time.monotonic()
        tool.reader.extractor.page_s = tool.reader.extractor.pool.deadline_s = 0.2
        assert "1908" in await read(tool, server.at("/article")) and time.monotonic() - started < 15
        assert not Path(f"/proc/{second}").exists()

    pages(steps, cache="off")


def test_a_parser_that_hangs_is_ended_by_its_own_process(pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        await read(tool, server.at("/article"))
        tool.reader.extractor.page_s = 0.001  # even a good page takes longer
        assert await refusal(tool, server.at("/article")) == "fetch: the page has no text that can be read"
        assert pids(tool) == []

    pages(steps, cache="off")


def test_processes_that_cannot_start_are_our_failure(
    pages: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        with pytest.raises(InfraError) as caught:
            await read(tool, server.at("/article"))
        assert str(caught.value).startswith(f"the process {EXTRACTOR} cannot be started: ")
        monkeypatch.setattr(process_pool.sys, "executable", "/bin/true")
        with pytest.raises(InfraError) as caught:
            await read(tool, server.at("/article"))
        assert str(caught.value).startswith(f"the process {EXTRACTOR} did not start: ")

    monkeypatch.setattr(process_pool.sys, "executable", str(tmp_path / "no python"))
    pages(steps, cache="off")


UNREACHED = "fetch: the page cannot be reached"


async def dead_hosts(tool: FetchTool, first: int, n: int) -> None:
    for number in range(first, first + n):
        assert await refusal(tool, f"http://h{number}.example/") == UNREACHED


def test_a_network_that_is_down_is_our_failure(pages: Any) -> None:
    """Nobody answers: neither what is asked for, nor what answered before, nor the probes."""

    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        await read(tool, server.at("/plain"))
        names.table["pages.example"] = [["127.0.0.2"]]  # which refuses connections
        await dead_hosts(tool, 0, 7)
        assert await refusal(tool, "http://h0.example/") == UNREACHED
        for _ in range(2):
            with pytest.raises(InfraError) as caught:
                await read(tool, "http://h7.example/")
            assert str(caught.value) == (
                "fetch: none of the last 8 hosts could be reached, nor any of "
                f"http://pages.example:{server.port}, http://probe.example/: the network seems to be down (the page "
                "cannot be reached)"
            )
            assert 29 < (caught.value.retry_after_s or 0) <= 30
        assert names.asked["probe.example"] == 1  # it is remembered for as long as calls are to wait
        names.table["pages.example"] = [["127.0.0.1"]]
        await read(tool, server.at("/article"))
        assert await refusal(tool, "http://h8.example/") == UNREACHED

    pages(steps, {}, allow_private=["127.0.0.0/8"], probes=["http://probe.example/"])


@pytest.mark.parametrize("proof", ["an earlier page", "a probe", "nothing to ask"])
def test_a_model_that_asks_for_hosts_that_are_not_there_is_told_so_and_never_masked(pages: Any, proof: str) -> None:
    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        if proof == "a probe":
            tool.config.probes[:] = [server.at("/gone")]  # any answer proves that the network is there
        if proof == "an earlier page":
            await read(tool, server.at("/article"))
        await dead_hosts(tool, 0, 20)
        assert server.requests.total() == {"an earlier page": 3, "a probe": 2, "nothing to ask": 0}[proof]

    pages(steps, {}, probes=[])


def test_pages_are_stored_and_failures_are_not(pages: Any) -> None:
    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        for _ in range(2):
            await read(tool, server.at("/article"))
            await refusal(tool, server.at("/gone"))
        assert server.requests == {"/article": 1, "/gone": 2}
        replay = FetchTool(PageConfig(cache="ro", cache_folder=tool.config.cache_folder))
        assert "1908" in await read(replay, server.at("/article"))
        assert await read(replay, server.at("/plain")) == (
            "This page was not recorded, and only recorded pages are answered here."
        )
        await replay.aclose()

    pages(steps)


def test_the_process_that_reads_pages_knows_no_secret(pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret-9c1f")

    async def steps(tool: FetchTool, server: Any, names: Any) -> None:
        await read(tool, server.at("/plain"))
        [pid] = pids(tool)
        assert b"secret-9c1f" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert Path(f"/proc/{pid}/limits").read_text().count("Max file size             0 ") == 1

    pages(steps, cache="off")
