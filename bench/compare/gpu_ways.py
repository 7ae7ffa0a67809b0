"""The ways in which PyTorch is run on the GPU, by name, and the cases that each can take. Needs no library."""

from .gpu_cases import BY_TITLE, MINILM

EAGER = "torch eager f16"
GRAPH = "torch graph f16"
# Texts of equal length need no mask.
NO_MASK = "torch graph f16, no mask"
# Ragged texts sorted by length and padded within groups, or each alone.
SORTED = "torch graph f16, sorted groups"
ONE_BY_ONE = "torch graph f16, one by one"
# Compiling takes about a minute, so only for large batches, where it is the fastest peer.
COMPILED = "torch.compile f16"
GRAPH_F32 = "torch graph f32"
WAYS = [EAGER, GRAPH, NO_MASK, SORTED, ONE_BY_ONE, COMPILED, GRAPH_F32]
COMPILED_TEXTS_LEAST = 512


def precision(way):
    return "f32" if way == GRAPH_F32 else "f16"


def takes(way, title):
    case = BY_TITLE[title]
    if precision(way) == "f32":
        return case.model == MINILM
    if way in (SORTED, ONE_BY_ONE):
        return case.ragged
    if way == COMPILED:
        return not case.ragged and case.texts >= COMPILED_TEXTS_LEAST
    return way != NO_MASK or not case.ragged
