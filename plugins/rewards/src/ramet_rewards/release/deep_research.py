"""`deep_research_release`: the reward that trained ARPO and AEPO, exactly as published.

    -1           the format is broken
    0            it is right, and the answer shares no word with the gold answer
    F1           it does
    F1 + 0.1     it does, and both `</search>` and `</python>` are somewhere in the text

The text is everything after the prompt, tool results too. Known weaknesses, all kept:

* Maths is compared word by word after ASCII punctuation is deleted: -5 is 5, 1.5 is 15, 1/2 is 12, (1, 2) is (2, 1);
  `3\\sqrt{3}-6` is not `3\\sqrt{3} - 6`.
* An answer that is only an article (`A` of a multiple choice) is always wrong.
* Shared words pay: "the 5 apples" for 5 gives 2/3.
* Other scripts' punctuation and widths count; Chinese has to match completely.
* Tags within tool results count, so a page with `<answer>` or `<think>` makes a good rollout -1.
* The bonus needs two closing tags anywhere, and no call.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ramet import Reward, Rollout, Score, per_rollout

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED = ("yes", "no", "noanswer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedScore:
    score: float
    reason: str
    answer: str = ""
    f1_score: float = 0


def make() -> Reward:
    return per_rollout(_score)


def _score(rollout: Rollout) -> Score:
    result = compute_score(rollout.response, rollout.task.answer)
    return Score(value=result.score, parts={"f1": result.f1_score, "format": float(result.score >= 0)})


def compute_score(solution: str, golds: str | Sequence[str]) -> ReleasedScore:
    fine, why = validate_format(solution)
    if not fine:
        return ReleasedScore(score=-1, reason=f"bad format: {why}")
    block = extract_answer(solution)
    if block is None:
        return ReleasedScore(score=-1, reason="cannot extract answer")
    try:
        answer = remove_boxed(last_boxed(block))
    except ValueError as error:
        return ReleasedScore(score=-1, reason=f"find box error: {error}")
    f1 = get_f1_score(answer, golds)
    if f1 <= 0:
        return ReleasedScore(score=0, reason=f"wrong answer but good format: {answer}", answer=answer)
    if "</search>" in solution and "</python>" in solution:
        reason = f"correct answer and calling search and python at the same time, get score: {f1 + 0.1}"
        return ReleasedScore(score=f1 + 0.1, reason=reason, answer=answer, f1_score=f1)
    return ReleasedScore(score=f1, reason=f"correct answer, get f1 score: {f1}", answer=answer, f1_score=f1)


def validate_format(text: str) -> tuple[bool, str]:
    """Whether the format is right, and the first rule that it breaks."""
    if text.count("<think>") != text.count("</think>"):
        return False, "<think> </think> not paired"
    if "<think>" not in text:
        return False, "<think> or </think> not found"
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return False, "<answer> or </answer> not found"
    for tool in ("search", "python"):
        if problem := _tool_problem(text, tool):
            return False, problem
    opening, closing = text.index("<answer>"), text.index("</answer>")
    if opening > closing:
        return False, "<answer> must be before </answer>"
    block = text[opening:closing]
    if "\\boxed{" not in block or "}" not in block:
        return False, "answer is missing \\boxed{} format"
    return True, "format is correct"


def _tool_problem(text: str, tool: str) -> str | None:
    position = 0
    while (called := text.find(f"<{tool}>", position)) != -1:
        result = text.find("<result>", called)
        closed = text.find(f"</{tool}>", called)
        ended = text.find("</result>", result)
        if -1 in (result, closed, ended):
            return f"{tool}/result tags are incomplete"
        if not called < closed < result < ended:
            return f"{tool}/result tags are nested in the wrong order"
        position = ended
    return None


def extract_answer(text: str) -> str | None:
    """The text between the first `<answer>` and the next `</answer>`."""
    _, opening, rest = text.partition("<answer>")
    block, closing, _ = rest.partition("</answer>")
    return block if opening and closing else None


def last_boxed(text: str) -> str | None:
    r"""The last `\boxed…` with its wrapper; with a space after it, all up to the next dollar sign."""
    if "\\boxed " in text:
        return "\\boxed " + text.split("\\boxed ")[-1].split("$")[0]
    start = text.rfind("\\boxed")
    if start < 0:
        start = text.rfind("\\fbox")
    if start < 0:
        return None
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if text[position] == "}" and depth == 0:
            return text[start : position + 1]
    return None


def remove_boxed(box: str | None) -> str:
    """Raise `ValueError` for anything but a box."""
    if box is not None and box.startswith("\\boxed "):
        return box.removeprefix("\\boxed ")
    if box is None or not box.startswith("\\boxed{") or not box.endswith("}"):
        raise ValueError("no closed box" if box is None else f"{box} is not a box")
    return box[len("\\boxed{") : -1]


def get_f1_score(answer: str, golds: str | Sequence[str]) -> float:
    all_golds = [golds] if isinstance(golds, str) else golds
    return max((_f1(normalize_answer(answer), normalize_answer(gold)) for gold in all_golds), default=0)


def normalize_answer(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _CLOSED or gold in _CLOSED):
        return 0
    answer_words, wanted = answer.split(), gold.split()
    shared = (Counter(answer_words) & Counter(wanted)).total()
    if not shared:
        return 0
    precision, recall = shared / len(answer_words), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)
