"""The core's YAML: `config.yaml` is what every job composes, `algorithm/` holds the core's presets."""
