"""Compare exports with their references in a process that never imports moeprune.

``python loading_alone.py EXPORT REFERENCE [EXPORT REFERENCE ...]``: prints, for each pair, the
largest difference of the logits, the largest logit, the class of the experts, and what
transformers says without the folder's code.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    ids = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(3))
    found = []
    for export, reference in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        logits = []
        for folder in (export, reference):
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                trust_remote_code=folder == export,
                output_loading_info=True,
            )
            assert not any(report.values()), report
            with torch.no_grad():
                logits.append(model.eval()(ids).logits.double())
        try:
            AutoModelForCausalLM.from_pretrained(export, trust_remote_code=False)
            refused = ""
        except ValueError as problem:
            refused = str(problem)
        found.append(
            {
                "difference": float((logits[0] - logits[1]).abs().max()),
                "largest": float(logits[1].abs().max()),
                "refused": refused,
            }
        )
    assert "moeprune" not in sys.modules
    print(json.dumps(found))


if __name__ == "__main__":
    main()
