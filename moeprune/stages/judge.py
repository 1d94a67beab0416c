"""What judges the plans of a search: the model, and text that calibration has not seen.

torch is imported when a search begins, never before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeprune.artefact import canonical_json, sha256_bytes
from moeprune.checkpoint.own_code import is_own_code
from moeprune.core.budget import Budget
from moeprune.core.progress import OnProgress, ignore
from moeprune.core.sizes import parse_bytes
from moeprune.core.stats import CalibrationStats
from moeprune.errors import MismatchError, UsageError
from moeprune.stages.identify import OpenModel, open_model
from moeprune.stages.numbers import check_numbers
from moeprune.stages.runnable import check_trusted
from moeprune.stages.stored import check_runnable

if TYPE_CHECKING:
    from moeprune.evaluate.esap import Esap
    from moeprune.observe.domains import Corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A model opened and its text read: all that can be wrong with a request is found.

    Attributes:
        opened: the model.
        corpora: domain -> text to judge by.
        unseen: domain -> whether calibration has not seen that text.
        options: what decides fitnesses, for the plan's ``options``.
    """

    opened: OpenModel
    corpora: Mapping[str, Corpus]
    unseen: Mapping[str, bool]
    options: Mapping[str, Any]

    @property
    def text(self) -> dict[str, dict[str, Any]]:
        """What the text was, for the plan's ``details``."""
        return {
            name: {
                "source": corpus.source,
                "sha256": corpus.sha256,
                "documents": len(corpus.documents),
                "tokens": corpus.num_tokens,
                "held_out": self.unseen[name],
            }
            for name, corpus in self.corpora.items()
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line where calibration has seen the text."""
        seen = [name for name, unseen in self.unseen.items() if not unseen]
        if not seen:
            return ()
        return (
            f"the search judged plans by text that calibration used (domain {', '.join(seen)}): "
            "its fitness flatters the plan; give it other text.",
        )

    def fingerprint(self, orders: Sequence[Any], budget: Budget, **more: Any) -> str:
        """Of all that decides a search, apart from how long it is."""
        body = {
            "model": self.opened.facts.fingerprint,
            "text": {name: corpus.sha256 for name, corpus in self.corpora.items()},
            "options": dict(self.options),
            "orders": [[int(e) for e in order] for order in orders],
            "most": budget.max_remove,
            "least": budget.min_remove,
            "total": budget.remove_total,
            "unit": budget.unit,
            **more,
        }
        return sha256_bytes(canonical_json(body).encode())


def judged(stats: CalibrationStats, words: Mapping[str, Any], *, seed: int) -> Judged:
    """Open the model and read the text.

    Args:
        stats: of that model.
        words: see :class:`moeprune.stages.search_words.SearchWords`; only what was asked for.
        seed: of the draw of documents.

    Raises:
        MoePruneError: the model, the text or an option does not serve.
    """
    if "model" not in words:
        raise UsageError(
            "--method evoesap judges plans by the model itself: name the model of the stats with "
            "--model MODEL."
        )
    opened = open_model(words["model"], revision=words.get("revision"))
    if opened.facts.fingerprint != stats.model.fingerprint:
        raise MismatchError(
            f"the stats are of {stats.model.name} (fingerprint {stats.model.fingerprint[:12]}), "
            f"--model is {opened.facts.name} ({opened.facts.fingerprint[:12]}). Name the model "
            "that was calibrated, or calibrate this one."
        )
    from moeprune.evaluate.bound import OBJECTIVES
    from moeprune.evaluate.esap import TOP_P
    from moeprune.observe.batches import check_batch_tokens
    from moeprune.observe.held_out import held_out, own_held_out
    from moeprune.observe.load import check_config, check_device, check_dtype, load_tokenizer
    from moeprune.observe.named import named_domains
    from moeprune.observe.prefill import check_observer
    from moeprune.plugins import known

    trust = words.get("trust_remote_code", False)
    options = {
        "objective": known(words.get("objective", "mean"), OBJECTIVES, kind="objective"),
        "top_p": float(words.get("top_p", TOP_P)),
        "search_samples": words.get("search_samples", 16),
        "search_length": words.get("search_length", int(stats.provenance.get("length", 2048))),
        "search_batch_tokens": words.get("search_batch_tokens", 2048),
        "dtype": check_dtype(words.get("dtype", "auto")),
    }
    check_batch_tokens(options["search_batch_tokens"])
    check_device(words.get("device"))
    check_observer(opened.layout)
    check_runnable(opened.index, opened.layout)
    check_trusted(opened.layout, opened.origin, trust_remote_code=trust)
    folder = opened.index.path
    check_config(folder, trust_remote_code=trust)
    how = {
        "tokenizer": load_tokenizer(folder, trust_remote_code=trust),
        "length": options["search_length"],
        "samples": options["search_samples"],
        "seed": seed,
    }
    calibrated, decoded = _calibrated(stats), stats.provenance.get("mode") == "decode"
    corpora: dict[str, Corpus] = {}
    unseen: dict[str, bool] = {}
    if "search_text" in words:
        for name, source in named_domains(words["search_text"]).items():
            corpora[name], unseen[name] = held_out(name, source, calibrated=calibrated, **how)
            if decoded and corpora[name].source in {used.source for used in calibrated.values()}:
                unseen[name] = False  # it cannot be told which documents gave the prompts
    elif decoded:
        raise UsageError(
            "the stats are of --mode decode, which does not tell what it left of its texts. Name "
            "text to search by with --search-text NAME=SOURCE."
        )
    else:
        for name, used in calibrated.items():
            corpora[name], unseen[name] = own_held_out(name, used, **how), True
    return Judged(opened=opened, corpora=corpora, unseen=unseen, options=options)


def esap_of(
    found: Judged, words: Mapping[str, Any], *, budget: Budget, on_progress: OnProgress = ignore
) -> Callable[[Sequence[Any]], Esap]:
    """What loads the model and judges genomes by ESAP, given the order in which experts leave."""
    from moeprune.evaluate.esap import CACHE_BYTES, Esap
    from moeprune.observe.batches import batches
    from moeprune.observe.layers import decoder_layers, moe_layers
    from moeprune.observe.load import load_causal_lm
    from moeprune.routing.mask import masked_experts

    cache = words.get("cache")
    cache_bytes = CACHE_BYTES if cache is None else parse_bytes(cache, option="--cache")
    layout = found.opened.layout

    def evaluate(orders: Sequence[Any]) -> Esap:
        live = load_causal_lm(
            found.opened.index.path,
            dtype=words.get("dtype", "auto"),
            device=words.get("device"),
            trust_remote_code=words.get("trust_remote_code", False)
            or is_own_code(found.opened.index),
        )
        check_numbers(found.opened.index, layout, live)
        rows = moe_layers(live, layout)

        def masking(removed: Sequence[Sequence[int]]) -> AbstractContextManager[None]:
            return masked_experts(
                live,
                routers=[row.router for row in rows],
                num_experts=layout.num_experts,
                removed=removed,
                extra=layout.extra_rows,
            )

        size = found.options["search_batch_tokens"]
        return Esap(
            live,
            layers=decoder_layers(live, layout),
            layer_of_row=[row.layer for row in rows],
            order=[
                [int(e) for e in order[:most]]
                for order, most in zip(orders, budget.max_remove, strict=True)
            ],
            batches={
                name: list(batches(corpus, max_tokens=size))
                for name, corpus in found.corpora.items()
            },
            masking=masking,
            objective=found.options["objective"],
            top_p=found.options["top_p"],
            cache_bytes=cache_bytes,
            on_progress=on_progress,
        )

    return evaluate


def _calibrated(stats: CalibrationStats) -> dict[str, Any]:
    from moeprune.observe.held_out import Calibrated

    made = stats.provenance
    samples = made.get("samples")
    return {
        domain.name: Calibrated(
            source=domain.source,
            sha256=domain.corpus_sha256,
            documents=domain.documents,
            samples=samples if type(samples) is int else None,
            length=int(made.get("length", 2048)),
            seed=int(made.get("seed", 0)),
            chat_template=made.get("chat_template") != "off",
            answers=made.get("loss") == "completion",
        )
        for domain in stats.domains
    }
