"""Draws the README's chart from the tables of the pages in docs/benchmarks. Measures nothing; a figure that no page has is an error."""

import re
from dataclasses import dataclass

from . import environment, style

FOLDER = environment.ROOT / "docs" / "benchmarks"
CHART = FOLDER / "overview.svg"
COLUMN, LABEL, BAR, ROW, HEAD = 470, 168, 215, 19, 30


@dataclass(frozen=True)
class Panel:
    """One group of bars: a column of a page's table, and which rows of it to show by which name."""

    title: str
    page: str
    table: str
    column: str
    rows: tuple


CPU = (
    Panel("1 text, 16 tokens", "cpu", "ms: median (least-most)", "1x16", (
        ("magray", "magray auto"), ("OpenVINO int8", "OpenVINO int8"), ("torch.compile bf16", "torch.compile bf16"),
        ("ONNX Runtime f32", "ORT f32"), ("PyTorch f32", "torch f32"),
    )),
    Panel("32 texts, 128 tokens each", "cpu", "ms: median (least-most)", "32x128", (
        ("magray", "magray auto"), ("torch.compile bf16", "torch.compile bf16"), ("OpenVINO int8", "OpenVINO int8"),
        ("ONNX Runtime f32", "ORT f32"), ("PyTorch f32", "torch f32"),
    )),
    Panel("32 texts, 8 to 107 tokens, peers sort them", "cpu", "ms: median (least-most)", "32 ragged, sorted groups", (
        ("magray", "magray auto"), ("torch.compile bf16", "torch.compile bf16"), ("OpenVINO int8", "OpenVINO int8"),
        ("ONNX Runtime f32", "ORT f32"), ("PyTorch f32", "torch f32"),
    )),
    Panel("HTTP, 32 mixed texts, 4 connections, p50", "http", "p50 ms: median (least-most)", "32 mixed, 4 conn.", (
        ("magray", "magray"), ("Infinity, torch bf16", "infinity-emb torch bf16"), ("Infinity, torch f32", "infinity-emb torch f32"),
        ("Infinity, ONNX f32", "infinity-emb ONNX f32"),
    )),
)
GPU = (
    Panel("1 text, 128 tokens", "h200", "ms: median (least-most)", "MiniLM 1", (
        ("magray", "magray auto"), ("CUDA graph, no mask", "torch graph f16, no mask"), ("CUDA graph", "torch graph f16"),
        ("eager", "torch eager f16"),
    )),
    Panel("512 texts, 128 tokens each", "h200", "ms: median (least-most)", "MiniLM 512", (
        ("magray", "magray auto"), ("torch.compile", "torch.compile f16"), ("CUDA graph, no mask", "torch graph f16, no mask"),
        ("eager", "torch eager f16"),
    )),
    Panel("512 texts, 5 to 228 tokens", "h200", "ms: median (least-most)", "MiniLM ragged 512", (
        ("magray", "magray auto"), ("CUDA graph, sorted", "torch graph f16, sorted groups"), ("CUDA graph", "torch graph f16"),
        ("eager", "torch eager f16"),
    )),
    Panel("bge-base, 512 texts, 128 tokens each", "h200", "ms: median (least-most)", "bge-base 512", (
        ("magray", "magray auto"), ("torch.compile", "torch.compile f16"), ("eager", "torch eager f16"),
        ("CUDA graph, no mask", "torch graph f16, no mask"),
    )),
)


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(text, head):
    """The rows of the table whose first column is called `head`, by their first cell."""
    lines = text.splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith("|") and cells(line)[0] == head), None)
    if begin is None:
        raise ValueError(f"no table '{head}'")
    columns, rows = cells(lines[begin]), {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        row = cells(line)
        rows[row[0]] = dict(zip(columns, row))
    return rows


def median(cell):
    """The figure before the brackets: `1.89 (1.66-3.89)` is 1.89."""
    found = re.match(r"[\d,]+(\.\d+)?", cell)
    if found is None:
        raise ValueError(f"'{cell}' is no figure")
    return float(found.group().replace(",", ""))


def figures(panel, text):
    """(label, milliseconds) of each bar. Only peers sort texts: for ours the ragged column is the one without sorting."""
    rows = table(text, panel.table)
    bars = []
    for label, name in panel.rows:
        cell = rows[name][panel.column]
        if cell == "-":
            cell = rows[name][panel.column.removesuffix(", sorted groups")]
        bars.append((label, median(cell)))
    return bars


def shown(value):
    """Three digits, or all of a larger figure."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def panel_svg(panel, bars, left, top):
    most = max(value for _, value in bars)
    parts = [style.text(left, top, panel.title, "name")]
    for row, (label, value) in enumerate(bars):
        y, is_ours = top + 8 + row * ROW, label == "magray"
        width, name = max(value / most * BAR, 1.5), "ours-name" if is_ours else None
        parts += [
            style.text(left + LABEL - 8, y + 12, label, name, "end"),
            style.bar(left + LABEL, y, width, "ours" if is_ours else "peer"),
            style.text(left + LABEL + width + 6, y + 12, f"{shown(value)} ms", name),
        ]
    return parts


def fact(text, name):
    return table(text, "what")[name]["which"]


def command(text):
    return text.split("## Command\n\n```\n")[1].split("\n", 1)[0]


def draw(pages):
    """The whole picture; `pages` maps the name of a page to its text."""
    height = HEAD + 22
    parts = []
    for column, (title, panels) in enumerate((
        (f"CPU: {fact(pages['cpu'], 'cores')} Xeon cores with AMX, magray in bf16", CPU),
        (f"GPU: {fact(pages['h200'], 'GPU')}, magray in bf16, PyTorch in f16", GPU),
    )):
        left, top = 16 + column * COLUMN, HEAD + 22
        parts.append(style.text(left, HEAD, title, "head"))
        for panel in panels:
            bars = figures(panel, pages[panel.page])
            parts += panel_svg(panel, bars, left, top + 6)
            top += 8 + len(bars) * ROW + 26
        height = max(height, top)
    notes = [
        "Milliseconds, less is better. all-MiniLM-L6-v2 unless it says bge-base. Median of five rounds; contenders take turns.",
        f"{command(pages['cpu'])} · {command(pages['http'])}",
        command(pages["h200"]),
    ]
    for note in notes:
        parts.append(style.text(16, height, note, "note"))
        height += 16
    title = "magray beside other programs on the CPU and on a GPU: milliseconds, less is better"
    return style.picture(2 * COLUMN + 16, height, title, parts)


def read_pages():
    return {name: (FOLDER / f"{name}.md").read_text() for name in ("cpu", "http", "h200")}
