"""How far the logits of several programs and settings are from each other on the same tokens, whatever a model would say next.

Knows no program: it is given what writes the logits of lists of ids. Needs numpy.
"""

import json
from dataclasses import dataclass


@dataclass
class Agreement:
    """Of one way's logits with another's."""

    same: int = 0
    divergence: float = 0.0
    tokens: int = 0

    def add(self, mine, other, np):
        """Rows of logits, a token each. The divergence is Kullback and Leibler's, of `mine` from `other`."""
        self.same += int((mine.argmax(axis=1) == other.argmax(axis=1)).sum())
        mine, other = log_softmax(mine, np), log_softmax(other, np)
        self.divergence += float((np.exp(other) * (other - mine)).sum())
        self.tokens += len(mine)

    @property
    def top_1(self):
        return self.same / max(self.tokens, 1)

    @property
    def mean_divergence(self):
        return self.divergence / max(self.tokens, 1)

    def words(self):
        return f"top 1 {self.top_1:.2%}, mean KL {self.mean_divergence:.5f} of {self.tokens:,} tokens"


def log_softmax(rows, np):
    rows = rows.astype(np.float64)
    rows = rows - rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def compare(ways, pairs, batches, scratch):
    """Agreement of each pair of names. `ways` maps a name to what writes the logits of a file of lists to another file."""
    import numpy as np

    found = {pair: Agreement() for pair in pairs}
    for lists in batches:
        (scratch / "ids").write_text("".join(json.dumps(ids) + "\n" for ids in lists))
        rows = sum(map(len, lists))
        logits = {}
        for name, write in ways.items():
            write(scratch / "ids", scratch / "logits")
            logits[name] = np.fromfile(scratch / "logits", np.float32).reshape(rows, -1)
        for pair, agreement in found.items():
            mine, other = (logits[name] for name in pair)
            for first in range(0, rows, 64):
                agreement.add(mine[first : first + 64], other[first : first + 64], np)
    return found
