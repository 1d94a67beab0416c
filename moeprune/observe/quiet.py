"""Manners of foreign code: silence where it talks, one line where it fails."""

from __future__ import annotations

import contextlib
import logging as standard
import warnings
from collections.abc import Iterator

from moeprune.core.foreign import foreign_errors as foreign_errors


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no log lines of transformers below an error, inside the block only.

    Nor of bitsandbytes, which says when it is imported what it would like to have installed too.
    """
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    other = standard.getLogger("bitsandbytes")
    other_level = other.level
    other.setLevel(standard.ERROR)
    try:
        with warnings.catch_warnings():
            # It says that the checkpoint's quantisation settings win, as they should.
            warnings.filterwarnings("ignore", message="You passed `quantization_config`")
            yield
    finally:
        logging.set_verbosity(level)
        other.setLevel(other_level)
        if bars:
            logging.enable_progress_bar()
