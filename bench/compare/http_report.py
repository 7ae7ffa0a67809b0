"""Turns the figures of the comparison through HTTP into tables and verdicts. Pure: measures nothing, reads no file."""

import math
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
    mean_ms: float
    # What a request spent in the engine, of all its time, where the server tells.
    engine_share: float | None = None


@dataclass(frozen=True)
class Share:
    """Texts that were answered, and what another answered in the same time."""

    texts: float
    others: float

    def __float__(self):
        return self.texts / self.others if self.others else float("nan")

    @staticmethod
    def of_all(shares):
        return Share(sum(share.texts for share in shares), sum(share.others for share in shares))


@dataclass(frozen=True)
class Strain:
    """Of an overload."""

    goodput: float
    answered_p99_ms: float
    refused: int
    refused_p99_ms: float | None
    late_p99_ms: float
    others: int
    memory_mb: float


@dataclass
class Results:
    figures: dict = field(default_factory=dict)
    shares: dict = field(default_factory=dict)
    strains: dict = field(default_factory=dict)
    goodputs: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)

    def add(self, contender, case, figures):
        self.figures.setdefault(case, {}).setdefault(contender, []).append(figures)

    def add_share(self, case, share):
        self.shares.setdefault(case, []).append(share)

    def add_strain(self, name, strain):
        self.strains.setdefault(name, []).append(strain)

    def add_goodput(self, name, share):
        self.goodputs.setdefault(name, []).append(share)

    def best(self, contender, case, what):
        """Of the rounds. What disturbs a machine makes every contender slower and none faster, so that the best round is
        the least disturbed one."""
        taken = self.figures.get(case, {}).get(contender)
        better = max if what == "texts_per_s" else min
        return better(getattr(figures, what) for figures in taken) if taken else None

    def shares_of_engine(self, case):
        """What of the engine's throughput is left through HTTP: in all rounds, in the lowest and in the highest; None where
        nobody looked. From one connection, whose requests follow each other, each request tells by itself what of its time
        was the engine's. From several, what both answered in turns is counted."""
        counted = self.shares.get(case, [])
        told = [figures.engine_share for figures in self.figures.get(case, {}).get(OURS, []) if figures.engine_share]
        if counted:
            all_rounds = float(Share.of_all(counted))
        elif told and case.endswith(", 1 conn."):
            all_rounds = statistics.median(told)
        else:
            return None
        each = [float(share) for share in counted] or told
        return all_rounds, min(each), max(each)

    def strain(self, name):
        """The middle one of an overload's rounds, each figure for itself."""
        taken = self.strains[name]
        middle = lambda what: statistics.median(what(strain) for strain in taken)
        refusals = [strain.refused_p99_ms for strain in taken if strain.refused_p99_ms is not None]
        return Strain(
            goodput=middle(lambda strain: strain.goodput),
            answered_p99_ms=middle(lambda strain: strain.answered_p99_ms),
            refused=sum(strain.refused for strain in taken),
            refused_p99_ms=statistics.median(refusals) if refusals else None,
            late_p99_ms=middle(lambda strain: strain.late_p99_ms),
            others=sum(strain.others for strain in taken),
            memory_mb=max(strain.memory_mb for strain in taken),
        )

    def share_of_peak(self, name):
        """What is left under an overload of the texts that can be carried, by all rounds; None where nobody looked."""
        counted = self.goodputs.get(name)
        return float(Share.of_all(counted)) if counted else None

    def contenders(self):
        return list(dict.fromkeys(name for found in self.figures.values() for name in found))

    def best_peer(self, case):
        """The fastest that is not ours, as a pair of name and how many times its texts/s ours are. Peers run fewer rounds,
        and only those count for ours too: the best of more would be better by chance."""
        found = self.figures[case]
        peers = [(self.best(name, case, "texts_per_s"), name) for name in found if name not in (OURS, BARE)]
        if not peers or OURS not in found or not max(peers)[0]:
            return None
        texts_per_s, name = max(peers)
        ours = max(figures.texts_per_s for figures in found[OURS][: len(found[name])])
        return name, ours / texts_per_s


def figures_of(answer, texts):
    """From what the generator printed."""
    good = answer["statuses"].get("200", dict.fromkeys(("p50_ms", "p99_ms", "mean_ms"), float("nan")))
    # Recorded in thousandths, as milliseconds are.
    share = answer.get("engine_share", {}).get("p50_ms")
    return Figures(answer["answered_in_time"] * texts / answer["seconds"], good["p50_ms"], good["p99_ms"], good["mean_ms"], share)


def share_of(answer, engine, longer, texts):
    """From what both generators printed that took turns; those of the first were so many times as long."""
    return Share(answer["answered_in_time"] * texts, engine["texts_per_s"] * engine["seconds"] * longer)


def goodput_of(answer, carried, longer, texts):
    """The same of two generators, the first with an overload."""
    return Share(answer["answered_in_time"] * texts, carried["answered_in_time"] * texts * longer)


def request_seconds(answer, otherwise):
    """The time of one request; the other where it was so slow that none was counted."""
    good = answer["statuses"].get("200")
    return good["p50_ms"] / 1e3 if good else otherwise


def figures_of_engine(answer):
    """From what `magray bench load --json` printed."""
    latency = answer["latency_ms"]
    return Figures(answer["texts_per_s"], latency["p50"], latency["p99"], latency["mean"])


def strain_of(answer, texts, memory_mb):
    statuses = answer["statuses"]
    refused = statuses.get("429")
    others = sum(found["count"] for status, found in statuses.items() if status not in ("200", "429"))
    goodput = answer["answered_in_time"] * texts / answer["seconds"]
    return Strain(
        goodput=goodput,
        answered_p99_ms=statuses.get("200", {}).get("p99_ms", float("nan")),
        refused=refused["count"] if refused else 0,
        refused_p99_ms=answer["since_sent"]["429"]["p99_ms"] if refused else None,
        late_p99_ms=answer["lateness"]["p99_ms"],
        others=others + answer["broken"],
        memory_mb=memory_mb,
    )


def figures_table(results):
    rows = []
    for case, found in results.figures.items():
        for name in found:
            whats = ("texts_per_s", "mean_ms", "p50_ms", "p99_ms")
            throughput, mean, p50, p99 = (results.best(name, case, what) for what in whats)
            rows.append([case, name, f"{throughput:.0f}", f"{mean:.2f}", f"{p50:.2f}", f"{p99:.2f}"])
    return table(["case", "contender", "texts/s", "mean ms", "p50 ms", "p99 ms"], rows)


def ratio_table(results):
    rows = []
    for case in results.figures:
        peer, shares = results.best_peer(case), results.shares_of_engine(case)
        of_engine, in_rounds = (f"{shares[0]:.0%}", f"{shares[1]:.0%} to {shares[2]:.0%}") if shares else ("-", "-")
        p50s = [results.best(name, case, "p50_ms") for name in (OURS, BARE)]
        over = f"{p50s[0] - p50s[1]:+.2f}" if None not in p50s else "-"
        of_peer = f"{peer[1]:.1f} x {peer[0]}" if peer else "-"
        rows.append([case, of_engine, in_rounds, over, of_peer])
    return table(["case", "of the bare engine", "in one round", "p50 over it, ms", "of the best peer"], rows)


def strain_table(results):
    rows = []
    for name in results.strains:
        strain = results.strain(name)
        refused = f"{strain.refused_p99_ms:.2f}" if strain.refused_p99_ms is not None else "-"
        share = results.share_of_peak(name)
        goodput = [f"{strain.goodput:.0f}", f"{share:.0%}" if share is not None else "-"]
        answered = f"{strain.answered_p99_ms:.1f}"
        row = [name, *goodput, answered, str(strain.refused), refused, f"{strain.late_p99_ms:.2f}", str(strain.others)]
        rows.append([*row, f"{strain.memory_mb:.0f}"])
    head = ["load", "texts/s", "of the peak", "p99 ms", "refused", "their p99 ms", "sent late by, p99", "other answers", "memory MB"]
    return table(head, rows)


def percent(share):
    """None and NaN are unknown."""
    return f"{share:.0%}" if share is not None and not math.isnan(share) else "an unknown part"


def verdicts(results):
    """What must hold and does not, one line each; none where all holds."""
    lines = []
    for case in results.figures:
        shares = results.shares_of_engine(case)
        if case.startswith("32 ") and not (shares and shares[0] >= SHARE_OF_ENGINE):
            lines.append(f"{case}: {percent(shares and shares[0])} of the bare engine, not {SHARE_OF_ENGINE:.0%}")
        p50s = [results.best(name, case, "p50_ms") for name in (OURS, BARE)]
        is_single = case.startswith("1 short, 1 ")
        if is_single and None not in p50s and p50s[0] - p50s[1] > OVER_ENGINE_MS:
            lines.append(f"{case}: {p50s[0] - p50s[1]:.2f} ms over the bare engine, not {OVER_ENGINE_MS}")
        peer = results.best_peer(case)
        if peer and peer[1] < TIMES_PEER:
            lines.append(f"{case}: {peer[1]:.1f} times {peer[0]}, not {TIMES_PEER:g}")
    for name in results.strains:
        strain = results.strain(name)
        share = results.share_of_peak(name)
        if not (share is not None and share >= SHARE_OF_PEAK):
            lines.append(f"{name}: {percent(share)} of the peak, not {SHARE_OF_PEAK:.0%}")
        if strain.refused_p99_ms is not None and strain.refused_p99_ms > REFUSED_WITHIN_MS:
            lines.append(f"{name}: refusals within {strain.refused_p99_ms:.1f} ms, not {REFUSED_WITHIN_MS:g}")
        if strain.others:
            lines.append(f"{name}: {strain.others} answers that were neither vectors nor refusals")
    return lines


def unseen(results):
    """Overloads that had nothing to refuse, one line each: how soon refusals would have come they do not say."""
    return [f"{name}: nothing was refused" for name in results.strains if not results.strain(name).refused]
