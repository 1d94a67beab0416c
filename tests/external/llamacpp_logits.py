"""FOLDER IDS.json OUT.npz: convert FOLDER to GGUF and take the logits that llama.cpp computes.

The key-value cache is float32: with the default, float16, logits differ by 5e-3 from anybody's.
"""

import importlib.metadata
import json
import runpy
import sys
from pathlib import Path

import llama_cpp
import numpy as np

F32 = 0  # GGML_TYPE_F32
folder, ids, result = map(Path, sys.argv[1:])
sources = Path(sys.prefix) / "llama.cpp"  # where install.sh puts the conversion script
sys.path[:0] = [str(sources), str(sources / "gguf-py")]

from conversion import TextModel  # noqa: E402

# The script knows tokenizers by their hash; a tiny one that splits bytes is none of them.
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
gguf = result.with_suffix(".gguf")
sys.argv = ["convert", str(folder), "--outfile", str(gguf), "--outtype", "f32"]
if json.loads((folder / "config.json").read_text())["model_type"].startswith("qwen3_5"):
    sys.argv.append("--no-mtp")  # it takes no Qwen3.5 without next-token layers unless told
runpy.run_path(str(sources / "convert_hf_to_gguf.py"), run_name="__main__")

model = llama_cpp.Llama(
    model_path=str(gguf), n_ctx=256, n_threads=1, n_threads_batch=1, logits_all=True,
    type_k=F32, type_v=F32, flash_attn=False, use_mmap=False, verbose=False,
)  # fmt: skip
tokens = json.loads(ids.read_text())
model.eval(tokens)
logits = np.array(model.scores[: len(tokens)])
np.savez(result, logits=logits, version=importlib.metadata.version("llama-cpp-python"))
