"""The lines and tables of the comparison on the CPU. Pure: measures nothing, reads no file."""

from dataclasses import dataclass, field, replace

from .contenders import ONE_BY_ONE, RAGGED, SORTED
from .report import Bar, judged, spreads_table, table
from .rounds import MISS, Figures

# Below this cosine against the reference a contender computes something else, and its speed does not count.
ACCURATE = 0.99
OUR_BEST, OUR_INT8, OUR_F32 = "magray auto", "magray int8", "magray f32"
# Ours of the same precision as a peer. `auto` computes in bf16 where the processor can.
OURS_OF = {"f32": OUR_F32, "bf16": OUR_BEST, "int8": OUR_INT8}
WAYS = {ONE_BY_ONE: "one by one", SORTED: "sorted groups"}
CASES = {"1x16": "1 x 16 tokens", "1x128": "1 x 128 tokens", "32x128": "32 x 128 tokens", RAGGED: "32 ragged texts"}
BEST_BARS = {"1x16": Bar(at_most=1.0), "1x128": Bar(at_most=3.0), "32x128": Bar(ratio=3.0), RAGGED: Bar(ratio=8.0)}
F32_BARS = dict.fromkeys(CASES, Bar(ratio=1.3))


@dataclass
class Results:
    """What a run measured; figures are ms of a call that embeds the whole case."""

    precisions: dict
    ours: set
    batches: dict
    figures: Figures = field(default_factory=Figures)
    cosines: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)
    peaks: dict = field(default_factory=dict)

    def worst_cosine(self, name):
        return min(self.cosines.get(name, {}).values(), default=None)

    def is_accurate(self, name):
        """Whether the worst vector of any case is close enough; a contender that was not compared does not count."""
        return (self.worst_cosine(name) or 0.0) >= ACCURATE

    def peers(self, case, precision=None):
        """Accurate peers on a case, in every way in which they can run it, by the words that name them."""
        ways = (case, *WAYS) if case == RAGGED else (case,)
        return {
            (name, way): f"{name}, {WAYS[way]}" if way in WAYS else name
            for name in self.figures.names()
            if name not in self.ours and self.is_accurate(name) and precision in (None, self.precisions[name])
            for way in ways
        }


def lines(results):
    """The first table: ours by default and in int8 against any peer, ours in f32 against f32."""
    kinds = [("default", OUR_BEST, None, BEST_BARS), ("int8", OUR_INT8, None, BEST_BARS), ("f32", OUR_F32, "f32", F32_BARS)]
    found = []
    for kind, ours, precision, bars in kinds:
        for case, words in CASES.items():
            peers = results.peers(case, precision)
            line = judged(f"{kind}: {words}", results.figures, (ours, case), peers, bars[case])
            if line and not results.is_accurate(ours):
                line = replace(line, result=f"{MISS}: not accurate")
            found += [line] if line else []
    return found


def equal_precision_table(results):
    """How many times faster ours is than each peer of the same precision, the ragged texts in the peer's best way."""
    rows = []
    for name in results.figures.names():
        if name in results.ours:
            continue
        ours = OURS_OF[results.precisions[name]]
        cells = []
        for case in CASES:
            ways = (case, *WAYS) if case == RAGGED else (case,)
            ratios = [ratio for way in ways if (ratio := results.figures.ratio((name, way), (ours, case)))]
            cells.append(f"{min(ratios, key=lambda ratio: ratio.median):.2f}" if ratios else "-")
        counts = "yes" if results.is_accurate(name) else "no: not accurate"
        rows.append([name, ours, *cells, counts])
    return table(["peer", "ours", *CASES.values(), "counts"], rows)


def times_table(results):
    """ms of every contender on every case."""
    def cosine(name):
        worst = results.worst_cosine(name)
        return ["-" if worst is None else f"{worst:.6f}"]

    cases = [*results.batches, *WAYS]
    head = ["ms: median (least-most)", *cases, "worst cosine"]
    return spreads_table(head, results.figures, results.figures.names(), cases, more=cosine)


def floor_table(results, flops):
    """The least time the arithmetic allows at the measured peaks, and how near ours comes."""
    rows = []
    # `auto` means f32 on cores without tiles.
    best_unit = "bf16" if "bf16" in results.peaks else "f32"
    for name, unit in ((OUR_BEST, best_unit), (OUR_INT8, "int8"), (OUR_F32, "f32")):
        peak = results.peaks.get(unit)
        for case, batch in results.batches.items() if peak else ():
            ours = results.figures.spread(name, case)
            if ours:
                work = flops(batch)
                floor_ms = work / (peak * 1e12) * 1e3
                cells = [f"{work / 1e9:.2f}", f"{peak:.2f}", f"{floor_ms:.3f}", f"{ours.median:.2f}"]
                rows.append([f"{name}, {case}", *cells, f"{floor_ms / ours.median:.0%}"])
    return table(["case", "GFLOP", "peak TFLOP/s", "floor ms", "ms", "of the peak"], rows)
