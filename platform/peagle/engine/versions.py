"""The vLLM releases that peagle supports. Importing this module does not import vllm."""

from peagle.errors import StartupError
from peagle.upstream import is_read_for

# Live depth and the patches use private parts of vLLM.
KNOWN_VERSIONS = ("0.29",)
KNOWN_TEXT = ", ".join(f"{version}.x" for version in KNOWN_VERSIONS)


def is_known(version: str) -> bool:
    """Return whether peagle's changes to vLLM are tested with this release."""
    return is_read_for(version, KNOWN_VERSIONS)


def require_known_vllm() -> None:
    """Raise StartupError if live depth does not support the installed vLLM."""
    # The CPU build has no package metadata named vllm, so importlib.metadata does not know its version.
    from vllm import __version__ as version

    if not is_known(version):
        raise StartupError(
            f"Live depth supports vLLM {KNOWN_TEXT}, not {version}",
            "Install a supported version, or set speculation.live_depth to false to serve at depth_static",
        )
