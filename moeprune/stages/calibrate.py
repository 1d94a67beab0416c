"""calibrate: run the model over each domain's text once and save the sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import moeprune
from moeprune.architectures import attention_kinds
from moeprune.artefact import sha256_bytes
from moeprune.core.progress import OnProgress, Progress, ignore
from moeprune.core.stats import CalibrationStats, DomainStats
from moeprune.stages import decoding
from moeprune.stages.decode_words import DecodeWords
from moeprune.stages.identify import OpenModel, check_unchanged, open_model
from moeprune.stages.numbers import check_numbers
from moeprune.stages.runnable import check_measurable, check_passes
from moeprune.stages.stored import check_runnable
from moeprune.stages.texts import check_not_read, read_texts
from moeprune.stages.writable import check_writable

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus


def calibrate(
    model: str | Path,
    *,
    output: str | Path | None = None,
    domains: Mapping[str, str] | Sequence[str] | None = None,
    recipe: str | Path | None = None,
    mode: str = "prefill",
    samples: int | None = None,
    length: int = 2048,
    batch_tokens: int = 8192,
    seed: int = 0,
    chat_template: bool = True,
    dtype: str = "auto",
    device: str | None = None,
    shard: tuple[int, int] = (0, 1),
    trust_remote_code: bool = False,
    overwrite: bool = False,
    gating: str | None = None,
    revision: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    thinking: str | None = None,
    prompt_length: int | None = None,
    generations: str | Path | Sequence[str | Path] = (),
    on_progress: OnProgress = ignore,
    on_warning: Callable[[str], None] | None = None,
) -> CalibrationStats:
    """Measure how ``model`` routes each domain's text.

    Everything that can be wrong with the request is found before the model is loaded.

    Args:
        model: folder or Hub id.
        output: the stats file to write, or None.
        domains: name -> source, or ``NAME=SOURCE`` texts; None: the built-in domains. A source is
            ``builtin:NAME``, a ``.jsonl``, ``.txt`` or ``.parquet`` file (``FILE.parquet:COLUMN``),
            or ``hf:ORG/DATASET[/CONFIG]:SPLIT[:COLUMN]``.
        recipe: a TOML file of domains, in place of ``domains``; one that ships with moeprune is
            named without a folder, ``six-domains.toml``.
        mode: ``"prefill"``: one forward pass over the texts; ``"decode"``: the model goes on after
            each prompt, and of one pass over both what it decoded is counted.
        samples: documents a domain, drawn by ``seed``; None: the recipe's number, or all.
        length: tokens kept of a document; never more than the model has positions for. In decode
            mode, tokens that a prompt may have.
        batch_tokens: tokens of one forward pass, padding included.
        seed: of the draw of documents, and of tokens that are drawn.
        chat_template: write rows of ``messages`` as the tokenizer's template does; False: their
            texts, a blank line between.
        dtype: ``"auto"`` (as stored), ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        device: where to run; None: a GPU where there is one; ``"auto"``: spread over all devices.
        shard: ``(index, of)``: measure documents ``index``, ``index + of``, … only.
        trust_remote_code: run code that comes with the checkpoint.
        gating: how routers make scores of logits, for a model that only its own code can run:
            ``"softmax"``, ``"sigmoid"`` or ``"sqrtsoftplus"``.
        overwrite: replace an existing ``output``; without it, hours of measuring are not lost.
        revision: of a Hub model.
        max_new_tokens: decode: tokens the model may write after a prompt; None: 512, or half of the
            model's positions where these are fewer than 1024.
        temperature: decode: 0 or None: greedy; else tokens are drawn.
        thinking: decode: ``"on"``, ``"off"`` or ``"default"``, told to the chat template.
        prompt_length: decode: tokens of a plain text that are its prompt; None: half of it.
        generations: decode: what was written already, ``FILE.jsonl`` or ``NAME=FILE.jsonl``.
        on_progress: told of the tokens measured.
        on_warning: told, before the model is loaded, where documents are too short.

    Returns:
        The stats; the same request on the same machine gives the same bytes.

    Raises:
        MoePruneError: the model, a domain, the tokenizer, an option or the output does not serve;
            or what was counted does not add up (``StatsError``).
    """
    words = DecodeWords.of(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        thinking=thinking,
        prompt_length=prompt_length,
        generations=generations,
    )
    words.check(mode, domains if recipe is None else recipe, chat_template=chat_template)
    outputs = [] if output is None else words.outputs(Path(output), mode)
    for path in outputs:
        check_writable(path, overwrite=overwrite)
    opened = open_model(model, revision=revision, gating=gating)
    from moeprune.observe import domains as texts
    from moeprune.observe.batches import check_batch_tokens
    from moeprune.observe.load import (
        check_config,
        check_device,
        check_dtype,
        decoder_dtype,
        load_causal_lm,
        load_tokenizer,
    )
    from moeprune.observe.prefill import check_observer, prefill
    from moeprune.observe.recipe import read_recipe

    check_observer(opened.layout)
    if mode == "decode":
        decoding.check_decodes(opened.layout)
    check_runnable(opened.index, opened.layout)
    check_measurable(
        opened.index, opened.layout, opened.origin, trust_remote_code=trust_remote_code
    )
    check_dtype(dtype)
    check_device(device)
    check_batch_tokens(batch_tokens)
    if recipe is not None:
        domains, samples = read_recipe(recipe, domains=domains, samples=samples)
    sources = {} if words.generations else texts.named_domains(domains)
    folder = opened.index.path
    for path in outputs:
        check_not_read(path, opened.index, [*sources.values(), *map(str, words.files())])
    check_config(folder, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    how: dict[str, Any] = {
        "config": opened.index.config,
        "tokenizer": tokenizer,
        "length": length,
        "samples": samples,
        "seed": seed,
        "shard": shard,
    }
    asked = None
    corpora: list[Corpus]
    if mode == "decode":
        asked = decoding.ask(words, sources=sources, **how)
        length = asked.length
    else:
        corpora, length = read_texts(
            sources, chat_template=chat_template, on_warning=on_warning, **how
        )
    live = load_causal_lm(folder, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    check_unchanged(opened)
    check_numbers(opened.index, opened.layout, live)
    decoded: dict[str, Any] = {}
    if asked is not None:
        corpora, decoded = decoding.answered(
            asked,
            live,
            tokenizer=tokenizer,
            seed=seed,
            batch_tokens=batch_tokens,
            output=None if output is None else Path(output),
            on_progress=on_progress,
        )
    count = _Counter(corpora, on_progress)
    stats = CalibrationStats(
        model=opened.facts,
        domains=tuple(
            DomainStats(
                name=corpus.name,
                source=corpus.source,
                corpus_sha256=corpus.sha256,
                documents=corpus.total,
                shards=(corpus.shard,),
                duplicates=corpus.duplicates,
                arrays=prefill(
                    live,
                    corpus,
                    layout=opened.layout,
                    batch_tokens=batch_tokens,
                    on_tokens=count,
                ),
            )
            for corpus in corpora
        ),
        provenance={
            "mode": mode,
            "dtype": decoder_dtype(live),
            "length": length,
            "samples": samples,
            "seed": seed,
            "family": opened.origin,
            "config_sha256": sha256_bytes(opened.index.config_text.encode()),
            "versions": _versions(),
            **({} if chat_template else {"chat_template": "off"}),
            **_attention(opened),
            **decoded,
        },
    )
    check_passes(stats, {corpus.name: corpus.num_counted for corpus in corpora}, opened.origin)
    stats.check_counts()
    if output is not None:
        stats.save(Path(output))
    return stats


class _Counter:
    """Adds up tokens over all domains, so that the time left is that of the whole job."""

    def __init__(self, corpora: Sequence[Corpus], on_progress: OnProgress) -> None:
        self._done, self._total = 0, sum(corpus.num_tokens for corpus in corpora)
        self._report = on_progress
        self(0)

    def __call__(self, tokens: int) -> None:
        self._done += tokens
        self._report(Progress("calibrate", self._done, self._total, "tokens"))


def _attention(opened: OpenModel) -> dict[str, list[str]]:
    """The kind of attention of each MoE layer: analyse groups layers by it."""
    kinds = attention_kinds(opened.index.config, opened.facts.layer_ids)
    return {} if kinds is None else {"attention": kinds}


def _versions() -> dict[str, str]:
    return {
        "moeprune": moeprune.__version__,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
