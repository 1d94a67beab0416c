"""calibrate: run the model over each domain's text once and save the sums."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import moeprune
from moeprune.architectures import attention_kinds
from moeprune.artefact import sha256_bytes
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.progress import OnProgress, Progress, ignore
from moeprune.core.stats import CalibrationStats, DomainStats
from moeprune.errors import CheckpointError, OutputError, UsageError
from moeprune.stages.identify import OpenModel, open_model, routed_fingerprint
from moeprune.stages.numbers import check_numbers
from moeprune.stages.runnable import check_measurable, check_passes
from moeprune.stages.stored import check_runnable
from moeprune.stages.texts import check_not_read, read_texts

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
        mode: ``"prefill"``: one forward pass over the texts.
        samples: documents a domain, drawn by ``seed``; None: the recipe's number, or all.
        length: tokens kept of a document; never more than the model has positions for.
        batch_tokens: tokens of one forward pass, padding included.
        seed: of the draw of documents.
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
        on_progress: told of the tokens measured.
        on_warning: told, before the model is loaded, where documents are too short.

    Returns:
        The stats; the same request on the same machine gives the same bytes.

    Raises:
        MoePruneError: the model, a domain, the tokenizer, an option or the output does not serve;
            or what was counted does not add up (``StatsError``).
    """
    if mode != "prefill":
        raise UsageError(f"--mode {mode} is not in this version; it has prefill.")
    if output is not None:
        _check_writable(Path(output), overwrite=overwrite)
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
    check_runnable(opened.index, opened.layout)
    check_measurable(
        opened.index, opened.layout, opened.origin, trust_remote_code=trust_remote_code
    )
    check_dtype(dtype)
    check_device(device)
    check_batch_tokens(batch_tokens)
    if recipe is not None:
        domains, samples = read_recipe(recipe, domains=domains, samples=samples)
    sources = texts.named_domains(domains)
    folder = opened.index.path
    if output is not None:
        check_not_read(Path(output), opened.index, sources.values())
    check_config(folder, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    corpora, length = read_texts(
        sources,
        config=opened.index.config,
        tokenizer=tokenizer,
        length=length,
        samples=samples,
        seed=seed,
        chat_template=chat_template,
        shard=shard,
        on_warning=on_warning,
    )
    live = load_causal_lm(folder, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    _check_unchanged(opened)
    check_numbers(opened.index, opened.layout, live)
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
        },
    )
    check_passes(stats, {corpus.name: corpus.num_tokens for corpus in corpora}, opened.origin)
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


def _check_writable(path: Path, *, overwrite: bool) -> None:
    """Fail now, not after an hour of forward passes."""
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder. Name a file.")
    if path.is_file() and not overwrite:
        raise OutputError(f"{path} exists; name another file, or pass --overwrite.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        reason = problem.strerror or problem
        raise OutputError(
            f"cannot write {path}: {reason} ({path.parent}). Name a file in an existing folder."
        ) from problem


def _check_unchanged(opened: OpenModel) -> None:
    """Fail where the files were replaced between their fingerprint and their loading."""
    now = CheckpointIndex.open(opened.index.path)
    if (
        now.config_text != opened.index.config_text
        or routed_fingerprint(now, opened.layout) != opened.facts.fingerprint
    ):
        raise CheckpointError(
            f"{now.path} was changed while it was being loaded, so it is not known which model "
            "would be measured. Calibrate again when its files are complete."
        )


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
