#!/usr/bin/env bash
# Installs other loaders, each into a virtual environment of its own, for the tests of this folder:
#   bash tests/external/install.sh [mlx] [vllm] [llamacpp] [transformers4]     (default: all four)
# Into $MOEPRUNE_LOADERS, or build/external. mlx: 0.4 GB, a minute. vllm: 3.4 GB. llamacpp: 1.3 GB, and compiles
# for 10 to 20 minutes; needs a C++ compiler. transformers4: 1.2 GB, a minute.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
into=${MOEPRUNE_LOADERS:-$here/../../build/external}
[ $# -gt 0 ] || set -- mlx vllm llamacpp transformers4
for loader in "$@"; do
  venv=$into/$loader
  requirements=$here/requirements-$loader.txt
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet -r "$requirements"
  if [ "$loader" = vllm ]; then
    # These come with it, are made for another build of torch, and fail when they are imported.
    "$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
  elif [ "$loader" = llamacpp ]; then
    # The conversion script is in the source package alone.
    sources=$(mktemp -d)
    "$venv/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$sources" \
      "$(grep '^llama-cpp-python==' "$requirements")"
    mkdir -p "$venv/llama.cpp"
    tar -xzf "$sources"/*.tar.gz -C "$venv/llama.cpp" --strip-components=3 --wildcards \
      '*/vendor/llama.cpp/convert_hf_to_gguf.py' '*/vendor/llama.cpp/conversion' '*/vendor/llama.cpp/gguf-py'
    rm -rf "$sources"
  fi
  echo "$loader: $venv"
done
