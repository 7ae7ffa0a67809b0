"""The requests of the comparison through HTTP: real words, so that every server's tokenizer has its work. Asks nobody."""

import json
import random
from dataclasses import dataclass

from .batches import ragged_lengths

SEED = 20240
SHORT, LONG = 12, 128
# Requests that differ; they are sent in turn.
BODIES = 64


@dataclass(frozen=True)
class Case:
    """Requests of one kind, from so many connections at once. `tokens` None: texts of mixed lengths."""

    texts: int
    tokens: int | None
    connections: int

    @property
    def kind(self):
        length = {SHORT: "short", LONG: f"of {LONG} tokens", None: "mixed"}[self.tokens]
        return f"{self.texts} {length}"

    @property
    def name(self):
        return f"{self.kind}, {self.connections} conn."


CASES = [
    *(Case(1, SHORT, connections) for connections in (1, 16, 64)),
    *(Case(32, tokens, connections) for tokens in (SHORT, LONG, None) for connections in (1, 4)),
]


@dataclass(frozen=True)
class Overload:
    """More than the server can do: `times` its peak by a schedule, or so many clients that ask again at once."""

    kind: Case
    times: float | None
    connections: int

    @property
    def name(self):
        how = f"open loop, {self.times:g} x the peak" if self.times else f"{self.connections} clients that retry at once"
        return f"{self.kind.kind}: {how}"


OVERLOADS = [
    # As many connections as a server takes. Where it is quick they are fewer single texts than its queue has room for.
    Overload(Case(1, SHORT, 64), 4.0, 4000),
    Overload(Case(32, SHORT, 4), 4.0, 1000),
    Overload(Case(32, LONG, 4), None, 20),
]


def words_of(tokenizer):
    """Words of a BERT tokenizer (the parsed `tokenizer.json`) that are one token each."""
    pieces = sorted(tokenizer["model"]["vocab"])
    return [piece for piece in pieces if piece.isascii() and piece.isalpha() and piece.islower() and len(piece) > 2]


def bodies(case, words, model):
    """The bodies of a case: JSON, one a line. The same for every server."""
    rng = random.Random(f"{SEED} {case.kind}")
    lines = []
    for _ in range(BODIES):
        lengths = [case.tokens] * case.texts if case.tokens else ragged_lengths(rng, case.texts)
        # Two tokens are put around each text.
        texts = [" ".join(rng.choices(words, k=max(length - 2, 1))) for length in lengths]
        lines.append(json.dumps({"model": model, "input": texts}))
    return "\n".join(lines) + "\n"
