"""What the comparison on the GPU runs: shapes, batches and the times that must hold. Runs nothing itself."""

import random
from dataclasses import dataclass

from .batches import SEED, ragged_lengths, texts_of

MINILM, BGE_BASE = "minilm-l6", "bge-base"
TOKENS = 128
# Seeds whose lengths come to the totals that the targets were set for, 869 tokens in 32 texts and 15,193 in 512, with a
# longest text as long as there (98) or a little shorter (228 for 238): what peers pad to is not made worse for them.
RAGGED_SEEDS = {32: 7899, 512: 6130}
# A rehearsal divides texts and tokens by these, so that a CPU plays the GPU's part in seconds.
REHEARSAL_TEXTS, REHEARSAL_TOKENS, REHEARSAL_RAGGED = 64, 8, 8


@dataclass(frozen=True)
class Shape:
    """The shape of a BERT encoder; speed does not depend on the weights."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocabulary: int = 30522
    positions: int = 512

    def weights(self):
        """How many numbers the weights are."""
        layer = 4 * self.hidden * self.hidden + 2 * self.hidden * self.ffn + 9 * self.hidden + self.ffn
        return (self.vocabulary + self.positions + 2 + 2) * self.hidden + self.layers * layer

    def products(self):
        """Inputs and outputs of the matrix products of a layer; q, k and v are one."""
        return [
            (self.hidden, 3 * self.hidden),
            (self.hidden, self.hidden),
            (self.hidden, self.ffn),
            (self.ffn, self.hidden),
        ]


SHAPES = {MINILM: Shape(384, 6, 12, 1536), BGE_BASE: Shape(768, 12, 12, 3072)}


@dataclass(frozen=True)
class Case:
    """A batch, and on an H200 the time in ms that must hold and the one that the chip allows."""

    title: str
    model: str
    texts: int
    must_ms: float
    goal_ms: float
    ragged: bool = False


CASES = [
    Case("MiniLM 1", MINILM, 1, 0.18, 0.10),
    Case("MiniLM 32", MINILM, 32, 0.45, 0.25),
    Case("MiniLM 128", MINILM, 128, 1.2, 0.70),
    Case("MiniLM 512", MINILM, 512, 3.8, 2.6),
    Case("MiniLM ragged 32", MINILM, 32, 0.20, 0.12, ragged=True),
    Case("MiniLM ragged 512", MINILM, 512, 1.4, 0.9, ragged=True),
    Case("bge-base 32", BGE_BASE, 32, 1.7, 1.3),
    Case("bge-base 512", BGE_BASE, 512, 24.0, 19.0),
]
BY_TITLE = {case.title: case for case in CASES}
# Those that the CPU and the other precisions run too.
EQUAL = [case.title for case in CASES if case.model == MINILM and not case.ragged]
RAGGED = [case.title for case in CASES if case.ragged]


def make_batches(rehearse=False):
    """Lists of token ids by the title of the case; the same in every run."""
    rng = random.Random(SEED)
    return {case.title: texts_of(rng, _lengths(case, rehearse)) for case in CASES}


def tokens_each(rehearse=False):
    return TOKENS // REHEARSAL_TOKENS if rehearse else TOKENS


def fewer(texts, rehearse=False):
    """So many texts, or in a rehearsal a few."""
    return max(1, texts // REHEARSAL_TEXTS) if rehearse else texts


def _lengths(case, rehearse):
    if not case.ragged:
        return [tokens_each(rehearse)] * fewer(case.texts, rehearse)
    lengths = ragged_lengths(random.Random(RAGGED_SEEDS[case.texts]), case.texts)
    # Cut to a few texts, which stay ragged.
    return lengths[:REHEARSAL_RAGGED] if rehearse else lengths
