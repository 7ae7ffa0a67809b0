"""Turns timings into tables and verdicts. Pure: measures nothing, reads no file."""

import statistics
from dataclasses import dataclass, field

from .contenders import ONE_BY_ONE

# Below this cosine against the reference a contender computes something else, and its speed does not count.
ACCURATE = 0.99
OUR_BEST = "magray auto"
OUR_INT8 = "magray int8"
OUR_F32 = "magray f32 avx512"
RAGGED = "32 ragged"


@dataclass
class Results:
    """What a run measured. `times` is in ms: by contender, then case, one a round."""

    precisions: dict
    ours: set
    batches: dict
    times: dict = field(default_factory=dict)
    cosines: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)
    peaks: dict = field(default_factory=dict)

    def add(self, name, case, ms):
        self.times.setdefault(name, {}).setdefault(case, []).append(ms)

    def median(self, name, case):
        taken = self.times.get(name, {}).get(case)
        return statistics.median(taken) if taken else None

    def least(self, name, case):
        """The least disturbed round: nothing makes a contender faster than it is."""
        return min(self.times[name][case])

    def is_accurate(self, name):
        """Whether the worst vector of any case is close enough; one that was not compared does not count."""
        return min(self.cosines.get(name, {}).values(), default=0.0) >= ACCURATE

    def best_peer(self, cases, precision=None):
        """The accurate peer with the fastest round, as a pair of name and case; of one precision, or of any."""
        found = [
            (self.least(name, case), name, case)
            for name in self.times
            for case in cases
            if name not in self.ours
            and self.is_accurate(name)
            and precision in (None, self.precisions[name])
            and self.median(name, case) is not None
        ]
        return min(found)[1:] if found else None

    def ratio(self, ours, peer, case, peer_case):
        """How many times faster ours is: the ratio of each round, as its median, least and most."""
        pairs = zip(self.times[peer][peer_case], self.times[ours][case])
        rounds = [theirs / mine for theirs, mine in pairs]
        return statistics.median(rounds), min(rounds), max(rounds)


@dataclass(frozen=True)
class Target:
    """One line that must hold: so many times the best peer, or so many ms at most."""

    title: str
    ours: str
    case: str
    peer_precision: str | None = None
    peer_cases: tuple = ()
    times_faster: float | None = None
    at_most_ms: float | None = None


TARGETS = [
    Target("32 x 128 tokens", OUR_BEST, "32x128", times_faster=3.0),
    Target("1 x 16 tokens", OUR_BEST, "1x16", at_most_ms=1.0),
    Target("1 x 128 tokens", OUR_BEST, "1x128", at_most_ms=3.0),
    Target("32 ragged texts, peers pad", OUR_BEST, RAGGED, times_faster=8.0),
    Target("32 ragged texts, peers pad or run each alone", OUR_BEST, RAGGED, peer_cases=(RAGGED, ONE_BY_ONE)),
    Target("int8, 32 x 128", OUR_INT8, "32x128", times_faster=3.0),
    Target("int8, 1 x 16", OUR_INT8, "1x16", at_most_ms=1.0),
    Target("int8, 1 x 128", OUR_INT8, "1x128", at_most_ms=3.0),
    Target("int8, 32 ragged", OUR_INT8, RAGGED, times_faster=8.0),
    Target("f32, 1 x 16", OUR_F32, "1x16", "f32", times_faster=1.3),
    Target("f32, 1 x 128", OUR_F32, "1x128", "f32", times_faster=1.3),
    Target("f32, 32 x 128", OUR_F32, "32x128", "f32", times_faster=1.3),
    Target("f32, 32 ragged", OUR_F32, RAGGED, "f32", times_faster=1.3),
]


def times_table(results):
    """Median ms of every contender on every case, with the least and the most of the rounds."""
    cases = [*results.batches, ONE_BY_ONE]
    rows = []
    for name, times in results.times.items():
        cells = [_spread(times[case]) if case in times else "-" for case in cases]
        worst = min(results.cosines.get(name, {}).values(), default=None)
        rows.append([name, *cells, "-" if worst is None else f"{worst:.6f}"])
    return table(["ms: median (least-most)", *cases, "worst cosine"], rows)


def throughput_table(results):
    """Texts a second by the medians."""
    rows = []
    for name in results.times:
        medians = [(len(batch), results.median(name, case)) for case, batch in results.batches.items()]
        rows.append([name, *("-" if ms is None else f"{texts / ms * 1e3:.0f}" for texts, ms in medians)])
    return table(["texts/s", *results.batches], rows)


def ratio_table(results):
    """One row for each target that can be judged, with its verdict: by the fastest round of each, as nothing makes a
    contender faster than it is."""
    rows = [row for row in (_judge(results, target) for target in TARGETS) if row]
    head = ["line", "magray ms", "best accurate peer", "its ms", "ratio", "must", "verdict"]
    return table([*head, "medians: ms, ratio in a round (least-most)"], rows)


def floor_table(results, flops):
    """The least time the arithmetic allows at the measured peaks, and how near ours comes."""
    rows = []
    # `auto` means f32 on cores without tiles.
    best_unit = "bf16" if "bf16" in results.peaks else "f32"
    for name, unit in ((OUR_BEST, best_unit), ("magray int8", "int8"), (OUR_F32, "f32")):
        peak = results.peaks.get(unit)
        if not peak:
            continue
        for case, batch in results.batches.items():
            work = flops(batch)
            floor_ms = work / (peak * 1e12) * 1e3
            ours = results.median(name, case)
            share = "-" if ours is None else f"{floor_ms / ours:.0%}"
            cells = [f"{work / 1e9:.2f}", f"{peak:.2f}", f"{floor_ms:.3f}", "-" if ours is None else f"{ours:.2f}"]
            rows.append([f"{name}, {case}", *cells, share])
    return table(["case", "GFLOP", "peak TFLOP/s", "floor ms", "ms", "of the peak"], rows)


def table(head, rows):
    """A Markdown table whose columns line up, so that it reads as plain text too."""
    lines = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def _judge(results, target):
    middle = results.median(target.ours, target.case)
    if middle is None:
        return None
    ours = results.least(target.ours, target.case)
    best = results.best_peer(target.peer_cases or (target.case,), target.peer_precision)
    peer, peer_ms, ratio, usual = "-", "-", None, f"{middle:.2f}"
    if best:
        name, case = best
        peer = f"{name}, each alone" if case == ONE_BY_ONE else name
        theirs = results.least(name, case)
        peer_ms, ratio = f"{theirs:.2f}", theirs / ours
        usual += ", {:.2f} ({:.2f}-{:.2f})".format(*results.ratio(target.ours, name, target.case, case))
    if not results.is_accurate(target.ours):
        must, verdict = "-", "NOT ACCURATE"
    elif target.at_most_ms is not None:
        must, verdict = f"{target.at_most_ms} ms", _verdict(ours <= target.at_most_ms)
    elif target.times_faster is not None:
        must = f"{target.times_faster}x"
        verdict = "no peer" if ratio is None else _verdict(ratio >= target.times_faster)
    else:
        must, verdict = "-", "recorded"
    shown = "-" if ratio is None else f"{ratio:.2f}"
    return [target.title, f"{ours:.2f}", peer, peer_ms, shown, must, verdict, usual]


def _verdict(holds):
    return "holds" if holds else "MISSED"


def _spread(taken):
    return f"{statistics.median(taken):.2f} ({min(taken):.2f}-{max(taken):.2f})"
