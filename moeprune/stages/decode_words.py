"""What a user says of ``calibrate --mode decode``, and whether it goes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from moeprune.errors import UsageError
from moeprune.observe.sources import split_name
from moeprune.plugins import known

MODES = ("prefill", "decode")
THINKING = ("on", "off", "default")
MAX_NEW_TOKENS = 512
_COLDEST = 1e-6


def generations_file(output: Path) -> Path:
    """Where what the model wrote is kept, beside the stats."""
    return output.with_name(output.name.removesuffix(".safetensors") + ".generations.jsonl")


def written_file(output: Path) -> Path:
    """Where what the model wrote is kept while it writes."""
    generations = generations_file(output)
    return generations.with_name(generations.name + ".progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWords:
    """What a user says of decode mode; None = not said.

    Attributes:
        max_new_tokens: tokens that the model may write after each prompt; see :meth:`settled`.
        temperature: 0 = the most probable token each time; else tokens are drawn.
        thinking: ``"on"``, ``"off"`` or ``"default"``: told to the chat template.
        prompt_length: tokens of a plain text that are its prompt.
        generations: files of what was written already, see ``observe.generations``.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    thinking: str | None = None
    prompt_length: int | None = None
    generations: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, *, generations: str | Path | Sequence[str | Path] = (), **words: Any
    ) -> DecodeWords:
        """As the arguments of calibrate say it: one file or several."""
        one = isinstance(generations, str | Path)
        files = [generations] if one else generations
        return cls(generations=tuple(str(file) for file in files), **words)  # type: ignore[union-attr]

    def check(self, mode: str, domains: object, *, chat_template: bool = True) -> None:
        """Check that the words go together, and with the mode.

        Raises:
            UsageError: they do not, or a number is out of range.
        """
        known(mode, MODES, kind="mode")
        said = [
            f"--{name.replace('_', '-')}"
            for name in ("max_new_tokens", "temperature", "thinking", "prompt_length")
            if getattr(self, name) is not None
        ]
        if mode != "decode":
            said += ["--generations"] if self.generations else []
            if said:
                raise UsageError(f"{said[0]} goes with --mode decode only. Leave it out.")
            return
        if not chat_template:
            raise UsageError(
                "--chat-template off does not go with --mode decode: a chat is answered as its "
                "template writes it. Give rows with 'prompt'."
            )
        if self.generations:
            if domains is not None:
                raise UsageError(
                    "--generations holds the prompts too, so neither --domain nor --recipe goes "
                    "with it. Give --generations NAME=FILE to name a domain."
                )
            for name in ("--max-new-tokens", "--temperature", "--prompt-length"):
                if name in said:
                    raise UsageError(
                        f"{name}: with --generations nothing is generated. Leave it out."
                    )
        if self.max_new_tokens is not None and self.max_new_tokens < 2:
            raise UsageError(
                f"--max-new-tokens {self.max_new_tokens}: the last token of a completion is never "
                "fed back, so at least 2 are needed to count one."
            )
        if self.prompt_length is not None and self.prompt_length < 1:
            raise UsageError(f"--prompt-length {self.prompt_length} must be at least 1.")
        heat = self.temperature or 0.0
        if heat and not _COLDEST <= heat < float("inf"):
            raise UsageError(
                f"--temperature {heat} must be 0 (greedy), or {_COLDEST} or more: below, only the "
                "most probable token is ever drawn, and the division may overflow."
            )
        known(self.thinking or "default", THINKING, kind="thinking")

    def outputs(self, output: Path, mode: str) -> list[Path]:
        """The files that are written: the stats, and what the model wrote."""
        generated = mode == "decode" and not self.generations
        return [output, generations_file(output)] if generated else [output]

    def files(self) -> list[Path]:
        """The files of what was written already."""
        return [split_name(text)[1] for text in self.generations]

    def settled(self, positions: int | None) -> DecodeWords:
        """With a budget, where something is to be generated and none was said.

        Args:
            positions: of the model, None = it states none; prompts get half of few.
        """
        if self.generations or self.max_new_tokens is not None:
            return self
        half = MAX_NEW_TOKENS if positions is None else max(2, positions // 2)
        return replace(self, max_new_tokens=min(MAX_NEW_TOKENS, half))

    def request(self) -> dict[str, Any]:
        """Option -> value, of what decides what is measured, where something was said."""
        said = asdict(self).items()
        return {f"--{name.replace('_', '-')}": value for name, value in said if value}

    def provenance(self) -> dict[str, Any]:
        """What the stats say of it; what another engine did is not known."""
        made = not self.generations
        temperature = self.temperature or 0.0
        return {
            "continuations": "generated" if made else "file",
            "max_new_tokens": self.max_new_tokens,
            "do_sample": temperature > 0 if made else None,
            "temperature": temperature if made else None,
            "thinking": self.thinking or "default",
            "prompt_length": self.prompt_length,
        }
