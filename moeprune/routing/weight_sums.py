"""What the gate weights of a token sum to, mean over tokens, seen as the routers return them.

T tokens, K experts chosen.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn


@torch.inference_mode()
def weight_sums(
    model: Any,
    routers: Mapping[str, nn.Module],
    texts: Sequence[Sequence[int]],
    *,
    device: torch.device,
) -> dict[str, float]:
    """Let a model read texts: router -> mean over their tokens of Σ of a token's gate weights.

    A learned factor of each expert is no part of them. A router that returns something else than
    (logits, (T, K) weights, (T, K) ids, …) is left out.

    Args:
        model: a causal language model.
        routers: name -> module of it; a policy that is applied to one is seen, too.
        texts: token ids.
        device: where the model reads its tokens.
    """
    sums = dict.fromkeys(routers, 0.0)
    tokens = dict.fromkeys(routers, 0)

    def noting(name: str) -> Any:
        def hook(module: nn.Module, _args: Any, returned: Any) -> None:
            if not isinstance(returned, tuple) or len(returned) < 3:
                return
            weights, ids = returned[1:3]
            if torch.is_tensor(weights) and torch.is_tensor(ids) and weights.shape == ids.shape:
                scale_E = getattr(module, "per_expert_scale", None)
                own = weights.float() if scale_E is None else weights.float() / scale_E[ids].float()
                sums[name] += float(own.sum())
                tokens[name] += weights.numel() // weights.shape[-1]

        return hook

    takes = inspect.signature(model.forward).parameters
    few = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}  # nobody reads them
    with ExitStack() as stack:
        for name, router in routers.items():
            stack.callback(router.register_forward_hook(noting(name)).remove)
        for ids in texts:
            model(input_ids=torch.tensor([list(ids)], device=device), use_cache=False, **few)
    return {name: sums[name] / count for name, count in tokens.items() if count}
