"""Jobs over Parquet files: every key once, whatever was done before; the batches of data engines."""

import importlib.util
import os
import shutil
import sys
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
from installed import EMBEDDER, SETTINGS, TOLERANCE, Isolated

HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
COUNT = 500


def table(rows):
    import pyarrow

    return pyarrow.table({"id": list(rows), "text": [f"river {number} and a cat" for number in rows]})


def read(folder):
    """The keys and vectors of a folder's files."""
    import pyarrow.parquet

    files = [pyarrow.parquet.read_table(path) for path in sorted(Path(folder).glob("*.parquet"))]
    keys = [key for file in files for key in file.column("id").to_pylist()]
    rows = [row for file in files for row in file.column("embedding").to_pylist()]
    return keys, np.array(rows, np.float32)


@unittest.skipUnless(HAS_ARROW, "pyarrow is not installed")
class JobTest(Isolated):
    def setUp(self):
        import pyarrow.parquet

        from magray.batches import Embedder

        self.folder = Path(self.home, self.id())
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "in").mkdir(parents=True)
        for start in (0, 300):
            rows = range(start, min(start + 300, COUNT))
            pyarrow.parquet.write_table(table(rows), self.folder / "in" / f"{start}.parquet", row_group_size=77)
        self.embedder = Embedder(EMBEDDER, **SETTINGS)

    def job(self, portion=64):
        from magray.jobs import Job

        return Job((str(self.folder / "in"),), str(self.folder / "out"), portion=portion)

    def run_all(self, job):
        planned, take, rows = job.plan(), job.taker(), 0
        whole, keys = job.done(planned)
        for portion in planned:
            if portion not in whole:
                written, told = job.run(portion, keys, self.embedder)
                take(told)
                rows += written
        return rows

    def check(self):
        keys, rows = read(self.folder / "out")
        self.assertEqual(sorted(keys), list(range(COUNT)))
        texts = [f"river {number} and a cat" for number in keys]
        np.testing.assert_allclose(rows, self.embedder.encoder.encode(texts), atol=TOLERANCE)

    def test_every_key_is_there_once_and_a_second_run_does_nothing(self):
        self.assertEqual(self.run_all(self.job()), COUNT)
        self.check()
        self.assertEqual(self.run_all(self.job()), 0)

    def test_a_run_goes_on_where_another_was_stopped(self):
        job = self.job()
        for portion in job.plan()[:3]:
            job.run(portion, None, self.embedder)
            # Once more, as after a node was lost: the same file.
            job.run(portion, None, self.embedder)
        self.assertEqual(self.run_all(job), COUNT - 3 * 64)
        self.check()

    def test_a_file_that_is_written_anew_with_other_rows_leaves_every_key_once(self):
        import pyarrow.parquet

        for portion in self.job().plan()[1:4]:
            self.job().run(portion, None, self.embedder)
        # The keys that were computed stand in other portions now, of as many rows as before.
        path = self.folder / "in" / "0.parquet"
        for name, rows in (("shifted and more", range(-20, 310)), ("in another order", range(309, -21, -1))):
            with self.subTest(rows=name):
                pyarrow.parquet.write_table(table(rows), path, row_group_size=77)
                (self.folder / "in" / "300.parquet").unlink(missing_ok=True)
                self.run_all(self.job())
                keys, _ = read(self.folder / "out")
                self.assertEqual(sorted(keys), list(range(-20, 310)))
        # Keys that the input has no more stay.
        pyarrow.parquet.write_table(table(range(100)), path)
        self.assertEqual(self.run_all(self.job()), 0)
        self.assertEqual(len(read(self.folder / "out")[0]), 330)

    def test_files_of_another_version_are_known_by_their_keys(self):
        import json

        import pyarrow.parquet

        job = self.job()
        for portion in job.plan()[:2]:
            job.run(portion, None, self.embedder)
        for path, changed in zip(job.parts(), ("source", "more"), strict=True):
            file = pyarrow.parquet.read_table(path)
            mark = {name: value for name, value in json.loads(file.schema.metadata[b"magray.portion"]).items() if name != changed}
            mark |= {"more": 1} if changed == "more" else {}
            pyarrow.parquet.write_table(file.replace_schema_metadata({b"magray.portion": json.dumps(mark)}), path)
        self.assertEqual(self.run_all(job), COUNT - 2 * 64)
        self.check()

    def test_an_input_that_changes_under_a_job_is_an_error(self):
        import pyarrow.parquet

        portions = self.job().plan()
        pyarrow.parquet.write_table(table(range(5, 305)), portions[0].file)
        with self.assertRaisesRegex(ValueError, "was changed while a job reads it"):
            self.job().run(portions[0], None, self.embedder)

    def test_readers_of_the_folder_see_no_file_before_it_is_whole(self):
        import pyarrow.dataset
        import pyarrow.parquet

        job, seen = self.job(), []
        job.run(job.plan()[0], None, self.embedder)
        write = pyarrow.parquet.write_table

        def half_written(rows, path, **more):
            write(rows, path, **more)
            os.truncate(path, 1000)
            seen.append(os.path.basename(path))
            self.assertEqual(pyarrow.parquet.read_table(job.output).num_rows, 64)
            self.assertEqual(pyarrow.dataset.dataset(job.output, format="parquet").count_rows(), 64)
            raise OSError("the disk is full")

        with mock.patch("pyarrow.parquet.write_table", half_written), self.assertRaisesRegex(OSError, "disk is full"):
            job.run(job.plan()[1], None, self.embedder)
        self.assertEqual(len(seen), 1)
        self.assertEqual(len(os.listdir(job.output)), 1)

    def test_what_was_left_unfinished_is_removed_when_nobody_writes_it(self):
        job, unfinished = self.job(), f"part-{'0' * 32}.parquet.{'1' * 32}.part"
        job.remove_unfinished()
        os.makedirs(job.output)
        kept = {f".part-{'2' * 32}.parquet.{'3' * 32}.part", ".another.part", f"part-{'4' * 32}.parquet"}
        for name in (unfinished, "." + unfinished, *kept):
            path = Path(job.output, name)
            path.write_bytes(b"half")
            # The first of what is kept is new: another node may be writing it.
            if "2" not in name:
                os.utime(path, (0, 0))
        job.remove_unfinished()
        self.assertEqual(set(os.listdir(job.output)), kept)

    def test_a_file_is_on_the_disk_before_it_has_its_name(self):
        job, done = self.job(), []
        sync, replace = os.fsync, os.replace

        def synced(descriptor):
            done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))[:5])
            sync(descriptor)

        def replaced(*paths):
            done.append("replace")
            replace(*paths)

        with mock.patch("os.fsync", synced), mock.patch("os.replace", replaced):
            job.run(job.plan()[0], None, self.embedder)
        self.assertEqual(done, [".part", "replace", "out"])

    def test_other_portions_compute_only_the_keys_that_are_missing(self):
        for portion in self.job(64).plan()[1:4]:
            self.job(64).run(portion, None, self.embedder)
        done = len(read(self.folder / "out")[0])
        self.assertEqual(self.run_all(self.job(100)), COUNT - done)
        self.check()
        self.assertEqual(self.run_all(self.job(100)), 0)

    @unittest.skipUnless(importlib.util.find_spec("lance"), "pylance is not installed")
    def test_a_lance_dataset_has_every_key_once(self):
        import lance

        from magray import MagrayError
        from magray.jobs import Job

        output = str(self.folder / "out.lance")
        job = Job((str(self.folder / "in"),), output, portion=64)
        take = job.taker()
        for portion in job.plan()[:3]:
            take(job.run(portion, None, self.embedder)[1])
            # Once more, as after a node was lost: what is told of it reaches no driver.
            job.run(portion, None, self.embedder)
        self.assertEqual(lance.dataset(output).count_rows(), 3 * 64)
        self.assertEqual(self.run_all(Job((str(self.folder / "in"),), output, portion=100)), COUNT - 3 * 64)
        rows = lance.dataset(output).to_table()
        self.assertEqual(sorted(rows.column("id").to_pylist()), list(range(COUNT)))
        expected = self.embedder.encoder.encode(rows.column("text").to_pylist())
        np.testing.assert_allclose(np.array(rows.column("embedding").to_pylist(), np.float32), expected, atol=TOLERANCE)
        self.assertEqual(self.run_all(job), 0)
        (self.folder / "more").mkdir()
        import pyarrow.parquet

        pyarrow.parquet.write_table(table(range(COUNT, COUNT + 9)), self.folder / "more" / "more.parquet")
        more = Job((str(self.folder / "more"),), output)
        with self.assertRaisesRegex(MagrayError, "one job on a dataset"):
            # Its driver began before the others were taken in.
            take(more.run(more.plan()[0], None, self.embedder)[1])

    def test_portions_are_read_in_any_order_across_groups_of_rows(self):
        import pyarrow
        import pyarrow.parquet
        from magray import jobs

        path = str(self.folder / "groups.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"id": range(1000)}), path, row_group_size=170)
        reader, whole = jobs.Reader(), jobs._BATCH_ROWS
        jobs._BATCH_ROWS = 64
        self.addCleanup(setattr, jobs, "_BATCH_ROWS", whole)
        for start, rows in [(0, 100), (100, 100), (130, 5), (500, 340), (340, 1), (990, 10), (0, 1000), (999, 1), (990, 50), (1000, 1)]:
            found = reader.rows(jobs.Portion(path, start, rows)).column("id").to_pylist()
            self.assertEqual(found, list(range(1000))[start : start + rows])

    def test_a_read_that_failed_is_begun_anew(self):
        import pyarrow
        import pyarrow.parquet

        from magray import jobs

        path = str(self.folder / "groups.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"id": range(400)}), path)
        portion = jobs.Portion(path, 50, 100)
        for before in (0, 60):
            reader = jobs.Reader()

            def failing(file, batch_size, row_groups):
                yield from file.read().slice(0, before).to_batches()
                raise OSError("the network is gone")

            with mock.patch.object(pyarrow.parquet.ParquetFile, "iter_batches", failing):
                with self.assertRaisesRegex(OSError, "network"):
                    reader.rows(portion)
            for _ in range(2):
                self.assertEqual(reader.rows(portion).column("id").to_pylist(), list(range(50, 150)))

    def test_groups_of_rows_between_portions_are_not_read(self):
        import pyarrow
        import pyarrow.parquet

        from magray import jobs

        path = str(self.folder / "groups.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"id": range(1000)}), path, row_group_size=100, compression="none", use_dictionary=False)
        metadata = pyarrow.parquet.read_metadata(path)
        # All but the first, the sixth and the last group can be read no more.
        with open(path, "r+b") as file:
            for at in {*range(10)} - {0, 5, 9}:
                column = metadata.row_group(at).column(0)
                file.seek(column.data_page_offset)
                file.write(b"\xff" * column.total_compressed_size)
        reader = jobs.Reader()
        for start, rows in [(0, 50), (520, 50), (950, 50), (60, 40), (570, 30)]:
            found = reader.rows(jobs.Portion(path, start, rows)).column("id").to_pylist()
            self.assertEqual(found, list(range(start, start + rows)))
        with self.assertRaises(OSError):
            reader.rows(jobs.Portion(path, 90, 20))

    def test_mistakes_are_named(self):
        from magray.jobs import Job

        with self.assertRaisesRegex(ValueError, "no Parquet file"):
            Job((str(self.folder),), str(self.folder / "out")).plan()
        job = Job((str(self.folder / "in"),), str(self.folder / "out"), text="body")
        with self.assertRaisesRegex(ValueError, "no column 'body'"):
            job.run(job.plan()[0], None, self.embedder)


@unittest.skipUnless(HAS_ARROW, "pyarrow is not installed")
class BatchTest(Isolated):
    def test_batches_of_every_kind_get_their_vectors(self):
        import pandas

        from magray.batches import Embedder
        from magray.spark import embedder

        embed = Embedder(EMBEDDER, **SETTINGS)
        texts = ["a cat", "a river"]
        expected = embed.encoder.encode(texts)
        as_dict = embed({"text": np.array(texts, object)})["embedding"]
        as_table = np.array(embed(table(range(2)).set_column(1, "text", [texts])).column("embedding").to_pylist())
        frames = list(embedder(EMBEDDER, **SETTINGS)(iter([pandas.DataFrame({"text": texts})])))
        for rows in (as_dict, as_table, np.stack(frames[0]["embedding"])):
            np.testing.assert_allclose(rows, expected, atol=TOLERANCE)
        with self.assertRaisesRegex(ValueError, "row 1 of a batch has no text"):
            embed({"text": ["a", None]})

    @unittest.skipUnless(importlib.util.find_spec("daft"), "daft is not installed")
    def test_daft_has_a_column_of_vectors(self):
        import daft

        from magray.daft import Embedder, embedder

        frame = daft.from_pydict({"text": ["a cat", "a river"]})
        rows = frame.with_column("embedding", embedder(EMBEDDER, **SETTINGS)(frame["text"])).to_pydict()["embedding"]
        np.testing.assert_allclose(np.array(rows), Embedder(EMBEDDER, **SETTINGS).rows(["a cat", "a river"]), atol=TOLERANCE)

    @unittest.skipUnless(importlib.util.find_spec("pyspark") and shutil.which("java"), "pyspark or Java is not installed")
    def test_spark_has_a_column_of_vectors(self):
        from pyspark.sql import SparkSession

        from magray.spark import Embedder, embedder, schema

        os.environ["PYSPARK_PYTHON"] = sys.executable
        session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        self.addCleanup(session.stop)
        texts = [f"river {number}" for number in range(50)]
        frame = session.createDataFrame(list(enumerate(texts)), ["id", "text"])
        rows = frame.mapInPandas(embedder(EMBEDDER, **SETTINGS), schema(frame)).collect()
        self.assertEqual(sorted(row["id"] for row in rows), list(range(50)))
        expected = Embedder(EMBEDDER, **SETTINGS).rows([row["text"] for row in rows])
        np.testing.assert_allclose(np.array([row["embedding"] for row in rows]), expected, atol=TOLERANCE)


if __name__ == "__main__":
    os.environ.setdefault("MAGRAY_BIN", "magray")
    unittest.main()
