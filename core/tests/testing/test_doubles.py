from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest

from ramet.engines.protocol import FinishReason, FirstReport, Request, Sampling
from ramet.errors import InfraError
from ramet.testing.doubles import Reply, ScriptedEngine, cut_at_stop, echo_tool, tiny_encoder
from ramet.testing.scripted_context import scripted_generate
from ramet.types import ToolCall

ENCODER = tiny_encoder()


def ask(reply: Reply | str, **sampling: Any) -> tuple[Any, list[FirstReport]]:
    engine = ScriptedEngine({("t", "0", 0): reply}, ENCODER)
    told: list[FirstReport] = []
    request = Request(
        id="train/0/t/0/0",
        token_ids=array("i", [1, 2]),
        sampling=Sampling(**{"max_tokens": 100, **sampling}),
        seed=0,
        first_tokens=2,
    )
    return asyncio.run(engine.generate(request, told.append)), told


def test_a_scripted_reply_ends_at_the_first_stop_string() -> None:
    done, told = ask(Reply(text="ab</python>cd", entropies=(1.0, 2.0)), stop=("</answer>", "</python>"))
    assert (done.finish, done.stop, ENCODER.decode(done.token_ids)) == (FinishReason.STOP, "</python>", "ab</python>")
    assert list(done.entropies) == [1.0, 2.0, 1.0]
    assert told == [FirstReport(request="train/0/t/0/0", entropies=(1.0, 2.0))]


def test_a_scripted_reply_without_a_stop_ends_the_sequence_or_at_the_limit() -> None:
    done, _ = ask("abc")
    assert (done.finish, done.token_ids[-1]) == (FinishReason.END, ENCODER.eos_id)
    cut, _ = ask("abc", max_tokens=2)
    assert (cut.finish, len(cut.token_ids)) == (FinishReason.LENGTH, 2)


def test_a_scripted_reply_can_fail() -> None:
    with pytest.raises(InfraError, match="gone"):
        ask(Reply(text="", fails="gone"))


def test_the_stop_string_that_ends_first_wins() -> None:
    assert cut_at_stop("a</b></a>", ["</a>", "</b>"]) == ("a</b>", "</b>")
    assert cut_at_stop("a", ["</a>"]) == ("a", None)


def test_a_scripted_context_replies_in_order_and_records_calls() -> None:
    async def main() -> Any:
        context = scripted_generate(["one</x>two", "three"], [echo_tool()])
        first, second = await context.generate(stop=["</x>"]), await context.generate()
        result = await context.call_tool(ToolCall(name="python", arguments={"text": "hi"}))
        return first.text, second.finished, result.text, len(context.calls)

    assert asyncio.run(main()) == ("one</x>", True, "hi", 1)
