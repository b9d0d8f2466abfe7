"""Targets by name: a folder, or a repository of Hugging Face, which is fetched into its cache first."""

from pathlib import Path

from peagle.config import Checkpoint
from peagle.config.schema import parse
from peagle.errors import ConfigError

# Weights in one format, and all that says how to use them; no other formats, no copies in folders of their own.
NEEDED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
NOT_NEEDED = ("*/*", "consolidated*")


def local_target(name: str, field: str, base: Path = Path()) -> Path:
    """The folder of the target `name`: a path, from `base` where it is relative, or `org/name[@revision]`.

    A name that may be either is a folder where there is one. Raises ConfigError of `field` where there is neither a
    folder nor a repository of that name, or it cannot be fetched.
    """
    try:
        folder = (base / Path(name).expanduser()).resolve()
        if folder.is_dir():
            return folder
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(field, name, f"it is no path ({error})", "Name another.") from None
    if (checkpoint := _repository(name)) is None:
        fix = "Name one that is there, or a repository as org/name or org/name@revision."
        raise ConfigError(field, name, "there is no such folder", fix)
    return _fetched(checkpoint, field, name)


def _repository(name: str) -> Checkpoint | None:
    """The repository that `name` is; None where it can only be a path."""
    source, at, revision = name.partition("@")
    try:
        raw = {"source": source, "revision": revision} if at else {"source": source}
        checkpoint = parse(Checkpoint, raw, "target", "a target")
    except ConfigError:
        return None
    return None if checkpoint.is_local else checkpoint


def _fetched(checkpoint: Checkpoint, field: str, name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                checkpoint.source,
                revision=checkpoint.revision,
                allow_patterns=list(NEEDED),
                ignore_patterns=list(NOT_NEEDED),
            )
        )
    except Exception as error:  # its HTTP client's own errors pass through it
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        problem = f"there is no such folder, and the repository cannot be fetched ({type(error).__name__}: {reason})"
        fix = "Check the name, the network and, for one that is not public, HF_TOKEN; or name a folder."
        raise ConfigError(field, name, problem, fix) from None
