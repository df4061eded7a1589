"""What generates tokens. `protocol` is the seam; `torch/` is the built-in engine."""
