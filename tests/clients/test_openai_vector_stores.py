"""OpenAI's own client with files and vector stores: uploads, polling helpers, batches, searches, pages."""

import io

import openai
from served import EMBEDDER, Served

# Short: the tiny model reads few tokens, and each of them is to be one chunk.
RIVER = "the cat sat on the river"
HILL = "a dog"


class VectorStores(Served):
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0)
        self.addCleanup(self.client.close)
        self.stores = self.client.vector_stores

    def upload(self, name, text):
        return self.client.files.create(file=(name, io.BytesIO(text.encode())), purpose="assistants")

    def store(self, **options):
        store = self.stores.create(**options)
        self.addCleanup(self.stores.delete, store.id)
        return store.id

    def names(self, store, query, **options):
        return [found.filename for found in self.stores.search(vector_store_id=store, query=query, **options)]

    def test_files_are_uploaded_listed_read_and_deleted(self):
        file = self.upload("river.txt", RIVER)
        self.assertEqual((file.object, file.filename, file.bytes), ("file", "river.txt", len(RIVER)))
        self.assertEqual(self.client.files.retrieve(file.id).id, file.id)
        self.assertIn(file.id, [listed.id for listed in self.client.files.list(purpose="assistants", limit=1)])
        self.assertEqual(self.client.files.content(file.id).text, RIVER)
        self.assertTrue(self.client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(file.id)

    def test_a_store_is_made_changed_listed_and_deleted(self):
        after = {"anchor": "last_active_at", "days": 3}
        store = self.stores.create(name="notes", metadata={"team": "a"}, expires_after=after)
        self.assertEqual((store.name, store.status, store.metadata), ("notes", "completed", {"team": "a"}))
        self.assertEqual(store.expires_at - store.last_active_at, 3 * 86_400)
        changed = self.stores.update(vector_store_id=store.id, name="other", expires_after=None)
        self.assertEqual((changed.name, changed.expires_at), ("other", None))
        others = [self.store() for _ in range(3)]
        listed = [item.id for item in self.stores.list(limit=2)]
        self.assertEqual(listed[:4], [*reversed(others), store.id])
        self.assertTrue(self.stores.delete(store.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.stores.retrieve(store.id)

    def test_files_are_indexed_and_found(self):
        store = self.store(name="notes")
        attached = self.stores.files.upload_and_poll(
            vector_store_id=store, file=("river.txt", RIVER.encode()), attributes={"about": "river", "year": 2020}
        )
        self.assertEqual((attached.status, attached.last_error), ("completed", None))
        hill = self.upload("hill.txt", HILL)
        sizes = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20}
        attached = self.stores.files.create_and_poll(
            hill.id,
            vector_store_id=store,
            attributes={"about": "hill", "year": 2021},
            chunking_strategy={"type": "static", "static": sizes},
        )
        self.assertEqual(attached.status, "completed")
        self.assertLessEqual(attached.chunking_strategy.static.max_chunk_size_tokens, 100)
        best = next(iter(self.stores.search(vector_store_id=store, query=RIVER, max_num_results=2)))
        self.assertEqual((best.filename, best.content[0].text), ("river.txt", RIVER))
        self.assertEqual(best.attributes, {"about": "river", "year": 2020})
        self.assertGreater(best.score, 0.9)
        self.assertEqual(self.names(store, "cat", filters={"type": "eq", "key": "about", "value": "hill"}), ["hill.txt"])
        year = {"type": "gte", "key": "year", "value": 2020}
        both = {"type": "and", "filters": [year, {"type": "ne", "key": "about", "value": "hill"}]}
        self.assertEqual(self.names(store, "cat", filters=both), ["river.txt"])
        self.assertEqual(len(self.names(store, ["cat", "boat"], rewrite_query=True)), 2)
        self.assertEqual(len(self.names(store, "cat", ranking_options={"ranker": "auto", "score_threshold": 0.0})), 2)
        updated = self.stores.files.update(hill.id, vector_store_id=store, attributes={"about": "cats"})
        self.assertEqual(updated.attributes, {"about": "cats"})
        text = [part.text for part in self.stores.files.content(hill.id, vector_store_id=store)]
        self.assertEqual(text, [HILL])
        self.assertEqual(self.stores.retrieve(store).file_counts.completed, 2)
        self.assertTrue(self.stores.files.delete(hill.id, vector_store_id=store).deleted)
        self.assertEqual([file.id for file in self.stores.files.list(store, filter="completed")].count(hill.id), 0)

    def test_batches(self):
        store = self.store()
        files = [("river.txt", RIVER.encode()), ("hill.txt", HILL.encode()), ("x.bin", bytes(50))]
        batch = self.stores.file_batches.upload_and_poll(vector_store_id=store, files=files)
        self.assertEqual((batch.status, batch.file_counts.completed, batch.file_counts.failed), ("completed", 2, 1))
        listed = self.stores.file_batches.list_files(batch.id, vector_store_id=store, limit=2)
        self.assertEqual(sorted(file.status for file in listed), ["completed", "completed", "failed"])
        failed = next(iter(self.stores.files.list(store, filter="failed")))
        self.assertEqual(failed.last_error.code, "unsupported_file")
        self.assertEqual(self.stores.file_batches.cancel(batch.id, vector_store_id=store).file_counts.total, 3)

    def test_a_store_with_files_from_the_start_is_a_collection(self):
        file = self.upload("river.txt", RIVER)
        store = self.store(file_ids=[file.id], extra_body={"model": EMBEDDER})
        self.stores.files.poll(file.id, vector_store_id=store)
        query = {"query": {"text": RIVER}, "limit": 1, "with_payload": True}
        found = self.server.post(f"/collections/{store}/points/query", query)["result"]["points"]
        self.assertEqual(found[0]["payload"]["filename"], "river.txt")

    def test_errors_are_those_that_the_client_knows(self):
        store = self.store()
        with self.assertRaises(openai.NotFoundError):
            self.stores.search(vector_store_id="vs_none", query="a")
        with self.assertRaises(openai.NotFoundError):
            self.stores.files.create(vector_store_id=store, file_id="file-none")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.stores.search(vector_store_id=store, query="a", filters={"type": "like", "key": "a", "value": "b"})
        self.assertEqual(caught.exception.param, "filters")
