"""Requests matrix tiles (AMX) of x86 processors, which Linux allows only to processes that have asked for them."""


def ask_for_tiles() -> None:
    """Ask for tiles if the processor has them. Idempotent.

    vLLM's attention on a CPU uses tiles without asking. PyTorch asks before its own first product with tiles. In an
    engine whose attention runs earlier, such as a small embedding model, an illegal instruction would end the process.
    """
    import torch

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
