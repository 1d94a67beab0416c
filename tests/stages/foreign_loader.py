"""Load a per-layer export as a stranger would: moeprune cannot be imported here.

Arguments: the folder, then a new file for what was seen. Run by ``test_per_layer_export.py``.
"""

import importlib.abc
import sys

FOLDER, RESULT = sys.argv[1:]


class NoMoeprune(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "moeprune":
            raise ImportError("moeprune is not installed")


sys.meta_path.insert(0, NoMoeprune())

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModel, AutoModelForCausalLM  # noqa: E402

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
PROMPT = torch.tensor([list(range(3, 27))])
found = {}


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=PROMPT, use_cache=False).logits.float()


def load(folder, auto=AutoModelForCausalLM, **options):
    model, report = auto.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True, **options
    )
    if auto is AutoModelForCausalLM:
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            assert not report[kind], (kind, report[kind])
    return model


# Without trust: the shapes do not fit, and nothing is loaded.
try:
    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=False)
    found["plain"] = torch.tensor(1)
except (RuntimeError, ValueError) as problem:
    assert "size" in str(problem) or "mismatch" in str(problem), problem
    found["plain"] = torch.tensor(0)

for name in ("eager", "grouped_mm", "batched_mm"):
    found[name] = logits(load(FOLDER, experts_implementation=name))
model = load(FOLDER)
found["default"] = logits(model)

tokens = model.generate(PROMPT[:, :8], max_new_tokens=4, do_sample=False)
assert tokens.shape == (1, 12)
# The same greedy tokens as full forward passes give: the cache works.
longer = PROMPT[:, :8]
for _ in range(4):
    with torch.no_grad():
        step = model(input_ids=longer, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
    longer = torch.cat([longer, step], dim=1)
assert torch.equal(tokens, longer), (tokens, longer)

model.save_pretrained(FOLDER + "-again")
found["again"] = logits(load(FOLDER + "-again"))

body = load(FOLDER, AutoModel).eval()
with torch.no_grad():
    states = body(input_ids=PROMPT, use_cache=False).last_hidden_state
    decoder = model.get_decoder()(input_ids=PROMPT, use_cache=False).last_hidden_state
found["body"] = (states - decoder).abs().max()

# Random weights: every parameter is a number, of the layers' own counts.
fresh = AutoModelForCausalLM.from_config(model.config, trust_remote_code=True)
shapes = {key: tensor.shape for key, tensor in model.state_dict().items()}
assert {key: tensor.shape for key, tensor in fresh.state_dict().items()} == shapes
assert all(torch.isfinite(tensor).all() for tensor in fresh.state_dict().values())

# Trust given once is not given to the next load.
try:
    AutoModelForCausalLM.from_pretrained(FOLDER)
    raise SystemExit("loaded without trust after a load with it")
except (RuntimeError, ValueError) as problem:
    assert "size" in str(problem) or "mismatch" in str(problem), problem

assert "moeprune" not in sys.modules
from safetensors.torch import save_file  # noqa: E402

save_file({key: tensor.contiguous() for key, tensor in found.items()}, RESULT)
