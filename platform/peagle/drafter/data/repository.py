"""Finds targets by name: a folder, or a Hugging Face repository, which is first downloaded into the cache."""

from pathlib import Path

from peagle.config import Checkpoint
from peagle.config.schema import parse
from peagle.errors import ConfigError

# Weights in one format and everything needed to use them; no other formats, and no copies in subfolders.
NEEDED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
NOT_NEEDED = ("*/*", "consolidated*")


def local_target(name: str, field: str, base: Path = Path()) -> Path:
    """Return the folder of the target `name`: a path, relative to `base`, or a repository `org/name[@revision]`.

    A name that could be either is a folder if that exists. Raises ConfigError for `field` if there is neither a folder
    nor a repository of that name, or the download fails.
    """
    try:
        folder = (base / Path(name).expanduser()).resolve()
        if folder.is_dir():
            return folder
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(field, name, f"it is not a path ({error})", "Name another.") from None
    if (checkpoint := _repository(name)) is None:
        fix = "Name an existing folder, or a repository as org/name or org/name@revision."
        raise ConfigError(field, name, "there is no such folder", fix)
    return _fetched(checkpoint, field, name)


def _repository(name: str) -> Checkpoint | None:
    """Parse `name` as a repository; None if it can only be a path."""
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
    except Exception as error:  # errors of its HTTP client pass through unchanged
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        problem = f"there is no such folder, and the repository cannot be downloaded ({type(error).__name__}: {reason})"
        fix = "Check the name, the network and, for a private repository, HF_TOKEN; or name a folder."
        raise ConfigError(field, name, problem, fix) from None
