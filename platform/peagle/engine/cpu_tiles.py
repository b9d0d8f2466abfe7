"""Matrix tiles of x86 processors (AMX), which Linux lets only those processes use that have asked for them."""


def ask_for_tiles() -> None:
    """Ask for them where the processor has them; again, it changes nothing.

    vLLM's attention on a CPU uses tiles without asking. PyTorch asks before its own first product that does: an engine
    whose attention comes before, as that of a small model that embeds, would end with an illegal instruction.
    """
    import torch

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
