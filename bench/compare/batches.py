"""Makes the batches that every contender runs: random token ids, seeded. Never pads, never depends on a peer."""

import random

SEED = 20240
CLS, SEP = 101, 102
# Ids of ordinary word pieces: the ones below are special or single characters.
FIRST_WORD, LAST_WORD = 1000, 28999
LONGEST = 256
GROUPS = 8


def make_batches():
    """Lists of token ids, one a text, by the name of the case."""
    rng = random.Random(SEED)
    lengths = {
        "1x16": [16],
        "1x128": [128],
        "32x128": [128] * 32,
        "32 ragged": ragged_lengths(rng, 32),
    }
    return {name: texts_of(rng, sizes) for name, sizes in lengths.items()}


def texts_of(rng, lengths):
    """Texts of these lengths in tokens, as lists of ids."""
    return [_text(rng, length) for length in lengths]


def ragged_lengths(rng, count):
    """Lengths in tokens as short texts have them: log-normal, 5 to 256, median about 23."""
    return [min(max(int(rng.lognormvariate(3.0, 0.8)) + 3, 5), LONGEST) for _ in range(count)]


def sorted_groups(texts):
    """Texts of like length together, so that a peer that pads pads little."""
    texts = sorted(texts, key=len)
    size = -(-len(texts) // GROUPS)
    return [texts[first : first + size] for first in range(0, len(texts), size)]


def flops(batch, hidden=384, layers=6, ffn=1536):
    """Floating-point operations of one pass over the batch without padding (the shape is MiniLM-L6's)."""
    matrices = 4 * hidden * hidden + 2 * hidden * ffn
    return sum(layers * 2 * n * (matrices + 2 * n * hidden) for n in map(len, batch))


def _text(rng, length):
    return [CLS, *(rng.randint(FIRST_WORD, LAST_WORD) for _ in range(length - 2)), SEP]
