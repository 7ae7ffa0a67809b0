"""Writes a page with its plot and its raw output. Strikes out every word of the machine; measures nothing."""

import datetime
import sys

from . import environment, machine

FOLDER = environment.ROOT / "docs" / "benchmarks"


def today():
    return datetime.date.today().isoformat()


def raw_name(stem):
    return f"{stem}-{today()}.txt"


def show(page, hidden):
    """Prints a page that is written nowhere."""
    print(machine.scrubbed(page, hidden))


def write(path, page, log, hidden, plot=None):
    """Writes the page, the raw output under `raw/`, and the plot beside the page; prints the page too."""
    show(page, hidden)
    raw = path.parent / "raw" / raw_name(path.stem)
    raw.parent.mkdir(parents=True, exist_ok=True)
    raw.write_text(machine.scrubbed("\n".join(log), hidden) + "\n")
    path.write_text(machine.scrubbed(page, hidden))
    if plot:
        path.with_suffix(".svg").write_text(plot)
    print(f"written: {path.name} and raw/{raw.name}", file=sys.stderr)
