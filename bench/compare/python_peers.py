"""One contender of the comparison of Python packages, in an interpreter of its own: embeds texts and says how long it took.

Run as a program by `bench/compare-python`; a line of JSON on standard input says what to do, a line on standard output what came.
"""

import json
import statistics
import sys
import time

GROUPS = 8
RUNS_LEAST = 5


def main():
    # Nothing of the others' is in the way of an import's time.
    asked = json.loads(sys.stdin.readline())
    print(json.dumps({"import": imported, "texts": texts}[asked["what"]](asked)))


def imported(asked):
    """Milliseconds that a statement takes in this interpreter."""
    begun = time.perf_counter()
    exec(asked["statement"], {})
    return {"ms": (time.perf_counter() - begun) * 1e3}


def texts(asked):
    """The median of several runs over the texts, and their vectors."""
    embed = CONTENDERS[asked["contender"]](asked)
    if asked["once"]:
        begun = time.perf_counter()
        rows = embed(asked["texts"])
        return {"ms": (time.perf_counter() - begun) * 1e3, "rows": len(rows)}
    rows = embed(asked["texts"])
    embed(asked["texts"])
    took, begun = [], time.perf_counter()
    while len(took) < RUNS_LEAST or time.perf_counter() < begun + asked["seconds"]:
        start = time.perf_counter()
        embed(asked["texts"])
        took.append((time.perf_counter() - start) * 1e3)
    return {"ms": statistics.median(took), "rows": [[float(number) for number in row] for row in rows]}


def magray(asked):
    from magray import Encoder

    encoder = Encoder(asked["model"], device="cpu", threads=asked["threads"], precision=asked["precision"], server="")
    return lambda some: encoder.encode(some, normalize_embeddings=True)


def fastembed(asked):
    """As its users call it: one batch, padded to its longest text, or batches of `batch` texts sorted by length."""
    from fastembed import TextEmbedding

    name, folder = "sentence-transformers/all-MiniLM-L6-v2", asked["graph"]
    model = TextEmbedding(name, specific_model_path=folder, threads=asked["threads"], providers=["CPUExecutionProvider"])

    def sorted_by_length(some):
        order = sorted(range(len(some)), key=lambda at: len(some[at]))
        rows = [None] * len(some)
        size = -(-len(some) // GROUPS)
        for at, row in zip(order, model.embed([some[at] for at in order], batch_size=size)):
            rows[at] = row
        return rows

    ways = {
        "one batch": lambda some: list(model.embed(some, batch_size=len(some))),
        "one by one": lambda some: list(model.embed(some, batch_size=1)),
        "8 sorted groups": sorted_by_length,
    }
    return ways[asked["way"]]


CONTENDERS = {"magray": magray, "fastembed": fastembed}

if __name__ == "__main__":
    main()
