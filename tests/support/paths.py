"""Paths in this repository."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DEPLOYMENTS = REPOSITORY / "deployments"
EMBEDDED = DEPLOYMENTS / "embedded"
SUPPORT = REPOSITORY / "tests" / "support"
