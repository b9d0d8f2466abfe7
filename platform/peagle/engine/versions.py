"""The releases of vLLM that peagle is read and tested for. Importing this module imports no vllm."""

from peagle.errors import StartupError
from peagle.upstream import is_read_for

# Live depth and the patches reach into vLLM where it has no public interface.
KNOWN_VERSIONS = ("0.29",)
KNOWN_TEXT = ", ".join(f"{version}.x" for version in KNOWN_VERSIONS)


def is_known(version: str) -> bool:
    """Whether what peagle changes in vLLM is tested with this release of it."""
    return is_read_for(version, KNOWN_VERSIONS)


def require_known_vllm() -> None:
    """Raises StartupError where live depth does not know the installed vLLM."""
    # The CPU build has no package metadata named vllm, so importlib.metadata cannot say.
    from vllm import __version__ as version

    if not is_known(version):
        raise StartupError(
            f"Live depth knows vLLM {KNOWN_TEXT}, not {version}",
            "Install a known version, or set speculation.live_depth to false to serve at depth_static",
        )
