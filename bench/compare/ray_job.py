"""The jobs of `bench/compare-ray`: one on Ray, one with the package alone, each a process of its own over the same Parquet file.

A line of JSON on standard input has the settings, each further one asks for a job; a line on standard output says its seconds.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NODES = 3
ON_RAY = """
import json, sys
import ray
asked = json.loads(sys.argv[1])
ray.init(address=asked["address"], log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
from magray.ray import embed_parquet
more = {"device": "cpu", "threads": 1, "server": "", "model": asked["model"], "portion": asked["portion"], "concurrency": asked["threads"]}
print("ready", flush=True)
sys.stdin.readline()
embed_parquet(asked["input"], asked["output"], progress=False, **more)
print("done", flush=True)
"""
ALONE = """
import json, os, sys
import pyarrow.parquet
asked = json.loads(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
from magray import Encoder
from magray.batches import as_column
encoder = Encoder(asked["model"], device="cpu", threads=asked["threads"], server="")
table = pyarrow.parquet.read_table(asked["input"])
rows = encoder.encode(table.column("text").to_pylist())
os.makedirs(asked["output"])
pyarrow.parquet.write_table(table.append_column("embedding", as_column(rows)), asked["output"] + "/all.parquet")
print("done", flush=True)
"""


def main():
    import pyarrow
    import pyarrow.parquet
    from ray.cluster_utils import Cluster

    settings = json.loads(sys.stdin.readline())
    texts = json.loads(Path(settings["folder"], "texts.json").read_text())
    source = Path(settings["folder"], "in.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"id": range(len(texts)), "text": texts}), source)
    # Each process has a CPU of a node, and one is left for what Ray does beside them.
    node = {"num_cpus": settings["threads"] // NODES + 1, "object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    for _ in range(NODES - 1):
        cluster.add_node(**node)
    try:
        for line in sys.stdin:
            code = ON_RAY if json.loads(line)["on_ray"] else ALONE
            with tempfile.TemporaryDirectory() as folder:
                asked = settings | {"address": cluster.address, "input": str(source), "output": str(Path(folder, "out"))}
                print(json.dumps({"seconds": timed(code, asked, len(texts))}), flush=True)
    finally:
        cluster.shutdown()


def timed(code, asked, count):
    """The seconds from the word to begin to the end of the job, all of whose rows are there."""
    import pyarrow.parquet

    child = subprocess.Popen([sys.executable, "-B", "-c", code, json.dumps(asked)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(child, "ready")
    begun = time.perf_counter()
    print("begin", file=child.stdin, flush=True)
    wait_for(child, "done")
    took = time.perf_counter() - begun
    child.communicate()
    rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in Path(asked["output"]).glob("*.parquet"))
    if rows != count:
        sys.exit(f"ray_job: {rows} rows of {count}")
    return took


def wait_for(child, word):
    # Ray prints of its own.
    for line in child.stdout:
        if line.strip() == word:
            return
    sys.exit(f"ray_job: the job ended before it was {word}")


if __name__ == "__main__":
    main()
