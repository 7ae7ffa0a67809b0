"""Turns the figures of the comparison through HTTP into lines and tables. Pure: measures nothing, reads no file."""

from dataclasses import dataclass, field

from .report import NO_BAR, Bar, Line, judged, spreads_table, table
from .rounds import HIT, MISS, Figures, Spread

OURS, OURS_F32, BARE = "magray", "magray f32", "bare engine"
NOT_PEERS = (OURS, OURS_F32, BARE)
PRECISIONS = {"infinity-emb torch f32": "f32", "infinity-emb torch bf16": "bf16", "infinity-emb ONNX f32": "f32"}
# The bars.
TIMES_PEER, SHARE_OF_ENGINE, OVER_ENGINE_MS = Bar(ratio=5.0), Bar(ratio=0.9), Bar(at_most=0.5)
SHARE_OF_PEAK, REFUSED_WITHIN = Bar(ratio=0.95), Bar(at_most=5.0)
ALONE = "1 short, 1 conn."


@dataclass(frozen=True)
class Strain:
    """Of an overload in one round."""

    goodput: float
    answered_p99_ms: float
    refused: int
    refused_p99_ms: float | None
    late_p99_ms: float
    others: int
    memory_mb: float


@dataclass
class Results:
    """Figures by contender and case; shares by what they are a share of. Strains: by overload, one a round."""

    texts: Figures = field(default_factory=Figures)
    p50: Figures = field(default_factory=Figures)
    p99: Figures = field(default_factory=Figures)
    shares: Figures = field(default_factory=Figures)
    strains: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)

    def add(self, name, case, number, answer, texts):
        """What the generator printed of one contender on one case; one that answered nothing has no latency."""
        self.texts.add(name, case, number, answer["answered_in_time"] * texts / answer["seconds"])
        if good := answer["statuses"].get("200"):
            self.p50.add(name, case, number, good["p50_ms"])
            self.p99.add(name, case, number, good["p99_ms"])

    def add_engine(self, case, number, answer):
        """What `magray-bench load` printed."""
        self.texts.add(BARE, case, number, answer["texts_per_s"])
        self.p50.add(BARE, case, number, answer["latency_ms"]["p50"])
        self.p99.add(BARE, case, number, answer["latency_ms"]["p99"])

    def peers(self, case, precision=None):
        names = [name for name in self.texts.names() if name not in NOT_PEERS]
        return {(name, case): name for name in names if precision in (None, PRECISIONS.get(name))}


def lines(results):
    """The first table."""
    rate = dict(unit="texts/s", spec=",.0f", more_is_better=True)
    found = [judged(case, results.texts, (OURS, case), results.peers(case), TIMES_PEER, **rate) for case in results.texts.cases()]
    found.append(_over_engine(results))
    for case in results.shares.cases():
        share, (bar, peer) = results.shares.spread(OURS, case), _SHARES[case in results.strains]
        title = f"{case}: share of the {peer}"
        found.append(Line(title, "-", peer, "-", share, bar.words(""), bar.verdict(None, share), bar.ratio))
    for name, strains in results.strains.items():
        found += [_refusals(name, strains), _other_answers(name, strains)]
    return [line for line in found if line]


_SHARES = {False: (SHARE_OF_ENGINE, "bare engine"), True: (SHARE_OF_PEAK, "peak without overload")}


def _over_engine(results):
    """What HTTP and tokenizer add to one short text, in each round."""
    over = results.p50.difference((OURS, ALONE), (BARE, ALONE))
    if not over:
        return None
    theirs = f"{results.p50.spread(BARE, ALONE).median:.2f} ms"
    words = OVER_ENGINE_MS.words("ms more")
    return Line(f"{ALONE}: p50", f"{over.median:.2f} ms more", BARE, theirs, None, words, OVER_ENGINE_MS.verdict(over, None))


def _refusals(name, strains):
    times = tuple(strain.refused_p99_ms for strain in strains if strain.refused_p99_ms is not None)
    title = f"{name}: p99 of refusals"
    if not times:
        return Line(title, "nothing refused", bar=NO_BAR)
    found = Spread(times)
    return Line(title, f"{found.median:.2f} ms", bar=REFUSED_WITHIN.words("ms"), result=REFUSED_WITHIN.verdict(found, None))


def _other_answers(name, strains):
    count = sum(strain.others for strain in strains)
    return Line(f"{name}: answers that are neither vectors nor refusals", str(count), bar="0", result=MISS if count else HIT)


def equal_precision_table(results):
    """Times the texts/s of each peer that ours has in the same precision; ours is bf16 by default."""
    cases = results.texts.cases()
    rows = []
    for name in {name for name, _ in (key for case in cases for key in results.peers(case))}:
        ours = OURS_F32 if PRECISIONS.get(name) == "f32" else OURS
        ratios = [results.texts.ratio((ours, case), (name, case)) for case in cases]
        rows.append([name, ours, *(f"{ratio:.1f}" if ratio else "-" for ratio in ratios)])
    return table(["peer", "ours", *cases], sorted(rows))


def figures_tables(results):
    """Texts a second and latencies of all contenders."""
    tables = []
    for what, figures, spec in (("texts/s", results.texts, ",.0f"), ("p50 ms", results.p50, ".2f"), ("p99 ms", results.p99, ".2f")):
        head = [f"{what}: median (least-most)", *figures.cases()]
        tables.append(spreads_table(head, figures, figures.names(), figures.cases(), spec))
    return tables


def strain_table(results):
    rows = []
    for name, strains in results.strains.items():
        middle = lambda what: Spread(tuple(getattr(strain, what) for strain in strains)).median
        refused = [strain.refused_p99_ms for strain in strains if strain.refused_p99_ms is not None]
        row = [name, f"{middle('goodput'):.0f}", f"{middle('answered_p99_ms'):.1f}", sum(strain.refused for strain in strains)]
        row += [f"{Spread(tuple(refused)):.2f}" if refused else "-", f"{middle('late_p99_ms'):.2f}"]
        rows.append([*row, f"{max(strain.memory_mb for strain in strains):.0f}"])
    return table(["load", "texts/s", "p99 ms", "refused", "p99 of refusals, ms", "sent late by, p99 ms", "memory MB"], rows)


def told_share(answer):
    """What of a request's time was the engine's, as each answer tells; None where none does."""
    # Recorded in thousandths, as milliseconds are.
    return answer.get("engine_share", {}).get("p50_ms")


def share_of(answer, engine, longer, texts):
    """Texts through HTTP of those by the engine, which took turns; the turns of the first were so many times as long."""
    others = engine["texts_per_s"] * engine["seconds"] * longer
    return answer["answered_in_time"] * texts / others if others else 0.0


def goodput_of(answer, carried, longer):
    """The same of two servers, the first of them with an overload."""
    others = carried["answered_in_time"] * longer
    return answer["answered_in_time"] / others if others else 0.0


def request_seconds(answer, otherwise):
    """How long one request takes; `otherwise` where none was answered."""
    good = answer["statuses"].get("200")
    return good["p50_ms"] / 1e3 if good else otherwise


def strain_of(answer, texts, memory_mb):
    """What the generator printed of an overload."""
    statuses = answer["statuses"]
    refused = statuses.get("429")
    others = sum(found["count"] for status, found in statuses.items() if status not in ("200", "429"))
    return Strain(
        goodput=answer["answered_in_time"] * texts / answer["seconds"],
        answered_p99_ms=statuses.get("200", {}).get("p99_ms", float("nan")),
        refused=refused["count"] if refused else 0,
        refused_p99_ms=answer["since_sent"]["429"]["p99_ms"] if refused else None,
        late_p99_ms=answer["lateness"]["p99_ms"],
        others=others + answer["broken"],
        memory_mb=memory_mb,
    )


def closed_loop_rate(answer, connections):
    """Requests a second of clients that ask again at once."""
    return connections / answer["statuses"]["200"]["mean_ms"] * 1e3
