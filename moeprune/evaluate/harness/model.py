"""A loaded model as lm-eval asks one. Imports lm-eval, and is imported only where that is wanted.

lm-eval's own class does the asking; here is added what it does not tell: how many tokens were
written, whether the budget was used up, which inputs were cut, and how far it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM

from moeprune.core.chat import dated
from moeprune.evaluate.harness.samples import Written


class LoadedModel(HFLM):
    """One process asks one model.

    Attributes:
        written: text of a prompt -> what is known of the answers to it, in the order written.
        lengths: a text whose likelihood was asked for -> its tokens.
        cut: arguments of requests that were longer than the model reads.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        batch_size: int,
        max_length: int | None,
        device: torch.device | None,
        template: Mapping[str, Any],
        think_end: str | None,
        on_rows: Callable[[int, int], None],
    ) -> None:
        """Wrap a model.

        Args:
            model: a causal language model of transformers.
            tokenizer: its own; a copy is used, since lm-eval changes what it is given.
            batch_size: sequences that run side by side.
            max_length: tokens of the longest input; None: what the model's config says.
            device: where inputs go; None: where the model says it is.
            template: what the chat template is told.
            think_end: text after which the answer stands.
            on_rows: told how many sequences of how many are done.
        """
        super().__init__(
            pretrained=model,
            backend="causal",
            tokenizer=copy.deepcopy(tokenizer),
            batch_size=batch_size,
            max_length=max_length,
            chat_template_args=dict(template),
            think_end_token=think_end,
        )
        if device is not None:
            self._device = device
        written: Any = self.tokenizer.chat_template
        if isinstance(written, str):
            self.tokenizer.chat_template = dated(written)
        elif isinstance(written, Mapping):  # several, by name
            self.tokenizer.chat_template = {name: dated(text) for name, text in written.items()}
        self.written: dict[str, list[Written]] = {}
        self.lengths: dict[str, int] = {}
        self.cut: set[tuple[Any, ...]] = set()
        self._contexts: list[str] = []
        self._on_rows = on_rows
        self._rows = self._total = 0
        stated = getattr(model.generation_config, "eos_token_id", None)
        ends = stated if isinstance(stated, list | tuple) else [stated]
        self._ends = {end for end in (*ends, self.tokenizer.eos_token_id) if end is not None}

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """Without a bar."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """Without a bar."""
        self._rows = self._total = 0
        for (text,) in (request.args for request in requests):
            self.lengths[text] = len(self.tok_encode(text))
        return super().loglikelihood_rolling(requests, disable_tqdm=True)

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """Without a bar."""
        self._rows, self._total = 0, len(requests)
        return super().generate_until(requests, disable_tqdm=True)

    def _loglikelihood_tokens(
        self, requests: Any, disable_tqdm: bool = True, override_bs: int | None = None
    ) -> Any:
        for texts, context, continuation in requests:
            if texts is not None and len(context) + len(continuation) > self.max_length + 1:
                self.cut.add(tuple(texts))
        if override_bs is None:
            # Continuations of one token after the same context share a sequence.
            alike = {tuple(context + continuation[:-1]) for _, context, continuation in requests}
            self._rows, self._total = 0, len(alike)
        return super()._loglikelihood_tokens(requests, disable_tqdm=True, override_bs=override_bs)

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        logits = super()._model_call(inps, *args, **kwargs)
        self._advance(len(inps))
        return logits

    def tok_batch_encode(
        self,
        strings: Sequence[str],
        *args: Any,
        left_truncate_len: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """As lm-eval's own, remembering whose turn it is."""
        self._contexts = list(strings)
        if left_truncate_len:
            for text in strings:
                if len(self.tok_encode(text)) > left_truncate_len:
                    self.cut.add((text,))
        return super().tok_batch_encode(
            strings, *args, left_truncate_len=left_truncate_len, **kwargs
        )

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **kwargs: Any
    ) -> Any:
        found = super()._model_generate(context, max_length=max_length, stop=stop, **kwargs)
        start = context.shape[1]
        for text, row in zip(self._contexts, found.tolist(), strict=True):
            answer = self._measured(row[start:], stop, max_length - start)
            self.written.setdefault(text, []).append(answer)
        self._advance(len(self._contexts))
        return found

    def _advance(self, rows: int) -> None:
        self._rows += rows
        self._on_rows(self._rows, max(self._total, self._rows))

    def _measured(self, ids: list[int], stop: Sequence[str], budget: int) -> Written:
        """Of a row that others may have outlasted: up to its own end."""
        ends = [place for place, token in enumerate(ids) if token in self._ends]
        ids = ids[: ends[0] + 1] if ends else ids
        least, most = 0, len(ids)
        if any(text in self.tok_decode(ids) for text in stop):
            while most - least > 1:  # the fewest tokens that hold a stop
                middle = (least + most) // 2
                if any(text in self.tok_decode(ids[:middle]) for text in stop):
                    most = middle
                else:
                    least = middle
            return Written(tokens=most, truncated=False)
        return Written(tokens=len(ids), truncated=not ends and len(ids) >= budget)
