"""Tokenizers with chat templates in the forms of Qwen and Llama, to try rollout steps that leave calls to the template.

The templates are our own; messages, tools and results have the markup of Qwen2.5, Qwen3 and Llama 3.1. Each token is a
byte or a token of the markup, so nothing is downloaded. transformers is imported inside the functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ramet.models.encoder import Encoder

_CHATML_TOOLS = r"""
{%- set ns = namespace(system='') %}
{%- if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}{% endif %}
{%- if tools or ns.system %}
{{- '<|im_start|>system\n' + ns.system }}
{%- if tools %}
{{- '\n\n# Tools\n\nFunctions, as JSON:\n<tools>' }}
{%- for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}
{{- '\n</tools>\n\nTo call one: <tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endif %}
"""
_CHATML_CALLS = r"""
{%- for call in message.tool_calls or [] %}
{{- '\n' if content or not loop.first else '' }}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
"""
_CHATML_RESULTS = r"""
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' }}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}
{%- elif message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
"""

QWEN25 = (
    _CHATML_TOOLS
    + r"""
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set content = message.content %}
{{- '<|im_start|>assistant\n' + content }}
"""
    + _CHATML_CALLS
    + _CHATML_RESULTS
    + r"{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN3 = (
    _CHATML_TOOLS
    + r"""
{%- set last = namespace(query=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set last.query = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
{%- set thought = message.content.split('</think>')[0] if '</think>' in message.content else '' %}
{%- set thought = thought.split('<think>')[-1].strip('\n') %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > last.query and (loop.last or thought) %}
{{- '<think>\n' + thought + '\n</think>\n\n' }}
{%- endif %}
{{- content }}
"""
    + _CHATML_CALLS
    + _CHATML_RESULTS
    + r"""
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
"""
)

LLAMA31 = r"""
{%- macro head(role) %}{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}{% endmacro %}
{%- set first = namespace(user=true) %}
{{- '<|begin_of_text|>' }}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- head('ipython') + message.content | tojson + '<|eot_id|>' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('only one call at a time') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- head('assistant') + '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|eot_id|>' }}
{%- else %}
{{- head(message.role) }}
{%- if tools and message.role == 'user' and first.user %}
{%- set first.user = false %}
{{- 'Functions, as JSON. Answer with {"name": NAME, "parameters": OBJECT}.\n\n' }}
{%- for tool in tools %}{{ tool | tojson(indent=4) + '\n\n' }}{% endfor %}
{%- endif %}
{{- message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}
"""

_CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
_TEMPLATES = {"qwen2.5": QWEN25, "qwen3": QWEN3, "llama3.1": LLAMA31}
_SPECIAL = {
    "qwen2.5": ("<|im_end|>", _CHATML),
    "qwen3": ("<|im_end|>", _CHATML),
    "llama3.1": ("<|eot_id|>", (*_LLAMA, "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")),
}
_TAGS = {  # single tokens that are not special, as these models have them
    "qwen2.5": ("<tool_call>", "</tool_call>"),
    "qwen3": ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    "llama3.1": (),
}


def chat_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the chat template of a family: `qwen2.5`, `qwen3` or `llama3.1`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if family not in _TEMPLATES:
        raise ConfigError(f"no chat template {family!r}; there are: {', '.join(_TEMPLATES)}")
    end, special = _SPECIAL[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in _TAGS[family]])
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=end, pad_token=end, clean_up_tokenization_spaces=False
    )
    fast.chat_template = _TEMPLATES[family]
    return fast


def chat_encoder(family: str) -> Encoder:
    """An encoder of `chat_tokenizer(family)`."""
    from ramet.models.encoder import Encoder

    return Encoder(chat_tokenizer(family))
