"""What generates tokens. `protocol` is the seam; `torch/` is an engine in this process; `vllm/` drives vLLM."""
