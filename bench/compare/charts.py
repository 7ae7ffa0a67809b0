"""Draws the charts of the pages of docs/benchmarks from the raw output of their runs. Measures nothing; what a run does not tell is an error."""

import json
import re
import statistics
from dataclasses import dataclass, field

from . import environment, pages, plot, style
from .http_report import TIMES_PEER

FOLDER = environment.ROOT / "docs" / "benchmarks"
COLUMN, LABEL, BAR, ROW, HEAD = 520, 190, 200, 19, 24
OURS = "magray"


@dataclass
class Group:
    """Bars that are compared with each other: by label, the figures of the rounds."""

    title: str
    unit: str
    bars: dict = field(default_factory=dict)

    def is_compared(self):
        """Whether its bars are of several contenders."""
        return OURS in self.bars or "after" in self.bars

    def add(self, label, value):
        self.bars.setdefault(label, []).append(value)


def groups_of_rounds(raw, cases, unit, names):
    """Lines `round 1: NAME: CASE: FIGURE UNIT`, one group a case in the order of `cases`, one bar a name in the order of `names`. A first
    round begins anew: of a case that several commands measured, the last counts."""
    found = {}
    for line in raw.splitlines():
        matched = re.match(rf"round (\d+): (.+?): (.+): ([\d.]+) {re.escape(unit)}", line)
        if matched:
            key = (matched[3], matched[2])
            found[key] = [*(found.get(key, []) if matched[1] != "1" else []), float(matched[4])]
    groups = []
    for case, title in cases.items():
        group = Group(title, unit)
        for name, label in names.items():
            if (case, name) in found:
                group.bars[label] = found[case, name]
        if next(iter(names.values())) not in group.bars:
            raise ValueError(f"no figure of '{case}'")
        groups.append(group)
    return groups


def chat(raw):
    models = ["SmolLM2-135M Q4_1", "SmolLM2-135M Q4_0", "0.5B shape Q4_0"]
    kinds = {"prompt": "prompt of 512", "new": "new tokens behind 128", "new, long": "new tokens behind 8,000"}
    cases = {f"{model}, {kind}": f"{model}: {words}" for model in models for kind, words in kinds.items()}
    names = {"magray": OURS, "magray, 8-bit keys and values": "magray, 8-bit kv", "llama.cpp": "llama.cpp"}
    return groups_of_rounds(raw, cases, "tokens/s", names)


def search(raw):
    cases = {f"{count} random, {at}": f"{count} vectors, {at}" for count, at in (
        ("100,000", "1 at once"), ("100,000", "32 at once"), ("1,000,000", "1 at once"),
    )}
    names = ["magray", "magray, approximate", "faiss 8-bit", "faiss 16-bit", "faiss flat f32", "usearch exact"]
    return groups_of_rounds(raw, cases, "ms", {name: name for name in names})


def search_h200(raw):
    """Tables of three rounds: magray's, then torch's."""
    groups, label = {}, None
    for line in raw.splitlines():
        if line.startswith(("magray, best 10", "torch, best 10")):
            label = line.split(",")[0]
        elif not line.startswith(" ") and not re.match(r"\d+ quer", line):
            label = None
        matched = re.match(r"\s*(\d+) quer(?:y|ies)\s+of\s+([\d,]+?)(?:, (?:exact|parts of 1M))?\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)$", line)
        if label and matched and matched[2] != "100,000":
            group = groups.setdefault((matched[2], int(matched[1])), Group(f"{matched[2]} vectors, {matched[1]} at once", "ms"))
            group.bars["torch fp16" if label == "torch" else label] = [float(matched[at]) for at in (3, 4, 5)]
    return [groups[key] for key in sorted(groups, key=lambda key: (len(key[0]), key[1]))]


def section(raw, start, end=None):
    """The lines between two that begin so."""
    if start not in raw:
        raise ValueError(f"no part '{start}'")
    rest = raw.split(start, 1)[1]
    return rest.split(end, 1)[0] if end else rest


def streams(text, shape):
    """Tokens a second by the number of streams."""
    pattern = rf"^{re.escape(shape)}:\s+(\d+) streams\s+([\d.]+) tokens/s"
    return {int(count): float(rate) for count, rate in re.findall(pattern, text, re.M)}


def decoders_h200(raw):
    before = section(raw, "== before the changes", "== after, weights of 4 bits")
    after = section(raw, "== after, weights of 4 bits", "== what was tried")
    groups = []
    for shape, words in (("8b q4_0", "8B, 4 bits"), ("1b q4_0", "1B, 4 bits"), ("8b bf16", "8B, bf16"), ("1b bf16", "1B, bf16")):
        # Not every shape was run with as many streams.
        old, new = streams(before, shape), streams(after, shape)
        for count in (1, 8, 64) if 8 in new else (1,):
            group = Group(f"{words}: {count} stream{'s' if count > 1 else ''}", "tokens/s")
            group.add(OURS, new[count])
            group.add("before", old[count])
            groups.append(group)
    return groups


def generate_h200(raw):
    """The first run of each shape whose prompts have 192 tokens, which is the newest: reports of `magray bench generate --json`."""
    groups = {}
    words = {"llama-1b": "1B in bf16", "llama-8b": "8B in bf16", "llama-8b-q4": "8B in 4 bits", "llama-1b-q4": "1B in 4 bits"}
    for report in (json.loads(line) for line in raw.splitlines() if line.startswith('{"model":"synthetic:')):
        shape, streams = report["model"].removeprefix("synthetic:"), report["streams"]
        group = groups.setdefault(shape, Group(f"{words[shape]}: tokens a second by streams", "tokens/s"))
        label = f"{streams} stream{'s' if streams != 1 else ''}"
        if report["prompt_tokens"] == 192 and label not in group.bars:
            group.add(label, report["tokens_per_s"])
    return list(groups.values())


def http_gpu(raw):
    """Lines of a round and a case: what the clients saw as JSON, and the bare engine's own figures."""
    groups = {}
    for line in raw.splitlines():
        matched = re.match(r"round \d+: (.+?): (\{.+\}); busy [\d.]+; bare engine: (\{.+\})$", line)
        if not matched:
            continue
        case, seen, engine = matched[1], json.loads(matched[2]), json.loads(matched[3])
        texts = int(case.split()[0])
        group = groups.setdefault(case, Group(case, "texts/s"))
        group.add(OURS, texts * seen["answered_in_time"] / seen["seconds"])
        group.add("bare engine", engine["texts_per_s"])
    if not groups:
        raise ValueError("no rounds")
    return list(groups.values())


def residency(raw):
    """The phases of the run with random numbers, and of the one with files."""
    groups = []
    runs = [json.loads(line) for line in raw.splitlines() if line.startswith("{\"model\"")]
    wanted = {
        "offload": "offload", "wake": "wake to answer", "cold_wake": "cold wake to answer", "release": "release", "reload": "load again",
    }
    for run in (run for run in runs if "phases" in run):
        source = "from files" if run["from_files"] else "from random numbers"
        group = Group(f"{run['bytes'] / 1e9:.1f} GB of weights, {source}", "ms")
        for phase in run["phases"]:
            if phase["phase"] in wanted:
                group.bars[wanted[phase["phase"]]] = [phase["min_ms"], phase["median_ms"], phase["max_ms"]]
        groups.append(group)
    return groups


def before_after(raw):
    names = {name: name for name in ("after", "before", "before, again")}
    cases = {}
    for line in raw.splitlines():
        matched = re.match(r"round \d+: (?:before|before, again|after): (.+): [\d.]+ ms", line)
        if matched:
            cases.setdefault(matched[1], matched[1])
    return groups_of_rounds(raw, cases, "ms", names)


@dataclass(frozen=True)
class Chart:
    """The chart of a page."""

    stem: str
    title: str
    read: object


LESS, MORE = "milliseconds, less is better", "a second, more is better"
CHARTS = [
    Chart("before-after-cpu", f"Before and after on the CPU: {LESS}", before_after),
    Chart("before-after-cuda", f"Before and after on an H200: {LESS}", before_after),
    Chart("chat", f"Language models on two cores: tokens {MORE}", chat),
    Chart("decoders-h200", f"Decoders on an H200: tokens {MORE}", decoders_h200),
    Chart("generate-h200", f"Generating on an H200, through the engine: tokens {MORE}", generate_h200),
    Chart("http-gpu", f"HTTP on an H200: texts {MORE}", http_gpu),
    Chart("residency", f"Models that come and go on an H200: {LESS}", residency),
    Chart("search", f"Vector search on two cores, the 10 best: {LESS}", search),
    Chart("search-h200", f"Vector search on an H200, the 10 best: {LESS}", search_h200),
]


def raw_of(stem):
    """The newest raw output of a page."""
    found = sorted(path for path in (FOLDER / "raw").iterdir() if re.fullmatch(rf"{re.escape(stem)}-\d{{4}}-\d\d-\d\d[a-z]?\.txt", path.name))
    if not found:
        raise ValueError(f"there is no raw output of {stem}")
    return found[-1]


def shown(value):
    """Three digits, or all of a larger figure."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def group_parts(group, left, top):
    medians = {label: statistics.median(values) for label, values in group.bars.items()}
    most = max(max(values) for values in group.bars.values())
    parts = [style.text(left, top, group.title, "name")]
    for row, (label, values) in enumerate(group.bars.items()):
        y, ours = top + 8 + row * ROW, label.startswith((OURS, "after")) or not group.is_compared()
        at = lambda value: left + LABEL + value / most * BAR
        parts += [
            style.text(left + LABEL - 8, y + 12, label, "ours-name" if label in (OURS, "after") else None, "end"),
            style.bar(left + LABEL, y, at(medians[label]) - left - LABEL, "ours" if ours else "peer"),
        ]
        if max(values) > min(values):
            parts.append(style.line(f"M{at(min(values)):.1f} {y + 7}H{at(max(values)):.1f}", "spread"))
        parts.append(style.text(at(max(values)) + 6, y + 12, f"{shown(medians[label])} {group.unit}"))
    return parts


def draw(title, groups, note):
    """Groups in two columns, each with a scale of its own."""
    parts, tops = [style.text(16, HEAD, title, "head")], [HEAD + 26, HEAD + 26]
    for at, group in enumerate(groups):
        column = at % 2
        parts += group_parts(group, 16 + column * COLUMN, tops[column])
        tops[column] += len(group.bars) * ROW + 32
        if column == 1 or at == len(groups) - 1:
            tops = [max(tops)] * 2
    parts.append(style.text(16, tops[0] + 2, note, "note"))
    width = 16 + (2 if len(groups) > 1 else 1) * COLUMN
    return style.picture(width, tops[0] + 14, title, parts)


def chart_of(stem, raw, name):
    """The chart of a page, from raw output of this name."""
    one = next(one for one in CHARTS if one.stem == stem)
    note = f"Bars: medians; lines: least to most of the rounds. Drawn by bench/charts from raw/{name}"
    return draw(one.title, one.read(raw), note)


def chart(stem):
    """The same from the newest that is there."""
    raw = raw_of(stem)
    return chart_of(stem, raw.read_text(), raw.name)


def of_log(stem, log):
    """The same from the lines of a run, for a program that writes its page."""
    return chart_of(stem, "\n".join(log), pages.raw_name(stem))


# Pages whose first table has ratios; of HTTP only those to the peers.
RATIOS = {"alloc": None, "cpu": None, "h200": None, "http": TIMES_PEER.words("")}


def ratios(stem):
    wanted = RATIOS[stem]
    return plot.ratios((FOLDER / f"{stem}.md").read_text(), lambda words: wanted is None or words == wanted)


def all_charts():
    """Each picture by the name of its file."""
    drawn = {f"{stem}.svg": ratios(stem) for stem in RATIOS}
    return drawn | {f"{one.stem}.svg": chart(one.stem) for one in CHARTS}
