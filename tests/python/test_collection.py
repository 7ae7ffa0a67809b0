"""Collections of a folder and of a server: the same calls find the same texts."""

import json
import os
import subprocess
import unittest

from installed import EMBEDDER, SETTINGS, Isolated, run
from served import Server

TEXTS = ["the cat sat on the river", "a dog barks", "the river is long", "a cat and a dog"]
METADATA = [{"kind": "cat"}, {"kind": "dog"}, None, {"kind": "cat", "age": 3}]


class Calls:
    def test_texts_are_found_by_meaning_and_by_words(self):
        kept = self.collection("notes")
        ids = kept.add(TEXTS, ids=["a", "b", 3, "d"], metadata=METADATA)
        self.assertEqual(ids, ["a", "b", 3, "d"])
        # A model of random weights may like any of them best.
        found = {hit.id: hit for hit in kept.search(TEXTS[0], 4)}
        self.assertEqual((found["a"].text, found["a"].metadata), (TEXTS[0], {"kind": "cat"}))
        self.assertEqual(len(kept.search(TEXTS[0], 2)), 2)
        words = kept.search("barks", 1, hybrid=True)
        self.assertTrue(words)
        self.assertEqual(len(kept), 4)

    def test_a_filter_leaves_out_what_it_does_not_fit(self):
        kept = self.collection("filtered")
        kept.add(TEXTS, metadata=METADATA)
        cats = {"must": [{"key": "kind", "match": {"value": "cat"}}]}
        self.assertEqual({hit.text for hit in kept.search("a dog", 10, filter=cats)}, {TEXTS[0], TEXTS[3]})
        self.assertEqual(kept.count(cats), 2)
        kept.delete(filter=cats)
        self.assertEqual({hit.text for hit in kept}, {TEXTS[1], TEXTS[2]})

    def test_the_same_text_without_an_id_is_there_once(self):
        kept = self.collection("same")
        ids = kept.add([TEXTS[0], TEXTS[1]])
        self.assertEqual(kept.add([TEXTS[0]]), ids[:1])
        self.assertEqual(len(kept), 2)
        self.assertEqual([hit.text for hit in kept.get(ids[::-1] + ["none"])], [TEXTS[1], TEXTS[0]])
        kept.delete(ids[:1])
        self.assertEqual(len(kept), 1)

    def test_one_that_is_not_there_is_empty(self):
        kept = self.collection("nothing")
        self.assertEqual((len(kept), kept.search("a"), kept.get([1]), list(kept)), (0, [], [], []))
        kept.delete([1])
        kept.drop()

    def test_mistakes_are_named(self):
        kept = self.collection("wrong")
        for wrong, message in (
            (lambda: kept.add(["a"], ids=[1, 2]), "2 ids for 1 texts"),
            (lambda: kept.search("a", 0), "at least one"),
            (lambda: kept.search(), "query or a vector"),
            (lambda: kept.delete(), "one of them"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                wrong()
        kept.add(["a"])
        with self.assertRaisesRegex(ValueError, "vectors of"):
            kept.add(["a"], embeddings=[[1.0, 2.0]])
        with self.assertRaises(ValueError):
            kept.search("a", filter={"must": [{"key": 1}]})


class FolderTest(Calls, Isolated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from magray import Encoder

        cls.encoder = Encoder(EMBEDDER, **SETTINGS)
        cls.addClassCleanup(cls.encoder.close)

    def collection(self, name):
        from magray import Collection

        return Collection(name, self.encoder, folder=str(self.home / "collections"))


class CommandTest(Isolated):
    """The program and the package have the same collections, and each knows the model of the other's."""

    def magray(self, *words):
        settings = ["--collections", self.home / "collections", "--device", "cpu", "--threads", "1"]
        done = subprocess.run([os.environ["MAGRAY_BIN"], *words, *settings], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_a_command_searches_with_the_model_that_python_made_a_collection_with(self):
        folder = str(self.home / "collections")
        # A process has a folder open until it ends.
        code = """
import sys
from magray import Collection, Encoder
Collection("notes", Encoder(sys.argv[1], device="cpu", threads=1, server=""), folder=sys.argv[2]).add(sys.argv[3:])
"""
        self.assertEqual(run(code, EMBEDDER, folder, *TEXTS), (0, "", ""))
        (listed,) = self.magray("index", "ls", "--json")
        self.assertEqual((listed["points"], listed["model"]), (len(TEXTS), EMBEDDER))
        found = self.magray("search", "notes", TEXTS[0], "--limit", "4", "--json")
        self.assertEqual({one["payload"]["text"] for one in found}, set(TEXTS))
        exported = self.home / "notes.jsonl"
        self.magray("index", "export", "notes", "--output", exported)
        self.magray("index", "import", "copy", exported)
        self.assertEqual({one["points"] for one in self.magray("index", "ls", "--json")}, {len(TEXTS)})

    def test_python_searches_with_the_model_that_a_command_made_a_collection_with(self):
        documents = self.home / "documents.jsonl"
        documents.write_text("".join(json.dumps({"id": at, "text": text}) + "\n" for at, text in enumerate(TEXTS)))
        self.magray("index", "add", "posts", "-f", documents, "--model", EMBEDDER)
        code = """
import sys
from magray import Collection
posts = Collection("posts", folder=sys.argv[1])
print(posts.encoder.model, len(posts.search(sys.argv[2], 3)))
"""
        self.assertEqual(run(code, self.home / "collections", TEXTS[0]), (0, f"{EMBEDDER} 3\n", ""))


class ServerTest(Calls, Isolated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)

    def collection(self, name):
        from magray import Collection, Encoder

        return Collection(name, Encoder("bert", server=self.server.url), server=self.server.url)


if __name__ == "__main__":
    unittest.main()
