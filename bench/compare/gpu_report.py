"""Turns what was measured on the GPU into tables and verdicts. Pure: measures nothing, reads no file."""

import statistics
from dataclasses import dataclass, replace

from .batches import flops
from .cpu_report import Results
from .gpu_cases import BY_TITLE, CASES, SHAPES
from .report import Bar, judged, spreads_table, table
from .rounds import HIT, MISS, verdict

OURS = "magray auto"
# Ours of the same precision as a peer; by default it computes in bf16.
OURS_OF = {"f16": "magray f16", "f32": "magray f32"}
# The targets were set for this GPU; on another one they say nothing.
TARGET_GPU = "H200"
# Device memory beyond the weights at most.
MEMORY_MOST_BYTES = 10**9


@dataclass
class GpuResults(Results):
    """What a run measured, where vectors may not have been compared: random weights differ between the programs."""

    def is_accurate(self, name):
        return name not in self.cosines or super().is_accurate(name)


def lines(results, gpu_name):
    """The first table: a line a case, with the bar that was set for an H200."""
    found = []
    for case in CASES:
        bar = Bar(at_most=case.must_ms) if TARGET_GPU in gpu_name else Bar()
        line = judged(f"{case.title} texts", results.figures, (OURS, case.title), results.peers(case.title), bar, spec=".3f")
        if line and not results.is_accurate(OURS):
            line = replace(line, result=f"{MISS}: not accurate")
        found += [line] if line else []
    return found


def goals_table(results):
    """How far ours is from what the chip allows."""
    rows = []
    for case in CASES:
        ours = results.figures.spread(OURS, case.title)
        if ours:
            rows.append([case.title, f"{case.goal_ms:g}", f"{ours:.3f}", verdict(ours, lambda ms: ms <= case.goal_ms)])
    return table(["case", "goal, ms", "magray, ms", "result"], rows)


def equal_precision_table(results):
    """How many times faster ours is than each way of PyTorch, in the same precision."""
    titles = [case.title for case in CASES]
    rows = []
    for name in results.figures.names():
        if name not in results.ours:
            ours = OURS_OF[results.precisions[name]]
            ratios = [results.figures.ratio((name, title), (ours, title)) for title in titles]
            rows.append([name, ours, *(f"{ratio:.2f}" if ratio else "-" for ratio in ratios)])
    return table(["peer", "ours", *titles], rows)


def times_table(results):
    """ms of every contender on every case."""
    def cosine(name):
        worst = results.worst_cosine(name)
        return ["-" if worst is None else f"{worst:.6f}"]

    titles = [case.title for case in CASES]
    head = ["ms: median (least-most)", *titles, "worst cosine"]
    return spreads_table(head, results.figures, results.figures.names(), titles, ".3f", cosine)


def work_table(results, products):
    """How near ours comes to the best matrix product that PyTorch reached in this run."""
    best = best_tflops(products)
    rows = []
    for case in CASES:
        ours = results.figures.spread(OURS, case.title)
        if not ours:
            continue
        ms = ours.median
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


def precisions_table(rows):
    """Our own time in each precision."""
    titles = list(rows[0][1])
    return table(["ms", *titles], [[precision, *(_ms(times[title]) for title in titles)] for precision, times in rows])


def memory_table(rows):
    """Memory of the GPU that serving took, in MB of 10^6 bytes."""
    lines = []
    for precision, before, most, weights in rows:
        beyond = most - before - weights
        figures = [f"{value / 1e6:.0f}" for value in (before, most, most - before, weights, beyond)]
        lines.append([precision, *figures, HIT if beyond <= MEMORY_MOST_BYTES else MISS])
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
