"""What a chat template reads beside the messages: the variables that a user may set, and whether it describes tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta
from transformers import PreTrainedTokenizerBase

OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
OF_RENDERING = frozenset(  # parameters of transformers' own call, which never reach a template
    "conversation chat_template tokenize padding truncation max_length return_tensors return_dict "
    "return_assistant_tokens_mask tokenizer_kwargs".split()
)
GIVEN = frozenset({"raise_exception", "strftime_now"})  # functions that transformers hands to every template


def variables(tokenizer: PreTrainedTokenizerBase) -> frozenset[str] | None:
    """Names that the chat template reads and does not set. None: it is written in an extension that is not known."""
    template = tokenizer.chat_template
    texts = template.values() if isinstance(template, dict) else [template or ""]
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return frozenset().union(*(meta.find_undeclared_variables(environment.parse(text)) for text in texts))
    except TemplateSyntaxError:
        return None


def reads_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    found = variables(tokenizer)
    return found is None or "tools" in found


def check_template_kwargs(kwargs: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Keys of `model.chat_template_kwargs` that would have no effect, or replace what the run itself says."""
    found = variables(tokenizer)
    special = frozenset(tokenizer.special_tokens_map)
    problems = []
    for name in kwargs:
        if name in OURS | OF_RENDERING | special:
            problems.append(f"model.chat_template_kwargs.{name}: is set by the run itself; leave the key out")
        elif found is not None and name not in found:
            free = sorted(found - OURS - GIVEN - special)
            problems.append(
                f"model.chat_template_kwargs.{name}: the chat template reads no such variable; it reads: "
                f"{', '.join(free) or 'none'}"
            )
    return problems
