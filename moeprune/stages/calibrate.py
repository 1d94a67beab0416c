"""calibrate: run the model over each domain's text once and save the sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.core.progress import OnProgress, ignore, unheard
from moeprune.core.stats import CalibrationStats
from moeprune.stages.begun import check_outputs, engine, identity
from moeprune.stages.calibratable import open_calibratable
from moeprune.stages.claim import progress_file
from moeprune.stages.counted import counted
from moeprune.stages.decode_words import DecodeWords, written_file
from moeprune.stages.enough import check_halves, check_stable
from moeprune.stages.gathered import gather
from moeprune.stages.joined import together
from moeprune.stages.journal import Journal
from moeprune.stages.larger import memory_asked
from moeprune.stages.loss_asked import loss_asked
from moeprune.stages.measuring import Stop, never
from moeprune.stages.placing import check_place
from moeprune.stages.texts import check_not_read, named_sources
from moeprune.stages.together import Work

if TYPE_CHECKING:
    from moeprune.observe.processes import Processes


@together
def calibrate(
    crew: Processes,
    model: str | Path,
    *,
    output: str | Path | None = None,
    domains: Mapping[str, str] | Sequence[str] | None = None,
    recipe: str | Path | None = None,
    mode: str = "prefill",
    samples: int | None = None,
    length: int = 2048,
    batch_tokens: int | None = None,
    seed: int = 0,
    chat_template: bool = True,
    dtype: str = "auto",
    device: str | None = None,
    shard: tuple[int, int] = (0, 1),
    expert_parallel: int = 1,
    trust_remote_code: bool = False,
    overwrite: bool = False,
    gating: str | None = None,
    revision: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    thinking: str | None = None,
    prompt_length: int | None = None,
    generations: str | Path | Sequence[str | Path] = (),
    stop_when_stable: float | None = None,
    loss_aware: bool = False,
    loss: str | None = None,
    loss_temperature: float | None = None,
    memory: str | int | None = None,
    resume: bool = True,
    stop: Stop = never,
    on_progress: OnProgress = ignore,
    on_warning: Callable[[str], None] | None = None,
    on_story: Callable[[str], None] = unheard,
) -> CalibrationStats:
    """Measure how ``model`` routes each domain's text.

    Everything that can be wrong with the request is found before the model is loaded. Started in
    several processes by torchrun or accelerate, they share the work; the first writes the file.

    Args:
        crew: the processes of this launch; given by the decorator.
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
        batch_tokens: tokens of one forward pass, padding included; None: 8192, or on a GPU as many
            as fit.
        seed: of the draw of documents, and of tokens that are drawn.
        chat_template: write rows of ``messages`` as the tokenizer's template does; False: their
            texts, a blank line between.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``; ``"auto"``: as stored, or float32
            where that is measured to be much faster here and fits.
        device: where to run; None: a GPU where there is one; ``"auto"``: spread over all devices.
        shard: ``(index, of)``: measure documents ``index``, ``index + of``, … only.
        expert_parallel: processes that share the experts of one model, all of this launch; 1: each
            has the whole model and measures a part of the texts.
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
        stop_when_stable: read no more once two halves of the text give plans that overlap that much
            (Jaccard, of what a default plan removes at 25 %), in two rounds of documents one after
            the other; see :mod:`moeprune.stages.enough`.
        loss_aware: measure also what the loss of the next tokens says of each expert, by a
            backward pass over the layers; what is not differentiable in routing is held fixed.
        loss: of which tokens: ``"completion"`` (or None): where a row has a prompt, of the answer
            alone; ``"all"``.
        loss_temperature: logits are divided by it in the loss whose gradient is taken, so that
            tokens of which the model is sure say something too; 1: the plain loss; None: 3.
        memory: what the process may use, e.g. ``"20GB"``: the model is read from its files a layer
            at a time; None: so only where it does not fit.
        resume: go on where an interrupted run of the same request stopped; what it measured lies
            beside ``output``, as ``OUTPUT.progress``. False: begin anew.
        stop: asked after every batch whether to stop there, with what is measured kept.
        on_progress: told of the tokens measured.
        on_warning: told, before the model is loaded, where documents are too short.
        on_story: told, before it starts, how the job is going to be done.

    Returns:
        The stats; the same request on the same machine gives the same bytes.

    Raises:
        StoppedError: ``stop`` said so.
        MoePruneError: the model, a domain, the tokenizer, an option or the output does not serve;
            or what was counted does not add up (``StatsError``).
    """
    work = Work(crew, expert_parallel=expert_parallel)
    on_progress, stop = work.heard(on_progress), work.asked_to_stop(stop)
    on_warning, on_story = (on_warning, on_story) if work.speaks else (None, unheard)
    words = DecodeWords.of(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        thinking=thinking,
        prompt_length=prompt_length,
        generations=generations,
    )
    words.check(mode, domains if recipe is None else recipe, chat_template=chat_template)
    of_loss = loss_asked(
        loss,
        loss_aware=loss_aware,
        temperature=loss_temperature,
        mode=mode,
        expert_parallel=expert_parallel,
    )
    most = memory_asked(memory, mode, words, expert_parallel=expert_parallel)
    out = None if output is None else Path(output)
    outputs = [] if out is None else words.outputs(out, mode)
    if out is not None:
        check_outputs(outputs, out, work=work, overwrite=overwrite, resume=resume)
    opened = crew.first_here(
        partial(
            open_calibratable,
            model,
            mode=mode,
            revision=revision,
            gating=gating,
            trust_remote_code=trust_remote_code,
            loss=bool(of_loss),
        )
    )
    from moeprune.observe.load import check_config
    from moeprune.observe.tokenizer import load_tokenizer

    if stop_when_stable is not None:
        check_stable(stop_when_stable, opened.facts, mode=mode, shard=shard)
    device = check_place(
        opened.layout,
        crew.launch,
        dtype=dtype,
        device=device,
        expert_parallel=expert_parallel,
        batch_tokens=batch_tokens,
    )
    sources, samples = named_sources(words, domains=domains, recipe=recipe, samples=samples)
    folder = opened.index.path
    for path in outputs:
        check_not_read(path, opened.index, [*sources.values(), *map(str, words.files())])
    check_config(folder, trust_remote_code=trust_remote_code)
    if out is not None and resume:
        work.check_begun(progress_file(out))
        work.check_begun(written_file(out))
    request = {
        "--mode": mode,
        "--dtype": dtype,
        "--batch-tokens": batch_tokens,
        "--domain": [list(pair) for pair in sources.items()],
        "--length": length,
        "--samples": samples,
        "--seed": seed,
        "--shard": list(shard),
        "--chat-template": chat_template,
        "--stop-when-stable": stop_when_stable,
        "--gating": gating,
        "--trust-remote-code": trust_remote_code,
        **{f"--{name.replace('_', '-')}": value for name, value in of_loss.items()},
        **work.request(),
        **words.request(),
    }
    who = identity(opened)
    kept = None if out is None else work.own_file(progress_file(out))
    whole = {**request, **who, **engine(device)}
    journal = Journal.open(kept, whole, resume=resume, agree=work.agreed, on_warning=on_warning)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    how: dict[str, Any] = {
        "config": opened.index.config,
        "tokenizer": tokenizer,
        "length": length,
        "samples": samples,
        "seed": seed,
        "shard": shard,
    }
    text = gather(
        sources,
        mode=mode,
        words=words,
        chat_template=chat_template,
        on_warning=on_warning,
        loss=of_loss.get("loss"),
        **how,
    )
    if stop_when_stable is not None:
        check_halves(text.corpora)
    work.check_same(
        model=who,
        # Not where the texts lie: another machine may have them elsewhere.
        options=[{**request, "--domain": None, "--generations": None}, text.length],
        text=text.identity,
    )
    stats = counted(
        opened,
        text,
        {
            "mode": mode,
            "samples": samples,
            "seed": seed,
            **({} if chat_template else {"chat_template": "off"}),
            **of_loss,
        },
        who=who,
        tokenizer=tokenizer,
        words=words,
        dtype=dtype,
        device=device,
        memory=most,
        trust_remote_code=trust_remote_code,
        batch_tokens=batch_tokens,
        stable=stop_when_stable,
        output=out,
        resume=resume,
        journal=journal,
        work=work,
        stop=stop,
        on_progress=on_progress,
        on_story=on_story,
    )
    if out is not None:
        if work.speaks:
            stats.save(out)
        work.clear(progress_file(out), written_file(out))
    return stats
