"""FOLDER IDS.json OUT.npz: the logits of transformers 4 with its own bitsandbytes quantiser.

On CPUs with AVX-512 BF16, bitsandbytes multiplies in bfloat16 whatever the compute dtype is, which
moves these logits by some tenths; here it is told that the CPU has none, so numbers are float32.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from bitsandbytes.nn import Linear4bit

folder, ids, result = map(Path, sys.argv[1:])
model, report = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32, output_loading_info=True
)
assert not any(report.values()), report
packed = {name: module for name, module in model.named_modules() if isinstance(module, Linear4bit)}
for module in packed.values():
    assert module.weight.dtype == torch.uint8 and module.weight.quant_state is not None
    module.support_avx512bf16_for_cpu = False
    module.compute_dtype, module.compute_type_is_set = torch.float32, True
with torch.no_grad():
    logits = model.eval()(torch.tensor([json.loads(ids.read_text())]), use_cache=False).logits[0]
np.savez(result, logits=logits.numpy(), packed=sorted(packed), version=transformers.__version__)
