"""What generates tokens. `protocol` is what all engines share; `torch/` is an engine in this process; `vllm/` drives vLLM."""
