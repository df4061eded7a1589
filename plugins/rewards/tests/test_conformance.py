"""Everything that this plugin registers keeps the contract."""

from __future__ import annotations

from pathlib import Path

from ramet import OpenAIOptions
from ramet.testing import OpenAIServer, check_plugin


def test_the_plugin_conforms(tmp_path: Path) -> None:
    function = tmp_path / "length_of_answer.py"
    function.write_text("def compute_score(data): return [len(sample['output']) for sample in data]\n")
    with OpenAIServer(lambda body: "VERDICT: incorrect") as server:
        options = {
            "rewards.custom": {"path": str(function)},
            "rewards.llm_judge": {"server": OpenAIOptions(urls=[server.url])},
        }
        # The kit's gold answers are no calls, and that of its second task is no number.
        skip = {"rewards.gsm8k": "needs numbers: test_short_answers", "rewards.tool_calls": "test_tool_calls"}
        assert check_plugin("rewards", options=options, skip=skip)
