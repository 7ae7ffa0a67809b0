"""The ways in which PyTorch is run on the GPU, by name, and the cases that each can take. Needs no library."""

from .gpu_cases import BY_TITLE

EAGER = "torch eager f16"
GRAPH = "torch graph f16"
# Faster attention without a mask, which only texts of equal length can do without.
NO_MASK = "torch graph f16, no mask"
# Ragged texts sorted by length and padded within so many groups.
SORTED = "torch graph f16, sorted"
COMPILED = "torch compile f16"
GROUPS = 8


def ways(compiled):
    """All ways; compiling takes about a minute a case, so it is asked for."""
    return [EAGER, GRAPH, NO_MASK, SORTED, *([COMPILED] if compiled else [])]


def takes(way, title):
    ragged = BY_TITLE[title].ragged
    return {NO_MASK: not ragged, SORTED: ragged}.get(way, True)
