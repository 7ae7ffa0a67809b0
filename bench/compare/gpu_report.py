"""Turns what was measured on the GPU into tables and verdicts. Pure: measures nothing, reads no file."""

import statistics
from dataclasses import dataclass

from .batches import flops
from .gpu_cases import BY_TITLE, CASES, EQUAL, SHAPES
from .report import ACCURATE, Results, table

OURS = "magray auto"
# The targets were set for this GPU; on another one they say nothing.
TARGET_GPU = "H200"
# Device memory beyond the weights at most.
MEMORY_MOST_BYTES = 10**9


@dataclass
class GpuResults(Results):
    """What a run measured, where vectors may not have been compared: random weights differ between the programs."""

    def is_accurate(self, name):
        compared = self.cosines.get(name)
        return compared is None or min(compared.values()) >= ACCURATE


def target_table(results, gpu_name):
    """One row a case: the best peer, ours, the ratio, and what was asked."""
    judged = TARGET_GPU in gpu_name
    rows = []
    for case in CASES:
        ours = results.median(OURS, case.title)
        if ours is None:
            continue
        best = results.best_peer([case.title])
        peer = ["-", "-", "-"]
        if best:
            middle, least, most = results.ratio(OURS, best[0], case.title, case.title)
            peer = [best[0], _ms(results.median(best[0], case.title)), f"{middle:.2f} ({least:.2f}-{most:.2f})"]
        asked = [f"{case.must_ms:g}", f"{case.goal_ms:g}"] if judged else ["-", "-"]
        tokens = sum(map(len, results.batches[case.title]))
        verdict = verdict_of(ours, case) if judged else "recorded"
        if not results.is_accurate(OURS):
            verdict = "NOT ACCURATE"
        rows.append([case.title, f"{tokens:,}", peer[0], peer[1], _ms(ours), peer[2], *asked, verdict])
    head = ["case", "tokens", "best peer", "its ms", "magray ms", "ratio (least-most)", "must", "goal", "verdict"]
    return table(head, rows)


def verdict_of(ms, case):
    if ms > case.must_ms:
        return "MISSED"
    return "goal reached" if ms <= case.goal_ms else "holds"


def times_table(results):
    """Every contender on every case: the median of the rounds, the least and the most."""
    titles = [case.title for case in CASES]
    rows = []
    for name, times in results.times.items():
        cells = [_spread(times[title]) if title in times else "-" for title in titles]
        worst = min(results.cosines.get(name, {}).values(), default=None)
        rows.append([name, *cells, "-" if worst is None else f"{worst:.6f}"])
    return table(["ms: median (least-most)", *titles, "worst cosine"], rows)


def work_table(results, products):
    """How near ours comes to the best matrix product that PyTorch reached in this run."""
    best = best_tflops(products)
    rows = []
    for case in CASES:
        ms = results.median(OURS, case.title)
        if ms is None:
            continue
        shape = SHAPES[case.model]
        work = flops(results.batches[case.title], shape.hidden, shape.layers, shape.ffn)
        rate = work / ms / 1e9
        floor = [f"{work / best / 1e9:.3f}", f"{rate / best:.0%}"] if best else ["-", "-"]
        rows.append([case.title, f"{work / 1e9:.1f}", _ms(ms), f"{rate:.0f}", *floor])
    return table(["case", "GFLOP", "magray ms", "TFLOP/s", "floor ms", "of the best product"], rows)


def best_tflops(products):
    """The highest rate of all products; None without any."""
    rates = [product_tflops(n, i, o, us) for _, i, o, taken in products for n, us in taken.items()]
    return max(rates, default=None)


def product_tflops(rows, inputs, outputs, us):
    return 2 * rows * inputs * outputs / us / 1e6


def products_table(products):
    """Microseconds and TFLOP/s of PyTorch's matrix products by rows."""
    counts = list(products[0][3])
    rows = [
        [f"{name}, {i} x {o}", *(f"{taken[n]:.1f} us, {product_tflops(n, i, o, taken[n]):.0f}" for n in counts)]
        for name, i, o, taken in products
    ]
    return table(["inputs x outputs: time, TFLOP/s", *(f"{count:,} rows" for count in counts)], rows)


def cpu_table(results, reports):
    """The CPU of the same machine beside the GPU."""
    rows = []
    for title in EQUAL:
        if title not in reports:
            continue
        cpu, gpu = reports[title]["median_ms"], results.median(OURS, title)
        texts = len(results.batches[title])
        rates = ["-" if ms is None else f"{texts / ms * 1e3:.0f}" for ms in (cpu, gpu)]
        ours = ["-", "-"] if gpu is None else [_ms(gpu), f"{cpu / gpu:.1f}"]
        rows.append([title, f"{cpu:.2f}", ours[0], *rates, ours[1]])
    return table(["case", "CPU ms", "GPU ms", "CPU texts/s", "GPU texts/s", "GPU against CPU"], rows)


def precisions_table(rows):
    """Our own time in each precision."""
    titles = list(rows[0][1])
    return table(["ms", *titles], [[precision, *(_ms(times[title]) for title in titles)] for precision, times in rows])


def streams_table(found):
    """Texts a second by the number of streams, and the best gain over one."""
    counts = sorted({count for rates in found.values() for count in rates})
    rows = []
    for title, rates in found.items():
        medians = {count: statistics.median(taken) for count, taken in rates.items()}
        cells = [f"{medians[count]:.0f}" if count in medians else "-" for count in counts]
        gain = "-"
        if 1 in medians and len(medians) > 1:
            gain = f"{max(rate for count, rate in medians.items() if count > 1) / medians[1] - 1:+.0%}"
        rows.append([title, *cells, gain])
    heads = [f"{count} stream{'' if count == 1 else 's'}" for count in counts]
    return table(["texts/s", *heads, "best gain"], rows)


def memory_table(rows):
    """Memory of the GPU that serving took, in MB of 10^6 bytes."""
    lines = []
    for precision, before, most, weights in rows:
        beyond = most - before - weights
        figures = [f"{value / 1e6:.0f}" for value in (before, most, most - before, weights, beyond)]
        lines.append([precision, *figures, "holds" if beyond <= MEMORY_MOST_BYTES else "MISSED"])
    head = ["precision", "before", "most during", "taken", "weights", "beyond the weights", "at most 1000"]
    return table(head, lines)


def start_table(rows):
    """Seconds from the start of a process to its end."""
    lines = [[title, f"{statistics.median(taken):.2f}", f"{min(taken):.2f}-{max(taken):.2f}"] for title, taken in rows]
    return table(["start", "s, median", "least-most"], lines)


def page_name(gpu_name):
    """The file name of a GPU's page: its model in small letters, as in `h200`."""
    words = [word for word in gpu_name.lower().split() if word not in ("nvidia", "geforce", "tesla")]
    kept = "".join(c if c.isalnum() else "-" for c in "-".join(words)).strip("-")
    return kept or "gpu"


def ragged_words(results):
    """What the ragged batches are, in a sentence."""
    parts = []
    for title, batch in results.batches.items():
        if BY_TITLE[title].ragged:
            lengths = list(map(len, batch))
            parts.append(f"{title}: {sum(lengths):,} tokens, {min(lengths)} to {max(lengths)} a text")
    return "; ".join(parts)


def _ms(value):
    return f"{value:.3f}" if value < 10 else f"{value:.2f}"


def _spread(taken):
    return f"{_ms(statistics.median(taken))} ({_ms(min(taken))}-{_ms(max(taken))})"
