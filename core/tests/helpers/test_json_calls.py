"""JSON tool calls in what a policy wrote: both forms, and everything that can be wrong with one."""

from __future__ import annotations

import pytest

from ramet.helpers.json_calls import JsonCall, MalformedCall, find_calls, message_of

TAGGED = 'Expected: <tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}\n</tool_call>'
NO_VALUE = "The tool call is not valid JSON: Expecting value (character 0). "
PLAIN = 'Expected: {"name": "NAME", "parameters": {"ARGUMENT": VALUE}}'


SURROGATE = "The tool call holds half of a surrogate pair, which is no character."
INFINITE = "The tool call holds NaN or an infinite number, which JSON does not have."


def call(name: str, **arguments: object) -> JsonCall:
    return JsonCall(name=name, arguments=arguments)


def tagged(*objects: str) -> str:
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (tagged('{"name": "add", "arguments": {"a": 1}}'), [call("add", a=1)]),
        ("First I add.\n" + tagged('{"name": "add", "arguments": {"a": 1}}') + " Done.", [call("add", a=1)]),
        (
            tagged('{"name": "a", "arguments": {}}', '{"arguments": {"x": [1]}, "name": "b"}'),
            [call("a"), call("b", x=[1])],
        ),
        (tagged('{"name": "a"}', '{"name": "b", "arguments": null}'), [call("a"), call("b")]),
        (
            tagged('{"name": "write", "arguments": {"text": "</tool_call> and <tool_call>"}}'),
            [call("write", text="</tool_call> and <tool_call>")],
        ),
        ("<think>" + tagged('{"name": "a"}') + "</think>" + tagged('{"name": "b"}'), [call("b")]),
        ("so: </think>" + tagged('{"name": "b"}'), [call("b")]),
        (
            "<think>"
            + tagged('{"name": "a"}')
            + "</think>"
            + tagged('{"name": "find", "arguments": {"x": "</think>"}}'),
            [call("find", x="</think>")],
        ),
        (
            tagged('{"name": "find", "arguments": {"x": "<think>"}}', '{"name": "b"}'),
            [call("find", x="<think>"), call("b")],
        ),
        ("<think>never ends " + tagged('{"name": "a"}'), []),
        ("The answer is 5.", []),
        ("", []),
    ],
)
def test_calls_between_tags_are_read_in_order_and_none_from_reasoning(text: str, found: list[JsonCall]) -> None:
    assert find_calls(text, "tool_call") == found
    assert find_calls(text, "auto") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"name": "add", "parameters": {"a": 1}}', [call("add", a=1)]),
        ('\n{"type": "function", "name": "add", "parameters": {"a": 1}} I add.', [call("add", a=1)]),
        ('{"name": "a", "parameters": {}} ; {"name": "b", "arguments": {"x": "y"}}', [call("a"), call("b", x="y")]),
        ('<|python_tag|>{"type": "function", "name": "a", "parameters": {}}', [call("a")]),
        ('{"name": "Ada", "age": 5}', []),
        ('[{"name": "a", "parameters": {}}]', []),
        ("{x} is a set.", []),
        ("5", []),
        ('I would call {"name": "a", "parameters": {}}', []),
    ],
)
def test_a_message_that_is_an_object_is_a_call_and_other_json_an_answer(text: str, found: list[JsonCall]) -> None:
    assert find_calls(text, "json") == found
    assert find_calls(text, "auto") == found
    assert find_calls(text, "tool_call") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (tagged('{"name": "add", "arguments": {"a": 1}'), "The tool call is not valid JSON: Expecting ',' delimiter"),
        (tagged("add(1)"), "The tool call is not valid JSON: Expecting value (character 0)."),
        (tagged(""), "The tool call is not valid JSON: Expecting value (character 0)."),
        ('<tool_call>\n{"name": "add"}', "The tool call is not closed: write </tool_call> right after the object."),
        (
            tagged('{"name": "add"} and more'),
            "The tool call goes on after its JSON object: write </tool_call> right after the object.",
        ),
        (tagged('["add"]'), f"The tool call must be a JSON object. {TAGGED}"),
        (tagged('{"arguments": {}}'), f'The tool call names no tool: "name" must be a text. {TAGGED}'),
        (tagged('{"name": 5}'), f'The tool call names no tool: "name" must be a text. {TAGGED}'),
        (tagged('{"name": "add", "arguments": "{}"}'), 'The "arguments" of the add call must be a JSON object.'),
        (tagged('{"name": "add", "arguments": [1]}'), 'The "arguments" of the add call must be a JSON object.'),
        (
            tagged('{"name": "a", "arguments": {"x": ' + "[" * 99 + "]" * 99 + "}}"),
            "The tool call is nested more than 64 levels deep.",
        ),
        (tagged("[" * 100_000), "The tool call is not valid JSON: a number or its nesting is too long."),
        (tagged("9" * 9999), "The tool call is not valid JSON: a number or its nesting is too long."),
        ('{"name": "add", "parameters": {"a": 1}', "The tool call is not valid JSON: Expecting ',' delimiter"),
        (
            '<|python_tag|>search.call(query="x")',
            NO_VALUE + PLAIN,
        ),
        (tagged('{"name": "\\ud800", "arguments": {}}'), SURROGATE),
        (tagged('{"name": "a", "arguments": {"x": [{"\\udfff": 1}]}}'), SURROGATE),
        (tagged('{"name": "a", "arguments": {"x": NaN}}'), INFINITE),
        (tagged('{"name": "a", "arguments": {"x": -1e999}}'), INFINITE),
        (tagged('{"name": "\\u001b[31m", "arguments": 1}'), 'The "arguments" of the \\x1b[31m call must be'),
        ('{"name": "add", "parameters": 5}', 'The "parameters" of the add call must be a JSON object.'),
    ],
)
def test_what_is_wrong_with_a_call_is_said_in_fixed_english(text: str, said: str) -> None:
    (found,) = find_calls(text, "auto")
    assert isinstance(found, MalformedCall) and found.text.startswith(said)


def test_a_malformed_call_does_not_hide_the_next_one() -> None:
    first, second = find_calls(tagged("{oops", '{"name": "b"}'), "auto")
    assert isinstance(first, MalformedCall) and second == call("b")


@pytest.mark.parametrize(
    ("text", "message"),
    [("a", "a"), ("<think>x</think>\na", "\na"), ("x</think>a", "a"), ("<think>x", ""), ("a<think>x", "a")],
)
def test_the_message_is_what_follows_the_reasoning(text: str, message: str) -> None:
    assert message_of(text) == message
