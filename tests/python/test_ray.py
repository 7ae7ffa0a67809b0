"""A job of Ray on three nodes of this machine, two of which are killed, and its driver once: every key once.

MAGRAY_RAY_TEXTS=200000 for a long run.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import numpy as np
from installed import EMBEDDER, SETTINGS, TOLERANCE, Isolated
from test_jobs import read

COUNT = int(os.environ.get("MAGRAY_RAY_TEXTS", "2000"))
MODEL = os.environ.get("MAGRAY_RAY_MODEL", EMBEDDER)
# Nodes of one machine need no token of each other's, and start slowly where others compute.
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "300", "RAY_USAGE_STATS_ENABLED": "0"}
PORTION = max(COUNT // 40, 16)
# A simulated GPU whose worker dies again and again.
FAULTS = {"device": "auto", "simulated_gpus": 1, "faults": "sim:0/crash@every=5, sim:0/illegal_address@every=7"}
DRIVER = """
import json, sys
import ray
from magray.ray import embed_parquet
ray.init(address=sys.argv[1], log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
written = embed_parquet(sys.argv[2], sys.argv[3], progress=False, **json.loads(sys.argv[4]))
print(f"written {written}", flush=True)
"""


@unittest.skipUnless(importlib.util.find_spec("ray"), "ray cannot be installed here")
class RayTest(Isolated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import pyarrow
        import pyarrow.parquet
        from ray.cluster_utils import Cluster

        cls.inputs = cls.home / "in.parquet"
        texts = [f"the cat {number % 97} sat on the river {number}" for number in range(COUNT)]
        pyarrow.parquet.write_table(pyarrow.table({"id": range(COUNT), "text": texts}), cls.inputs)
        cls.texts = texts
        cls.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 200 << 20})
        cls.addClassCleanup(cls.cluster.shutdown)
        for _ in range(2):
            cls.add_node()

    @classmethod
    def add_node(cls):
        return cls.cluster.add_node(num_cpus=1, object_store_memory=200 << 20)

    def start(self, output, **settings):
        import json

        arguments = SETTINGS | {"model": MODEL, "portion": PORTION, "concurrency": 2} | settings
        return subprocess.Popen(
            [sys.executable, "-B", "-c", DRIVER, self.cluster.address, self.inputs, output, json.dumps(arguments)],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def ended(self, driver):
        """The exit code, and the rows that it says it has written; Ray prints of lost nodes beside it."""
        printed, _ = driver.communicate()
        written = re.search(r"^written (\d+)$", printed, re.MULTILINE)
        return driver.returncode, int(written[1]) if written else None

    def wait_for_files(self, driver, output, count):
        while len(list(Path(output).glob("*.parquet"))) < count and driver.poll() is None:
            time.sleep(0.05)

    def check(self, output):
        keys, rows = read(output)
        self.assertEqual(sorted(keys), list(range(COUNT)))
        from magray import Encoder

        expected = Encoder(MODEL, **SETTINGS).encode([self.texts[key] for key in keys])
        self.assertLess(abs(rows - expected).max(), TOLERANCE)

    def test_a_job_survives_its_nodes_and_its_driver(self):
        output = self.home / "out"
        driver = self.start(output)
        self.wait_for_files(driver, output, 4)
        # The driver, without a word; the nodes stay.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
        before = len(list(output.glob("*.parquet")))
        self.assertLess(before, 40)
        driver = self.start(output)
        for files in (before + 4, before + 8):
            self.wait_for_files(driver, output, files)
            node = next(iter(self.cluster.worker_nodes))
            self.cluster.remove_node(node, allow_graceful=False)
            self.add_node()
        code, written = self.ended(driver)
        self.assertEqual(code, 0)
        self.assertLessEqual(written, COUNT - before * PORTION)
        self.check(output)
        self.assertEqual(self.ended(self.start(output)), (0, 0))

    def test_a_gpu_whose_worker_dies_fails_no_job(self):
        output = self.home / "faults"
        driver = self.start(output, **FAULTS)
        self.assertEqual(self.ended(driver), (0, COUNT))
        self.check(output)

    def test_a_dataset_gets_its_vectors(self):
        code = """
import json, sys
import ray
from magray.ray import Embedder
ray.init(address=sys.argv[1], log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
rows = ray.data.from_items([{"text": "a cat"}, {"text": "a river"}]).map_batches(
    Embedder, fn_constructor_args=(sys.argv[2],), fn_constructor_kwargs=json.loads(sys.argv[3]), concurrency=1)
print(len(rows.take_all()[0]["embedding"]))
"""
        import json

        done = subprocess.run(
            [sys.executable, "-B", "-c", code, self.cluster.address, MODEL, json.dumps(SETTINGS)],
            capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(int(done.stdout), 0)


@unittest.skipUnless(importlib.util.find_spec("ray"), "ray cannot be installed here")
class ServeTest(Isolated):
    @unittest.skipUnless(importlib.util.find_spec("starlette"), "ray[serve] is not installed")
    def test_a_deployment_answers_handles(self):
        import ray
        from ray import serve

        from magray import Encoder
        from magray.ray import deployment

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
        self.addCleanup(ray.shutdown)
        self.addCleanup(serve.shutdown)
        handle = serve.run(deployment(MODEL, **SETTINGS))
        rows = handle.embed.remote(["a cat", "a river"]).result()
        np.testing.assert_allclose(rows, Encoder(MODEL, **SETTINGS).encode(["a cat", "a river"]), atol=TOLERANCE)
