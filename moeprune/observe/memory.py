"""How much memory there is for a model."""

from __future__ import annotations

import psutil
import torch


def free_memory(device: torch.device | None) -> int:
    """Bytes that are free where a model is to lie; None: not a GPU."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
