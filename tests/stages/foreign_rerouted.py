"""Load exports with k₁ and k₂ as a stranger would: moeprune cannot be imported here.

Arguments: a new file for what was seen, then the folders. Run by ``test_rerouted_export.py``.
"""

import copy
import importlib.abc
import sys
import threading
from pathlib import Path

RESULT, *FOLDERS = sys.argv[1:]


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


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=PROMPT, use_cache=False).logits.float()


def load(folder, auto=AutoModelForCausalLM, **options):
    model, report = auto.from_pretrained(
        folder, **{"trust_remote_code": True, **options}, output_loading_info=True
    )
    if auto is AutoModelForCausalLM:
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            assert not report[kind], (kind, report[kind])
    return model


def buffers(model):
    return [value for name, value in model.named_buffers() if name.endswith("moeprune_k2")]


def check(folder, name):
    """What every family must do."""
    found[f"{name}.native"] = logits(load(folder, trust_remote_code=False))
    model = load(folder)
    found[f"{name}.rerouted"] = logits(model)
    block = model.config.moeprune
    assert buffers(model) and all(int(value) == block["k2"] for value in buffers(model))
    assert not [key for key in model.state_dict() if "moeprune" in key], "it is not stored"

    tokens = model.generate(PROMPT[:, :8], max_new_tokens=4, do_sample=False)
    longer = PROMPT[:, :8]
    for _ in range(4):
        with torch.no_grad():
            step = model(input_ids=longer, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
        longer = torch.cat([longer, step], dim=1)
    assert torch.equal(tokens, longer), "the cache changes the routing"

    again = f"{folder}-again"
    model.save_pretrained(again)
    found[f"{name}.again"] = logits(load(again))
    found[f"{name}.again-native"] = logits(load(again, trust_remote_code=False))
    body = load(folder, AutoModel).eval()
    with torch.no_grad():
        states = body(input_ids=PROMPT, use_cache=False).last_hidden_state
        decoder = model.get_decoder()(input_ids=PROMPT, use_cache=False).last_hidden_state
    found[f"{name}.body"] = (states - decoder).abs().max()
    return model


def check_deeper(folder, name, model):
    """What hangs on the code of the file and not on a family's router."""
    for way in ("eager", "grouped_mm", "batched_mm"):
        found[f"{name}.{way}"] = logits(load(folder, experts_implementation=way))
    found[f"{name}.deepcopy"] = logits(copy.deepcopy(model))
    found[f"{name}.half"] = logits(copy.deepcopy(model).bfloat16().float()) * 0  # it moves
    fresh = AutoModelForCausalLM.from_config(model.config, trust_remote_code=True)
    fresh.load_state_dict(model.state_dict())
    found[f"{name}.from_config"] = logits(fresh)
    assert all(int(value) == model.config.moeprune["k2"] for value in buffers(fresh))

    # Half of the layers on the disk, their weights read at each call.
    depth = model.config.get_text_config().num_hidden_layers
    places = {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(depth)}
    rest = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    moved = load(folder, device_map=places | rest, offload_folder=f"{folder}-offload")
    assert any(value.device.type == "meta" for value in moved.parameters())
    found[f"{name}.offloaded"] = logits(moved)

    # Two threads on one model, each with its own number of tokens.
    seen = {}

    def run(length):
        for _ in range(4):
            with torch.no_grad():
                seen[length] = model(input_ids=PROMPT[:, :length], use_cache=False).logits

    threads = [threading.Thread(target=run, args=(length,)) for length in (24, 11)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    found[f"{name}.threads"] = seen[24].float()
    assert (seen[11] - seen[24][:, :11]).abs().max() < 1e-5

    # Training, with and without keeping activations.
    losses, gradients = [], []
    for checkpointing in (False, True):
        learner = load(folder).train()
        if checkpointing:
            learner.gradient_checkpointing_enable()
        out = learner(input_ids=PROMPT, labels=PROMPT, use_cache=False)
        out.loss.backward()
        losses.append(out.loss.detach())
        gradients.append([p.grad for p in learner.parameters() if p.grad is not None])
    assert torch.equal(*losses) and losses[0].isfinite()
    assert len(gradients[0]) == len(gradients[1]) > 0
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))
    routers = [m for m in learner.modules() if hasattr(m, "moeprune_k2")]
    assert all(m.weight.grad.abs().max() > 0 for m in routers)

    # What looks for routers by their class finds these.
    recorded = model(input_ids=PROMPT, use_cache=False, output_router_logits=True).router_logits
    assert len(recorded) == len(routers)

    # One whole graph.
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    found[f"{name}.compiled"] = logits(compiled)


for number, folder in enumerate(FOLDERS):
    name = Path(folder).name
    model = check(folder, name)
    if number == 0:
        check_deeper(folder, name, model)

assert "moeprune" not in sys.modules
from safetensors.torch import save_file  # noqa: E402

save_file({key: tensor.contiguous() for key, tensor in found.items()}, RESULT)
