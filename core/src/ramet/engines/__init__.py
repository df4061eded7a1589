"""What generates tokens: `protocol` is what all engines share, `torch` computes in this process, `vllm` drives vLLM."""
