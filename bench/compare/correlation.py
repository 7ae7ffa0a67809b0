"""Cosine and Spearman's correlation. Takes plain lists, needs no library."""


def cosine(a, b):
    """The cosine of two vectors; 0 where one of them is all zeros."""
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    norms = (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5
    return dot / norms if norms else 0.0


def spearman(a, b):
    """The correlation of the ranks; equal values share the mean of their ranks."""
    return _pearson(ranks(a), ranks(b))


def ranks(values):
    """The rank of each value from 1, ties averaged."""
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            result[place] = (start + 1 + end) / 2
        start = end
    return result


def _pearson(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    shared = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    spread = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    return shared / spread**0.5 if spread else 0.0
