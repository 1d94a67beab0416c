"""A few logits by their hash: two variants with the same were not two.

S tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from moeprune.errors import CheckpointError

PROMPTS = 8
TOKENS = 256


@torch.inference_mode()
def logits_probe(
    model: Any, prompts: Sequence[Sequence[int]], *, device: torch.device
) -> dict[str, str]:
    """Hashes of the logits that a model gives at every position of a few prompts.

    Args:
        model: a causal language model.
        prompts: token ids; the first :data:`PROMPTS` of them are read, :data:`TOKENS` of each.
        device: where the model reads its tokens.

    Returns:
        ``inputs``: hex SHA-256 of the token ids, ``logits``: of the logits as float32.

    Raises:
        CheckpointError: the model lacks a token.
    """
    size = int(model.get_input_embeddings().num_embeddings)
    inputs, logits = hashlib.sha256(), hashlib.sha256()
    for ids in prompts[:PROMPTS]:
        ids_S = np.asarray(ids[:TOKENS], "<i8")
        if ids_S.size and int(ids_S.max()) >= size:
            raise CheckpointError(
                f"the tokenizer gives token {int(ids_S.max())}, the model has {size}. The "
                "tokenizer files belong to another model."
            )
        inputs.update(len(ids_S).to_bytes(8, "little"))
        inputs.update(ids_S.tobytes())
        input_ids_BS = torch.from_numpy(ids_S.astype(np.int64))[None].to(device)
        logits_SV = model(input_ids=input_ids_BS, use_cache=False).logits[0]
        logits.update(logits_SV.float().cpu().contiguous().numpy().astype("<f4").tobytes())
    return {"inputs": inputs.hexdigest(), "logits": logits.hexdigest()}
