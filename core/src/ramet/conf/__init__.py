"""The core's YAML: every job composes `config.yaml`; `algorithm/` has the core's presets."""
