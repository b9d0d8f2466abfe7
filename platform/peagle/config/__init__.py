"""Deployment files, read into strict frozen models."""

from peagle.config.deployment import (
    ACCELERATOR_TYPES,
    PLATFORM_OWNED_ARGUMENTS,
    POWER_OF_TWO,
    ROUTING_POLICIES,
    VARIABLE_NAME,
    Checkpoint,
    Deployment,
    Speculation,
    load_deployment,
    parse_deployment,
)

__all__ = [
    "ACCELERATOR_TYPES",
    "PLATFORM_OWNED_ARGUMENTS",
    "POWER_OF_TWO",
    "ROUTING_POLICIES",
    "VARIABLE_NAME",
    "Checkpoint",
    "Deployment",
    "Speculation",
    "load_deployment",
    "parse_deployment",
]
