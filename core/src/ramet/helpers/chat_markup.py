"""Text from outside for the prompt of another model."""

from __future__ import annotations

import re
import unicodedata

# `<|im_end|>`, `<｜User｜>`, `<start_of_turn>`, `</s>`, `<<SYS>>`, `<seed:bos>`, `<|"|>`; `[/INST]`, `[gMASK]`,
# `[|user|]`, `[@BOS@]`; `]~b]`, `[e~[`, `]!d~[`, `]<]start of image[>[`; `>>ANSWER<<`. And wide and small forms of
# their signs, which a tokenizer that normalises text (NFKC) takes for the others. `filter[status]` stays.
_CHAT_MARKUP = re.compile(
    r"[<＜﹤](?=[^ \t\r\n<>]{1,80}[>＞﹥])"
    r"|[\[［](?=[/／]?(?:[|@｜＠]\w+[|@｜＠]?|(?=\w*[A-ZＡ-Ｚ]|control_)[A-Za-z_Ａ-Ｚａ-ｚ]\w+)[\]］]|e~\[)"
    r"|[\]］](?=~|!\w~\[|<\])|>(?=>[A-Z]{2,80}<<)"
)
_SPELLED = {"<": "&lt;", "[": "&#91;", "]": "&#93;", ">": "&gt;"}


def neutralise_chat_markup(text: str) -> str:
    """Return `text` with nothing in it that a chat model's tokenizer takes for a special token.

    For text from outside (an answer of the policy, a page, a server's description) in a prompt that another program
    tokenises. Servers parse special tokens wherever they stand, so such text could end its message and write the next
    one. The first sign of whatever has the form of a special token of any known family is spelled as in HTML:
    `&lt;|im_end|>`, `&#91;INST]`. What Ramet tokenises itself needs it not: see `Untrusted`.
    """
    return _CHAT_MARKUP.sub(lambda sign: _SPELLED[unicodedata.normalize("NFKC", sign[0])], text)
