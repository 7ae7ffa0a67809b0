"""Turns the figures of the comparison through HTTP into tables and verdicts. Pure: measures nothing, reads no file."""

import statistics
from dataclasses import dataclass, field

from .report import table

OURS, BARE = "magray", "bare engine"
# What must hold, as the tables judge it.
SHARE_OF_ENGINE, OVER_ENGINE_MS, TIMES_PEER = 0.90, 0.5, 5.0
SHARE_OF_PEAK, REFUSED_WITHIN_MS = 0.95, 5.0


@dataclass(frozen=True)
class Figures:
    """Of one contender on one case in one round."""

    texts_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Strain:
    """Of one overload."""

    goodput: float
    peak: float
    answered_p99_ms: float
    refused: int
    refused_p99_ms: float | None
    others: int
    memory_mb: float


@dataclass
class Results:
    figures: dict = field(default_factory=dict)
    strains: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)

    def add(self, contender, case, figures):
        self.figures.setdefault(case, {}).setdefault(contender, []).append(figures)

    def median(self, contender, case, what):
        taken = self.figures.get(case, {}).get(contender)
        return statistics.median(getattr(figures, what) for figures in taken) if taken else None

    def contenders(self):
        return list(dict.fromkeys(name for found in self.figures.values() for name in found))

    def best_peer(self, case):
        """The fastest that is not ours, as a pair of name and texts/s."""
        peers = [name for name in self.figures[case] if name not in (OURS, BARE)]
        return max(((name, self.median(name, case, "texts_per_s")) for name in peers), key=lambda p: p[1], default=None)


def figures_of(answer, texts):
    """From what the generator printed."""
    good = answer["statuses"].get("200", {"p50_ms": float("nan"), "p99_ms": float("nan")})
    return Figures(answer["answered_in_time"] * texts / answer["seconds"], good["p50_ms"], good["p99_ms"])


def figures_of_engine(answer):
    """From what `magray bench load --json` printed."""
    return Figures(answer["texts_per_s"], answer["latency_ms"]["p50"], answer["latency_ms"]["p99"])


def strain_of(answer, texts, peak, memory_mb):
    statuses = answer["statuses"]
    refused = statuses.get("429")
    others = sum(found["count"] for status, found in statuses.items() if status not in ("200", "429"))
    return Strain(
        goodput=answer["answered_in_time"] * texts / answer["seconds"],
        peak=peak,
        answered_p99_ms=statuses.get("200", {}).get("p99_ms", float("nan")),
        refused=refused["count"] if refused else 0,
        refused_p99_ms=refused["p99_ms"] if refused else None,
        others=others + answer["broken"],
        memory_mb=memory_mb,
    )


def figures_table(results):
    rows = []
    for case, found in results.figures.items():
        for name in found:
            throughput, p50, p99 = (results.median(name, case, what) for what in ("texts_per_s", "p50_ms", "p99_ms"))
            rows.append([case, name, f"{throughput:.0f}", f"{p50:.2f}", f"{p99:.2f}"])
    return table(["case", "contender", "texts/s", "p50 ms", "p99 ms"], rows)


def ratio_table(results):
    rows = []
    for case in results.figures:
        ours, engine = (results.median(name, case, "texts_per_s") for name in (OURS, BARE))
        peer = results.best_peer(case)
        of_engine = f"{ours / engine:.0%}" if ours and engine else "-"
        p50s = [results.median(name, case, "p50_ms") for name in (OURS, BARE)]
        over = f"{p50s[0] - p50s[1]:+.2f}" if None not in p50s else "-"
        of_peer = f"{ours / peer[1]:.1f} x {peer[0]}" if ours and peer and peer[1] else "-"
        rows.append([case, of_engine, over, of_peer])
    return table(["case", "of the bare engine", "p50 over it, ms", "of the best peer"], rows)


def strain_table(results):
    rows = []
    for name, strain in results.strains.items():
        refused = f"{strain.refused_p99_ms:.2f}" if strain.refused_p99_ms is not None else "-"
        share = f"{strain.goodput:.0f} ({strain.goodput / strain.peak:.0%})" if strain.peak else f"{strain.goodput:.0f}"
        answered = f"{strain.answered_p99_ms:.1f}"
        rows.append([name, share, answered, str(strain.refused), refused, str(strain.others), f"{strain.memory_mb:.0f}"])
    head = ["load", "texts/s (of the peak)", "p99 ms", "refused", "their p99 ms", "other answers", "memory MB"]
    return table(head, rows)


def verdicts(results):
    """What must hold and does not, one line each; none where all holds."""
    lines = []
    for case in results.figures:
        ours, engine = (results.median(name, case, "texts_per_s") for name in (OURS, BARE))
        if ours and engine and case.startswith("32 ") and ours < SHARE_OF_ENGINE * engine:
            lines.append(f"{case}: {ours / engine:.0%} of the bare engine, not {SHARE_OF_ENGINE:.0%}")
        p50s = [results.median(name, case, "p50_ms") for name in (OURS, BARE)]
        is_single = case.startswith("1 short, 1 ")
        if is_single and None not in p50s and p50s[0] - p50s[1] > OVER_ENGINE_MS:
            lines.append(f"{case}: {p50s[0] - p50s[1]:.2f} ms over the bare engine, not {OVER_ENGINE_MS}")
        peer = results.best_peer(case)
        if ours and peer and ours < TIMES_PEER * peer[1]:
            lines.append(f"{case}: {ours / peer[1]:.1f} times {peer[0]}, not {TIMES_PEER:g}")
    for name, strain in results.strains.items():
        if strain.goodput < SHARE_OF_PEAK * strain.peak:
            lines.append(f"{name}: {strain.goodput / strain.peak:.0%} of the peak, not {SHARE_OF_PEAK:.0%}")
        if strain.refused_p99_ms is not None and strain.refused_p99_ms > REFUSED_WITHIN_MS:
            lines.append(f"{name}: refusals within {strain.refused_p99_ms:.1f} ms, not {REFUSED_WITHIN_MS:g}")
        if strain.others:
            lines.append(f"{name}: {strain.others} answers that were neither vectors nor refusals")
    return lines
