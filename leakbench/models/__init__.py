"""The networks that are trained and attacked: one file a family, one table of their names (`catalog`)."""

from leakbench.models.catalog import (
    MODELS,
    architecture,
    build,
    check_takes,
    default_leak_model,
    default_model,
    one_hot,
    parameters,
)

__all__ = [
    "MODELS",
    "architecture",
    "build",
    "check_takes",
    "default_leak_model",
    "default_model",
    "one_hot",
    "parameters",
]
