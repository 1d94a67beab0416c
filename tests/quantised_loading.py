"""Compare checkpoints in a process that never imports moeprune, as any user loads them.

``python quantised_loading.py [--trust] [--stored] EXPORT REFERENCE [EXPORT REFERENCE …]`` prints a
line a pair: the largest difference of their logits, over the largest logit where that exceeds 1.
"""

from __future__ import annotations

import sys
from typing import Any


def logits_of(folder: str, options: list[str]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(3))
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype="auto" if "--stored" in options else torch.float32,
        trust_remote_code="--trust" in options,
        output_loading_info=True,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], (folder, kind, sorted(report[kind])[:5])
    with torch.no_grad():
        return model.eval()(ids).logits.double()


def main() -> None:
    import torch

    torch.set_num_threads(1)
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    folders = [word for word in sys.argv[1:] if not word.startswith("--")]
    for export, reference in zip(folders[::2], folders[1::2], strict=True):
        mine, theirs = (logits_of(folder, options) for folder in (export, reference))
        largest = max(1.0, float(theirs.abs().max()))
        print(float((mine - theirs).abs().max()) / largest)
    assert "moeprune" not in sys.modules


if __name__ == "__main__":
    main()
