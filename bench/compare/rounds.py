"""The one rule of every comparison: at least five rounds, the ratio of two contenders is taken within a round, and the
median of those ratios decides. Knows no contender, no unit and no page."""

import operator
import statistics
from dataclasses import dataclass

from .contenders import Unavailable

ROUNDS_LEAST = 5
HIT, MISS = "hit", "MISS"


@dataclass(frozen=True)
class Spread:
    """One value for each round."""

    rounds: tuple

    @property
    def median(self):
        return statistics.median(self.rounds)

    def __format__(self, spec):
        return f"{self.median:{spec}} ({min(self.rounds):{spec}}-{max(self.rounds):{spec}})"


class Figures:
    """What was measured: a figure by contender, case and round."""

    def __init__(self):
        self._taken = {}

    def add(self, name, case, number, value):
        self._taken.setdefault((name, case), {})[number] = value

    def names(self):
        return list(dict.fromkeys(name for name, _ in self._taken))

    def cases(self):
        return list(dict.fromkeys(case for _, case in self._taken))

    def spread(self, name, case):
        """The figures of all rounds; None where there are none."""
        taken = self._taken.get((name, case))
        return Spread(tuple(taken.values())) if taken else None

    def ratio(self, above, below):
        """One (name, case) divided by another in each round that has both; None where no round has."""
        return self._paired(above, below, operator.truediv)

    def difference(self, one, other):
        """The same, subtracted."""
        return self._paired(one, other, operator.sub)

    def _paired(self, one, other, combine):
        one, other = self._taken.get(one, {}), self._taken.get(other, {})
        found = tuple(combine(one[number], other[number]) for number in one if other.get(number))
        return Spread(found) if found else None


def verdict(spread, holds):
    """Whether the median of the rounds holds, by `holds`; fewer rounds than the rule asks for decide nothing."""
    if spread is None or len(spread.rounds) < ROUNDS_LEAST:
        return f"undecided: {len(spread.rounds) if spread else 0} of {ROUNDS_LEAST} rounds"
    return HIT if holds(spread.median) else MISS


def orders(rounds, contenders):
    """Numbers of the rounds with the contenders in their order, every other round reversed: none always follows the same one."""
    for number in range(1, rounds + 1):
        yield number, contenders if number % 2 else contenders[::-1]


def run_rounds(contenders, cases, plan, results, note):
    """Measures all contenders on all cases that they take; `plan` has `rounds` and `seconds`, `results` has `figures` and
    `refused`."""
    for number, order in orders(plan.rounds, contenders):
        for case in cases:
            for contender in order:
                if contender.name in results.refused or not contender.takes(case):
                    continue
                label = f"round {number}  {contender.name:26} {case:22}"
                try:
                    ms = contender.median_ms(case, plan.seconds)
                except Unavailable as reason:
                    results.refused[contender.name] = str(reason)
                    note(f"{label} failed: {reason}")
                    continue
                results.figures.add(contender.name, case, number, ms)
                note(f"{label} {ms:10.3f} ms")
