"""Compare two checkpoints in a process that never imports moeprune, as any user loads them.

``python quantised_loading.py EXPORT REFERENCE [--trust] [--stored]``: prints the largest difference
of the logits, and the largest logit.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    export, reference, *options = sys.argv[1:]
    ids = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(3))
    logits = []
    for folder in (export, reference):
        trust = "--trust" in options
        dtype = "auto" if "--stored" in options else torch.float32
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, trust_remote_code=trust, output_loading_info=True
        )
        assert not report["missing_keys"], sorted(report["missing_keys"])[:5]
        assert not report["unexpected_keys"], sorted(report["unexpected_keys"])[:5]
        assert not report["mismatched_keys"], sorted(report["mismatched_keys"])[:5]
        with torch.no_grad():
            logits.append(model.eval()(ids).logits.double())
    assert "moeprune" not in sys.modules
    print(
        json.dumps(
            {
                "difference": float((logits[0] - logits[1]).abs().max()),
                "largest": float(logits[1].abs().max()),
            }
        )
    )


if __name__ == "__main__":
    main()
