"""The engine `openai`: servers that speak the OpenAI API, as `vllm serve` does."""

from ramet.engines.openai.engine import CAPABILITIES, OpenAIEngine, check_servers

__all__ = ["CAPABILITIES", "OpenAIEngine", "check_servers"]
