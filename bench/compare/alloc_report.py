"""Turns what the allocators answered into tables and verdicts. Pure: runs nothing, reads no file."""

import statistics
from dataclasses import dataclass, field

from .alloc_contenders import ASYNC, LIVE, OURS, TORCH
from .report import table

MUST_NS = 300
MUST_FLAT = 1.5
MUST_RATIO = 5.0
MUST_WASTED = 0.05
MUST_LESS_WASTED = 0.70
# Against these the ratio is a must; cudaMalloc keeps nothing, so it is slower still.
RIVALS = (ASYNC, TORCH)


@dataclass
class AllocResults:
    """What was answered: by contender, then case, one a round; and of each trace, once."""

    pairs: dict = field(default_factory=dict)
    traces: dict = field(default_factory=dict)
    clock_rounds: dict = field(default_factory=dict)
    by: dict = field(default_factory=dict)
    skipped: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)

    def add(self, name, lines):
        for line in lines:
            case = line.get("case")
            if "clock_ns" in line:
                self.clock_rounds.setdefault(name, []).append(line["clock_ns"])
                self.by[name] = line.get("by", "itself")
            elif "skipped" in line:
                self.skipped[name, case] = line["skipped"]
            elif "p50_ns" in line:
                self.pairs.setdefault(name, {}).setdefault(case, []).append(line)
            elif "wasted" in line:
                self.traces.setdefault(name, {})[case] = line

    def cases(self):
        return list(self.pairs.get(OURS, {}))

    def names(self):
        """Ours first."""
        found = {*self.pairs, *self.traces}
        return [name for name in (OURS, *sorted(found - {OURS})) if name in found]

    def p50(self, name, case):
        rounds = self.pairs.get(name, {}).get(case)
        return statistics.median(line["p50_ns"] for line in rounds) if rounds else None

    @property
    def clocks(self):
        """What reading the clock takes of each time, by contender."""
        return {name: statistics.median(rounds) for name, rounds in self.clock_rounds.items()}

    def ratio(self, name, case):
        """How many times faster ours is, both without the time of their clocks."""
        ours, theirs = self._without_clock(OURS, case), self._without_clock(name, case)
        return None if ours is None or theirs is None else theirs / ours

    def _without_clock(self, name, case):
        # What is shorter than the clock can tell counts as one nanosecond.
        p50 = self.p50(name, case)
        return None if p50 is None else max(1.0, p50 - self.clocks.get(name, 0))


def times_table(results):
    names = results.names()
    head = ["allocate + free, ns", *(f"{name} p50 (p99)" for name in names)]
    head += [f"{name} / {OURS}" for name in names if name != OURS] + ["driver calls"]
    rows = []
    for case in results.cases():
        cells = [_time_cell(results, name, case) for name in names]
        ratios = [results.ratio(name, case) for name in names if name != OURS]
        calls = max(line.get("driver_calls", 0) for line in results.pairs[OURS][case])
        rows.append([case, *cells, *("-" if ratio is None else f"{ratio:.1f}" for ratio in ratios), calls])
    return table(head, rows)


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


def target_table(results, recorded):
    """What must hold, what was found, and whether it does. `recorded` are the names of traces of real loads."""
    rows = [_speed_row(results), _flat_row(results)]
    rows += [_ratio_row(results, rival) for rival in RIVALS]
    rows += [row for trace in recorded for row in _waste_rows(results, trace)]
    return table(["what", "must", "found", "verdict"], [row for row in rows if row])


def _time_cell(results, name, case):
    rounds = results.pairs.get(name, {}).get(case)
    if not rounds:
        return results.skipped.get((name, case), "-")
    p99 = statistics.median(line["p99_ns"] for line in rounds)
    return f"{results.p50(name, case):.0f} ({p99:.0f})"


def _verdict(holds):
    return "holds" if holds else "MISSED"


def _speed_row(results):
    times = [results.p50(OURS, case) for case in results.cases()]
    if not times:
        return None
    return ["p50 of every case", f"<= {MUST_NS} ns", f"{max(times):.0f} ns at most", _verdict(max(times) <= MUST_NS)]


def _flat_row(results):
    times = [results.p50(OURS, case) for case in results.cases() if " alive" in case]
    if len(times) < 2:
        return None
    spread = max(times) / min(times)
    what = f"p50 from {min(LIVE):,} to {max(LIVE):,} alive, slowest / fastest"
    return [what, f"<= {MUST_FLAT}", f"{spread:.2f}", _verdict(spread <= MUST_FLAT)]


def _ratio_row(results, rival):
    ratios = [results.ratio(rival, case) for case in results.cases() if " alive" not in case]
    ratios = [ratio for ratio in ratios if ratio is not None]
    if not ratios:
        return None
    least = min(ratios)
    return [f"faster than {rival}, every size", f">= {MUST_RATIO:g}x", f"{least:.1f}x at least", _verdict(least >= MUST_RATIO)]


def _waste_rows(results, trace):
    ours = results.traces.get(OURS, {}).get(trace)
    if not ours:
        return []
    wasted = ours["wasted"]
    rows = [[f"wasted on {trace}", f"<= {MUST_WASTED:.0%}", f"{wasted:.2%}", _verdict(wasted <= MUST_WASTED)]]
    for rival in RIVALS:
        theirs = results.traces.get(rival, {}).get(trace)
        if not theirs or not theirs["wasted"]:
            continue
        less = 1 - wasted / theirs["wasted"]
        what = f"wasted on {trace}, less than {rival}"
        rows.append([what, f">= {MUST_LESS_WASTED:.0%} less", f"{less:.0%} less", _verdict(less >= MUST_LESS_WASTED)])
    return rows
