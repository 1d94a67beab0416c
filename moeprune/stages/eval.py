"""eval: ask a model, and what plans leave of it, the same questions; keep every answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moeprune.core.plan import PrunePlan
from moeprune.core.policy_words import PolicyWords
from moeprune.core.progress import OnProgress, ignore
from moeprune.core.run import Run
from moeprune.stages.eval_output import alone, check_output, write_runs
from moeprune.stages.eval_variants import What, variants_of
from moeprune.stages.eval_words import EvalWords
from moeprune.stages.evaluating import How, evaluate
from moeprune.stages.joined import joint
from moeprune.stages.measuring import Stop, never

if TYPE_CHECKING:
    from moeprune.observe.processes import Processes


@partial(joint, alone=alone)
def eval(
    crew: Processes,
    model: str | Path,
    *,
    output: str | Path | None = None,
    tasks: str | Path | Sequence[str | Path] = (),
    plan: str | Path | PrunePlan | None = None,
    k1: int | None = None,
    k2: int | str | None = None,
    gain: float | Sequence[float] | None = None,
    variants: str | Path | Mapping[str, What] | None = None,
    name: str | None = None,
    corpus: Mapping[str, str] | Sequence[str] | None = None,
    held_out: Mapping[str, str] | Sequence[str] | None = None,
    agreement_with: str | Path | None = None,
    answer_loss: bool | None = None,
    degeneration: str | Path | Sequence[str | Path] = (),
    chunk: int = 2048,
    chunks: int | None = None,
    limit: int | None = None,
    shots: int | None = None,
    chat_template: bool | None = None,
    thinking: bool | None = None,
    think_end: str = "</think>",
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    seeds: int = 1,
    batch_size: int | None = None,
    expected: Mapping[str, float] | None = None,
    effect: float = 0.01,
    include: str | Path | Sequence[str | Path] = (),
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    overwrite: bool = False,
    resume: bool = True,
    stop: Stop = never,
    on_progress: OnProgress = ignore,
    on_warning: Callable[[str], None] | None = None,
) -> tuple[Run, ...]:
    """Ask ``model`` the questions of ``tasks``, as it is or without the experts that plans remove.

    Or with another number of experts per token. The model is loaded once. Everything that can be
    wrong with the request is found before, and what a model answers does not depend on the batch
    size, on the order of a file, or on how many processes of a launch share the work.

    Args:
        crew: the processes of this launch; given by the decorator.
        model: folder or Hub id of any causal language model: a source, an export of any form, a
            model without experts.
        output: the run folder to write, or with ``variants`` a folder of run folders; or None.
        tasks: task files, folders of them, and names of lm-eval's, ``lm_eval:NAME``.
        plan: the experts that stay; the others are masked in memory, which gives the logits of the
            export.
        k1: experts that run per token, with ``k2``; None: as the model does.
        k2: ranks whose probability their weights are divided by; ``"E"``: all.
        gain: factor of all weights, or one a layer; without ``k1`` and ``k2`` of the model's own.
        variants: several plans and policies, and the model itself, asked the same: a TOML file of
            ``[[variant]]`` tables with ``name``, ``plan``, ``k1``, ``k2``, ``gain`` and
            ``ablation``, or name -> plan, policy or such a table (None: the model).
        name: of the run; None: the plan's, or the model's.
        corpus: name -> source of texts for perplexity that were used for calibration or tuning.
        held_out: the same, of texts that were not.
        agreement_with: folder or Hub id of a model of the same experts: how far they are selected
            as there, rank by rank, on ``corpus`` and ``held_out``, or else on the prompts.
        answer_loss: measure also the loss of the right answers of tasks, and of the texts of
            ``corpus`` and ``held_out``, of the model and of what plans leave of it; None: where a
            plan predicts it.
        degeneration: prompts after which the model writes at length, looked at for loops: files of
            questions, ``builtin:NAME``, or ``NAME=SOURCE`` of texts, of which it sees a beginning.
        chunk: tokens of a window of such a text.
        chunks: windows of each text, from its beginning; None: all.
        limit: questions a task, drawn by its seed; None: as the task says, or all.
        shots: solved questions before each; None: as the task says.
        chat_template: questions are written as a chat; to be stated, here or in the task, where
            the tokenizer has a template.
        thinking: the template is told to let the model think; to be stated where it knows that.
        think_end: text after which the answer stands, in tasks of lm-eval, where the model thinks.
        max_new_tokens: budget of a written answer; None: as the task says.
        temperature: 0: greedy; None: as the task says.
        seeds: how often a question is asked whose answer is drawn.
        batch_size: sequences side by side; None: as many as fit.
        expected: task -> accuracy that the unpruned model is known to reach, in [0, 1].
        effect: difference in accuracy that is looked for, in [0, 1].
        include: folders of lm-eval's YAML tasks.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"auto"``: as stored.
        device: where to run; None: a GPU where there is one; ``"auto"``: spread over all devices.
        trust_remote_code: run code that comes with the checkpoint.
        revision: of a Hub model.
        overwrite: replace earlier runs of that name.
        resume: go on where an interrupted run of the same request stopped (``OUTPUT.progress``).
        stop: asked after every batch whether to stop there, with what is answered kept.
        on_progress: told of the questions answered.
        on_warning: told what protocol guards find before a question is asked.

    Returns:
        The runs, in the order of the variants.

    Raises:
        StoppedError: ``stop`` said so.
        MoePruneError: the model, a plan, a policy, a task, an option or the output does not serve.
    """
    out = None if output is None else Path(output)
    if out is not None:
        check_output(out, overwrite=overwrite)
    words = EvalWords(
        tasks=tasks,
        corpus=corpus,
        held_out=held_out,
        degeneration=degeneration,
        chunk=chunk,
        chunks=chunks,
        limit=limit,
        shots=shots,
        chat_template=chat_template,
        thinking=thinking,
        think_end=think_end,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seeds=seeds,
        expected=expected or {},
        include=include,
    )
    how = How(
        agreement_with=agreement_with,
        answer_loss=answer_loss,
        batch_size=batch_size,
        effect=effect,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
        revision=revision,
        resume=resume,
        stop=stop,
        on_progress=on_progress,
        on_warning=on_warning,
    )
    choose = partial(
        variants_of,
        plan=plan,
        words=PolicyWords(k1=k1, k2=k2, gain=gain),
        variants=variants,
        name=name,
    )
    found = evaluate(crew, model, words, how, out=out, choose=choose)
    if out is not None and found.speaks:
        write_runs(out, found.runs, one=variants is None)
    found.answers.remove()
    return found.runs
