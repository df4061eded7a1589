"""Configuration: `schema` holds the core's sections as dataclasses; `compose` is the only module that knows Hydra."""
