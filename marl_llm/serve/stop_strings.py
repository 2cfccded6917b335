"""Stop strings: has the text of a reply reached one, looking only at what is new?

A stop string may begin in one token and end in another, and a character may be spread over several
tokens (byte-level vocabularies). Each token's text is decoded once and remembered; a character that
is still incomplete waits for the rest of its bytes.

Hardly any token can complete a stop string, and which can is known of the vocabulary. So a step
looks all its tokens up in a `StopTable`, and only for the few that may, a row's text is read on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

UNFINISHED = (
    "\N{REPLACEMENT CHARACTER}"  # what decoding gives for bytes that are no character (yet)
)
LONGEST = 4  # bytes of a character in UTF-8, so tokens that one can be spread over

UNKNOWN, NEVER, PERHAPS, ALWAYS = range(4)  # does a token complete a stop string?


class TokenTexts:
    """The text that each token adds to a reply, by decoding it after another token, once."""

    def __init__(self, decode: Callable[[Sequence[int]], str], anchor: Sequence[int]) -> None:
        """Texts of a vocabulary.

        Args:
            decode: token ids to text, nothing skipped and nothing cleaned up.
            anchor: ids of some plain text. Decoders of the SentencePiece kind drop a space at the
                start, and only there; what comes after the anchor keeps it.
        """
        self._decode = decode
        self._anchor = list(anchor)
        self._start = len(decode(self._anchor))
        self._known: dict[int, str] = {}

    def one(self, token: int) -> str:
        """Text of a single token."""
        text = self._known.get(token)
        if text is None:
            text = self._known[token] = self.several([token])
        return text

    def several(self, tokens: Sequence[int]) -> str:
        """Text of consecutive tokens."""
        return self._decode([*self._anchor, *tokens])[self._start :]


class StopScan:
    """One reply's search for its stop strings."""

    def __init__(self, stops: Sequence[str], texts: TokenTexts) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._texts = texts
        self._overlap = max(map(len, self._stops), default=1) - 1
        self._tail = ""  # text before, as much as a stop string may reach back into
        self._open: list[int] = []  # tokens of a character that is not complete
        self.taken = 0  # tokens so far

    def found(self, token: int) -> bool:
        """Take the next token; True once a stop string is complete."""
        self.taken += 1
        text = self._texts.one(token)
        if self._open or UNFINISHED in text:
            self._open.append(token)
            text = self._texts.several(self._open)
        seen = self._tail + text
        if any(stop in seen for stop in self._stops):
            return True
        if self._open and text.endswith(UNFINISHED) and len(self._open) < LONGEST:
            return False
        self._open = []
        self._tail = seen[-self._overlap :] if self._overlap else ""
        return False


class StopTable:
    """For some stop strings and each token of a vocabulary: can it complete one of them?"""

    def __init__(self, stops: Sequence[str], texts: TokenTexts, vocabulary: int) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._ends = tuple(stop[i:] for stop in self._stops for i in range(1, len(stop)))
        self._texts = texts
        self._kinds = np.full(vocabulary, UNKNOWN, np.int8)

    def kinds(self, tokens: np.ndarray) -> np.ndarray:
        """NEVER, PERHAPS (it hangs on what stands before) or ALWAYS for each token, [N] int8."""
        for token in set(tokens[self._kinds[tokens] == UNKNOWN].tolist()):
            self._kinds[token] = self._kind(token)
        return self._kinds[tokens]

    def scan(self) -> StopScan:
        """The search in a reply, from its start."""
        return StopScan(self._stops, self._texts)

    def _kind(self, token: int) -> int:
        text = self._texts.one(token)
        if any(stop in text for stop in self._stops):
            return ALWAYS
        if UNFINISHED in text or text.startswith(self._ends):
            return PERHAPS
        return NEVER
