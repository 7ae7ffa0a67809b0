"""Turns what the allocators answered into tables and verdicts. Pure: runs nothing, reads no file."""

from dataclasses import dataclass, field

from .alloc_contenders import ASYNC, LIVE, OURS, TORCH
from .report import Bar, Line, judged, table
from .rounds import HIT, MISS, Figures

MUST_NS = 300
MUST_FLAT = 1.5
MUST_RATIO = 5.0
MUST_WASTED = 0.05
MUST_LESS_WASTED = 0.70
# Against these the ratio is a must; cudaMalloc keeps nothing, so it is slower still.
RIVALS = (ASYNC, TORCH)


@dataclass
class AllocResults:
    """Times in ns by contender and case, one a round: as measured, and without what reading the clock takes. Of each trace
    what was reserved, once: a replay takes the same memory every time."""

    p50: Figures = field(default_factory=Figures)
    p99: Figures = field(default_factory=Figures)
    clocks: Figures = field(default_factory=Figures)
    net: Figures = field(default_factory=Figures)
    traces: dict = field(default_factory=dict)
    driver_calls: dict = field(default_factory=dict)
    by: dict = field(default_factory=dict)
    skipped: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)

    def add(self, name, number, lines):
        clock = next((line["clock_ns"] for line in lines if "clock_ns" in line), 0)
        for line in lines:
            case = line.get("case")
            if "clock_ns" in line:
                self.clocks.add(name, "clock", number, line["clock_ns"])
                self.by[name] = line.get("by", "itself")
            elif "skipped" in line:
                self.skipped[name, case] = line["skipped"]
            elif "p50_ns" in line:
                self.p50.add(name, case, number, line["p50_ns"])
                self.p99.add(name, case, number, line["p99_ns"])
                # What is shorter than the clock can tell counts as one nanosecond.
                self.net.add(name, case, number, max(1.0, line["p50_ns"] - clock))
                self.driver_calls[name, case] = max(line.get("driver_calls", 0), self.driver_calls.get((name, case), 0))
            elif "wasted" in line:
                self.traces.setdefault(name, {})[case] = line

    def cases(self):
        return [case for case in self.p50.cases() if self.p50.spread(OURS, case)]

    def names(self):
        """Ours first."""
        found = {*self.p50.names(), *self.traces}
        return [name for name in (OURS, *sorted(found - {OURS})) if name in found]


def lines(results, recorded):
    """The first table. `recorded` are the names of traces of real loads."""
    found = []
    for case in results.cases():
        alive = " alive" in case
        peers = {(name, case): name for name in RIVALS}
        # Against blocks that are held there is no bar for the ratio.
        bar = Bar() if alive else Bar(ratio=MUST_RATIO)
        found.append(judged(f"allocate + free, {case}", results.net, (OURS, case), peers, bar, "ns", ".0f"))
    found += _slowest_line(results) + _flat_line(results)
    return found + [line for trace in recorded for line in _waste_lines(results, trace)]


def times_table(results):
    names = results.names()
    rows = []
    for case in results.cases():
        cells = [_time_cell(results, name, case) for name in names]
        ratios = [results.net.ratio((name, case), (OURS, case)) for name in names if name != OURS]
        calls = results.driver_calls[OURS, case]
        rows.append([case, *cells, *(f"{ratio:.1f}" if ratio else "-" for ratio in ratios), calls])
    head = ["allocate + free, ns", *(f"{name} p50, p99" for name in names)]
    return table([*head, *(f"{name} / {OURS}" for name in names if name != OURS), "driver calls"], rows)


def waste_table(results):
    names = [name for name in results.names() if name in results.traces]
    head = ["trace", "allocations", "peak used MiB", *(f"{name} reserved MiB (wasted)" for name in names)]
    rows = []
    for trace, ours in results.traces.get(OURS, {}).items():
        cells = []
        for name in names:
            found = results.traces[name].get(trace)
            if found:
                cells.append(f"{found['peak_reserved_bytes'] / 2**20:.1f} ({found['wasted']:.2%})")
            else:
                cells.append(results.skipped.get((name, trace), "-"))
        rows.append([trace, ours["allocations"], f"{ours['peak_used_bytes'] / 2**20:.1f}", *cells])
    return table(head, rows)


def _time_cell(results, name, case):
    p50, p99 = results.p50.spread(name, case), results.p99.spread(name, case)
    return f"{p50.median:.0f}, {p99.median:.0f}" if p50 else results.skipped.get((name, case), "-")


def _slowest_line(results):
    """The slowest case as it was measured."""
    p50s = [(results.p50.spread(OURS, case), case) for case in results.cases()]
    if not p50s:
        return []
    slowest, case = max(p50s, key=lambda pair: pair[0].median)
    bar = Bar(at_most=MUST_NS)
    title = f"slowest p50 with the clock ({case})"
    return [Line(title, f"{slowest.median:.0f} ns", bar=bar.words("ns"), result=bar.verdict(slowest, None))]


def _flat_line(results):
    """The slowest of the cases with blocks alive by the fastest, within a round."""
    held = sorted((case for case in results.cases() if " alive" in case), key=lambda case: results.p50.spread(OURS, case).median)
    if len(held) < 2:
        return []
    ratio = results.p50.ratio((OURS, held[-1]), (OURS, held[0]))
    most = Bar(at_most=MUST_FLAT)
    title = f"slowest / fastest p50, {min(LIVE):,} to {max(LIVE):,} alive"
    return [Line(title, f"{ratio.median:.2f}", bar=f"<= {MUST_FLAT:g}", result=most.verdict(ratio, None))]


def _waste_lines(results, trace):
    """A replay is exact: it needs no rounds."""
    ours = results.traces.get(OURS, {}).get(trace)
    if not ours:
        return []
    wasted = ours["wasted"]
    found = [Line(f"wasted, {trace}", f"{wasted:.2%}", bar=f"<= {MUST_WASTED:.0%}", result=HIT if wasted <= MUST_WASTED else MISS)]
    for rival in RIVALS:
        theirs = results.traces.get(rival, {}).get(trace)
        if theirs and theirs["wasted"]:
            less = 1 - wasted / theirs["wasted"]
            result = HIT if less >= MUST_LESS_WASTED else MISS
            words = (f"{wasted:.2%}", rival, f"{theirs['wasted']:.2%}")
            found.append(Line(f"wasted, {trace}: less than {rival}", *words, None, f">= {MUST_LESS_WASTED:.0%} less", f"{result} ({less:.0%})"))
    return found
