"""Engines, which generate tokens: `protocol` is common to all engines, `torch/` runs in this process, `vllm/` drives
vLLM, and `openai/` asks servers.
"""
