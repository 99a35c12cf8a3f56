"""What a fake engine says."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence as Items

from tests.fakes.scheduler import Sequence


class Sampler:
    """A deterministic stand-in for a model: the next token is a function of the tokens so far (and of the choice).

    So a continuation of prompt + output elsewhere gives what the first engine would have given, as greedy sampling
    does. After ``natural_tokens`` output tokens it says ``eos``, unless that is ignored. A sequence that has a script
    says that, then ``eos``.
    """

    def __init__(self, alphabet: Items[int], *, eos: int, natural_tokens: int, follow: dict[int, int]) -> None:
        self._alphabet = alphabet
        self._eos = eos
        self._natural_tokens = natural_tokens
        self._follow = follow

    def __call__(self, sequence: Sequence) -> int:
        if sequence.script:
            said = len(sequence.tokens) - sequence.prompt_tokens
            return sequence.script[said] if said < len(sequence.script) else self._eos
        state = sequence.text_hash
        if state is None:
            state = hashlib.sha256(array("I", sequence.tokens).tobytes())
            if sequence.choice:
                state.update(sequence.choice.to_bytes(4, "little"))
            sequence.text_hash = state
        else:
            state.update(array("I", sequence.tokens[-1:]).tobytes())
        said = len(sequence.tokens) - sequence.prompt_tokens
        may_end = said >= sequence.min_tokens
        if may_end and not sequence.ignore_eos and said + 1 >= self._natural_tokens:
            return self._eos
        forced = self._follow.get(sequence.tokens[-1])
        if forced is not None:
            return forced
        first = int.from_bytes(state.copy().digest()[:4], "little")
        chosen = (self._alphabet[(first + more) % len(self._alphabet)] for more in range(len(self._alphabet)))
        return next(token for token in chosen if may_end or token not in sequence.stop_ids)
