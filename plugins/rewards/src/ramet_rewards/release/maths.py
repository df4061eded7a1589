"""The released scores that no published run used: `math`, `math_dapo`, `gsm8k` and exact match of short answers.

`is_equiv` is the comparison of strings that came with the MATH data set (Hendrycks et al., arXiv 2103.03874);
`normalize_final_answer` is Minerva's (Lewkowycz et al., arXiv 2206.14858, appendix D.1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ramet_rewards.release.deep_research import last_boxed, normalize_answer, remove_boxed

_ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_ANSWER_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_REPLACED = (
    ("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), (r"\ ", ""), (" ", ""), ("mbox", "text"),
    (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}"),
)  # fmt: skip
_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
    "\\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', "\\dots",
)  # fmt: skip


def compute_score(solution: str, gold: Any) -> float:
    """1 if the last box of the text equals the gold answer, compared as strings."""
    try:
        box = last_boxed(solution)
        return float(box is not None and is_equiv(remove_boxed(box), gold))
    except ValueError:
        return 0.0


def is_equiv(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    try:
        return strip_string(one) == strip_string(other)
    except (ValueError, IndexError, AttributeError):
        return bool(one == other)


def strip_string(text: str) -> str:
    """Raises `ValueError` and `IndexError` for texts that it cannot take apart."""
    for old, new in (
        ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", ""),
        ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""),
    ):  # fmt: skip
        text = text.replace(old, new)
    if "\\text{ " in text:
        text, _ = text.split("\\text{ ")  # a unit; more than one is an error
    for old, new in (("\\%", ""), (" .", " 0."), ("{.", "{0.")):
        text = text.replace(old, new)
    if not text:
        return text
    if text[0] == ".":
        text = "0" + text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _fractions(_roots(text).replace(" ", ""))
    return _slashed("\\frac{1}{2}" if text == "0.5" else text)


def _roots(text: str) -> str:
    first, *rest = text.split("\\sqrt")
    return first + "".join(f"\\sqrt{part}" if part[0] == "{" else f"\\sqrt{{{part[0]}}}{part[1:]}" for part in rest)


def _fractions(text: str) -> str:
    first, *rest = text.split("\\frac")
    for part in rest:
        if part[0] == "{":
            first += f"\\frac{part}"
        elif len(part) < 2:
            return text
        elif part[1] == "{":
            first += f"\\frac{{{part[0]}}}{part[1:]}"
        else:
            first += f"\\frac{{{part[0]}}}{{{part[1]}}}{part[2:]}"
    return first


def _slashed(text: str) -> str:
    top, slash, bottom = text.partition("/")
    try:
        a, b = int(top), int(bottom)
    except ValueError:
        return text
    return f"\\frac{{{a}}}{{{b}}}" if slash and text == f"{a}/{b}" else text


def dapo_score(solution: str, gold: str, *, strict_box: bool = False) -> dict[str, Any]:
    """1 or -1: the last `Answer:` line of the last 300 characters, or the last box of the last 100."""
    if strict_box:
        box = last_boxed(solution[-100:]) if "\\boxed{" in solution[-100:] else None
        prediction = None if box is None else remove_boxed(box)
        right = prediction == gold
    else:
        lines = _ANSWER_LINE.findall(solution[-300:])
        prediction = normalize_final_answer(lines[-1] if lines else "[INVALID]")
        right = prediction == normalize_final_answer(gold)
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": prediction}


def normalize_final_answer(text: str) -> str:
    text = text.split("=")[-1]
    for old, new in (*_REPLACED, *((unit, "") for unit in _REMOVED)):
        text = text.replace(old, new)
    text = re.sub(r"^.*?\$(.*?)\$.*$", r"$\1$", text)
    for command in ("text", "textbf", "overline", "boxed"):
        text = re.sub(rf"\\{command}\{{(.*?)\}}", r"\1", text)
    text = re.sub(r"(frac)([^{])(.)", r"\1{\2}{\3}", text)
    text = re.sub(r"(sqrt)([^{])", r"\1{\2}", text).replace("$", "")
    digits = text.replace(",", "")
    return (digits if digits.isdigit() else text).strip()


def gsm8k_score(solution: str, gold: str, method: str = "strict") -> float:
    """`strict`: the number after the first `#### `; `flexible`: the last number of the text."""
    if method == "strict":
        match = re.search(r"#### (\-?[0-9\.\,]+)", solution)
        answer = match[1].replace(",", "").replace("$", "") if match else None
    else:
        numbers = [number for number in re.findall(r"(\-?[0-9\.\,]+)", solution) if number not in ("", ".")]
        answer = numbers[-1] if numbers else None
    return 0 if answer is None else float(answer == gold)


def em_score(solution: str, gold: Mapping[str, Any], *, within: bool = False) -> float:
    """Search-R1's: the last of the answer tags equals a gold answer, or contains one (`within`)."""
    answers = _ANSWER_TAGS.findall(solution)
    if not answers:
        return 0
    answer = normalize_answer(answers[-1].strip())
    if solution.count("<answer>") > 10 and not within:
        return 0.0
    target = gold["target"]
    golds: Sequence[str] = [target] if isinstance(target, str) else target
    wanted = [normalize_answer(text) for text in golds]
    return float(any(text in answer for text in wanted) if within else answer in wanted)
