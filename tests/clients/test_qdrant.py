"""Qdrant's client in Python, against the server and against its own copy in memory: the same operations, the same answers.

MAGRAY_QDRANT_OPERATIONS sets how many random operations are tried, MAGRAY_TEST_SEED which.
"""

import os
import random
import uuid

import numpy
from qdrant_client import QdrantClient, models
from served import EMBEDDER, Served, embedded

OPERATIONS = int(os.environ.get("MAGRAY_QDRANT_OPERATIONS", "400"))
SEED = int(os.environ.get("MAGRAY_TEST_SEED", "1"))
NAME = "things"
IDS = [*range(40), *(str(uuid.UUID(int=number)) for number in range(10))]
WORDS = ["red", "green", "blue", "river", "cat"]
SIZES = {"": 5, "dot": 4, "far": 3}


def by_name(vectors):
    """Vectors by their names; one that stands alone has none."""
    return vectors if isinstance(vectors, dict) else {"": vectors}


def numbers(vector):
    return vector.values if isinstance(vector, models.SparseVector) else vector


class Both:
    """One client of the server and one of the memory; every call goes to both, and what comes back is compared."""

    def __init__(self, url):
        self.server = QdrantClient(url=url, timeout=60)
        self.memory = QdrantClient(":memory:")

    def change(self, call):
        for client in (self.memory, self.server):
            call(client)

    def ask(self, call):
        return call(self.memory), call(self.server)


class Random(Served):
    def setUp(self):
        self.random = random.Random(SEED)
        self.both = Both(self.url)
        self.both.change(self.create)

    def tearDown(self):
        self.both.change(lambda client: client.delete_collection(NAME))

    @staticmethod
    def create(client):
        vectors = {
            "": models.VectorParams(size=SIZES[""], distance=models.Distance.COSINE),
            "dot": models.VectorParams(size=SIZES["dot"], distance=models.Distance.DOT),
            "far": models.VectorParams(size=SIZES["far"], distance=models.Distance.EUCLID),
        }
        sparse = {"words": models.SparseVectorParams(modifier=models.Modifier.IDF)}
        client.create_collection(NAME, vectors_config=vectors, sparse_vectors_config=sparse)

    def test_random_operations(self):
        changes = [self.upsert, self.delete, self.set_payload, self.delete_payload, self.update_vectors, self.delete_vectors]
        asks = [self.query, self.scroll, self.count, self.retrieve, self.recommend, self.fuse, self.group, self.facet]
        self.upsert(30)
        for number in range(OPERATIONS):
            operation = self.random.choice(changes if self.random.random() < 0.3 else asks)
            with self.subTest(seed=SEED, number=number, operation=operation.__name__):
                operation()

    # Changes.

    def upsert(self, count=None):
        ids = self.random.sample(IDS, count or self.random.randint(1, 5))
        points = [models.PointStruct(id=one, vector=self.vectors(), payload=self.payload()) for one in ids]
        self.both.change(lambda client: client.upsert(NAME, points, wait=True))

    def delete(self):
        self.both.change(lambda client, selector=self.selector(): client.delete(NAME, selector, wait=True))

    def set_payload(self):
        selector, payload = self.selector(), self.payload()
        if self.random.random() < 0.5:
            self.both.change(lambda client: client.set_payload(NAME, payload, points=selector, wait=True))
        else:
            self.both.change(lambda client: client.overwrite_payload(NAME, payload, points=selector, wait=True))

    def delete_payload(self):
        selector = self.selector()
        if self.random.random() < 0.2:
            self.both.change(lambda client: client.clear_payload(NAME, points_selector=selector, wait=True))
            return
        keys = self.random.sample(["word", "number", "list", "place.name"], 2)
        self.both.change(lambda client: client.delete_payload(NAME, keys, points=selector, wait=True))

    def update_vectors(self):
        there = self.there()
        if not there:
            return
        points = [models.PointVectors(id=one, vector=self.vectors()) for one in self.random.sample(there, 1)]
        self.both.change(lambda client: client.update_vectors(NAME, points, wait=True))

    def delete_vectors(self):
        names, there = self.random.sample(["dot", "far", "words"], 1), self.there()
        if len(there) < 2:
            return
        ids = self.random.sample(there, 2)
        self.both.change(lambda client: client.delete_vectors(NAME, vectors=names, points=ids, wait=True))

    # Questions.

    def query(self):
        using = self.random.choice(["", "dot", "far", "words"])
        asked = {"using": using, "query": self.vector(using), **self.common()}
        if self.random.random() < 0.2:
            asked["score_threshold"] = self.random.uniform(-0.5, 0.5) if using != "far" else self.random.uniform(0.5, 3)
        self.compare_ranked(lambda client: client.query_points(NAME, **asked).points)

    def recommend(self):
        there = self.there()
        if len(there) < 3:
            return
        examples = self.random.sample(there, 2)
        strategy = self.random.choice(list(models.RecommendStrategy))
        given = models.RecommendInput(positive=[examples[0], self.vector("")], negative=[examples[1]], strategy=strategy)
        asked = {"query": models.RecommendQuery(recommend=given), "using": "", **self.common()}
        has_all = models.Filter(must=[models.HasIdCondition(has_id=examples), models.HasVectorCondition(has_vector="")])
        if self.both.memory.count(NAME, has_all).count == 2:
            self.compare_ranked(lambda client: client.query_points(NAME, **asked).points)

    def fuse(self):
        parts = ["", "dot", "far", "words"]
        prefetch = [
            models.Prefetch(query=self.vector(using), using=using, limit=self.random.randint(1, 10))
            for using in self.random.sample(parts, 2)
        ]
        fusion = models.FusionQuery(fusion=self.random.choice(list(models.Fusion)))
        self.compare_ranked(lambda client: client.query_points(NAME, prefetch=prefetch, query=fusion, limit=8).points)

    def group(self):
        asked = {"query": self.vector(""), "using": "", "group_by": "word", "group_size": 2, "limit": 4}
        ours, theirs = self.both.ask(lambda client: client.query_points_groups(NAME, **asked).groups)
        self.assertEqual([group.id for group in ours], [group.id for group in theirs])
        for one, other in zip(ours, theirs):
            self.assert_ranked(one.hits, other.hits)

    def scroll(self):
        asked = {"limit": self.random.randint(1, 12), "scroll_filter": self.filter(), "with_vectors": True}
        if self.random.random() < 0.5:
            asked["offset"] = self.random.choice(IDS)
        (ours, first), (theirs, second) = self.both.ask(lambda client: client.scroll(NAME, **asked))
        self.assert_same(ours, theirs)
        self.assertEqual(first, second)

    def count(self):
        found = self.both.ask(lambda client, chosen=self.filter(): client.count(NAME, chosen).count)
        self.assertEqual(*found)

    def retrieve(self):
        ids = self.random.sample(IDS, 6)
        ours, theirs = self.both.ask(lambda client: client.retrieve(NAME, ids, with_vectors=True))
        self.assert_same(sorted(ours, key=str), sorted(theirs, key=str))

    def facet(self):
        chosen = self.filter()
        hits = self.both.ask(lambda client: client.facet(NAME, "word", facet_filter=chosen, limit=10).hits)
        self.assertEqual(*({(hit.value, hit.count) for hit in found} for found in hits))

    # What they are made of.

    def there(self):
        """Ids that are there: the memory fails at others, after it has changed some."""
        return [point.id for point in self.both.memory.scroll(NAME, limit=100, with_payload=False)[0]]

    def vector(self, name):
        if name == "words":
            indices = self.random.sample(range(50), 4)
            return models.SparseVector(indices=indices, values=[round(self.random.uniform(0.1, 2), 3) for _ in indices])
        return [round(self.random.uniform(-1, 1), 3) for _ in range(SIZES[name])]

    def vectors(self):
        names = [name for name in ("dot", "far", "words") if self.random.random() < 0.7]
        return {name: self.vector(name) for name in ["", *names]}

    def payload(self):
        made = {
            "word": self.random.choice(WORDS),
            "number": self.random.randint(0, 20),
            "list": self.random.sample(range(10), self.random.randint(0, 3)),
            "place": {"name": self.random.choice(WORDS), "lon": self.random.randint(-10, 10), "lat": self.random.randint(-10, 10)},
            "nothing": None,
        }
        return {key: made[key] for key in made if self.random.random() < 0.7}

    def condition(self):
        return self.random.choice(
            [
                lambda: models.FieldCondition(key="word", match=models.MatchValue(value=self.random.choice(WORDS))),
                lambda: models.FieldCondition(key="word", match=models.MatchAny(any=self.random.sample(WORDS, 2))),
                lambda: models.FieldCondition(key="word", match=models.MatchExcept(**{"except": [self.random.choice(WORDS)]})),
                lambda: models.FieldCondition(key="number", range=models.Range(gte=self.random.randint(0, 20))),
                lambda: models.FieldCondition(key="list[]", match=models.MatchValue(value=self.random.randint(0, 9))),
                lambda: models.FieldCondition(key="list", values_count=models.ValuesCount(gt=1)),
                lambda: models.IsEmptyCondition(is_empty=models.PayloadField(key="list")),
                lambda: models.IsNullCondition(is_null=models.PayloadField(key="nothing")),
                lambda: models.HasIdCondition(has_id=self.random.sample(IDS, 10)),
                lambda: models.HasVectorCondition(has_vector=self.random.choice(["dot", "far"])),
            ]
        )()

    def filter(self):
        if self.random.random() < 0.3:
            return None
        parts = {part: [self.condition()] for part in ("must", "should", "must_not") if self.random.random() < 0.5}
        return models.Filter(**parts)

    def selector(self):
        there = self.there()
        if self.random.random() < 0.7 and len(there) > 1:
            return self.random.sample(there, 2)
        word = models.FieldCondition(key="word", match=models.MatchValue(value=self.random.choice(WORDS)))
        number = models.FieldCondition(key="number", range=models.Range(lte=2))
        return models.Filter(must=[word, number])

    def common(self):
        return {"limit": self.random.randint(1, 10), "offset": self.random.randint(0, 3), "query_filter": self.filter()}

    def compare_ranked(self, call):
        self.assert_ranked(*self.both.ask(call))

    def assert_ranked(self, ours, theirs):
        """The same scores in the same order; where scores are equal, ids may be in another order."""
        self.assertEqual(len(ours), len(theirs), (ours, theirs))
        numpy.testing.assert_allclose([one.score for one in theirs], [one.score for one in ours], rtol=1e-4, atol=1e-5)
        for one, other in zip(ours, theirs):
            if one.id == other.id:
                self.assertEqual(one.payload, other.payload)
        close = lambda points: {point.id for point in points if abs(point.score - ours[-1].score) > 1e-4}
        self.assertEqual(close(ours), close(theirs))

    def assert_same(self, ours, theirs):
        self.assertEqual([one.id for one in ours], [other.id for other in theirs])
        for one, other in zip(ours, theirs):
            self.assertEqual(one.payload, other.payload)
            first, second = by_name(one.vector), by_name(other.vector)
            self.assertEqual(set(first), set(second), one.id)
            for name, vector in first.items():
                numpy.testing.assert_allclose(numbers(vector), numbers(second[name]), rtol=1e-4, atol=1e-5)


class Documents(Served):
    """Texts that the server embeds, aliases, settings of collections, snapshots."""

    def setUp(self):
        self.client = QdrantClient(url=self.url, timeout=60)
        size = len(embedded(["river"])[0])
        self.client.create_collection(
            NAME,
            vectors_config=models.VectorParams(size=size, distance=models.Distance.COSINE),
            sparse_vectors_config={"words": models.SparseVectorParams(modifier=models.Modifier.IDF)},
            metadata={"owner": "tests"},
        )

    def tearDown(self):
        self.client.delete_collection(NAME)

    def document(self, text, model=EMBEDDER):
        return models.Document(text=text, model=model)

    def test_texts_are_embedded_by_the_server(self):
        texts = ["a cat by the river", "a dog", "the king of the hill"]
        # The client would embed by itself where it can; the server's names are not among those it knows.
        points = [
            {"id": number, "vector": {"": {"text": text, "model": EMBEDDER}, "words": {"text": text, "model": "Qdrant/bm25"}}}
            for number, text in enumerate(texts)
        ]
        self.put(f"/collections/{NAME}/points", {"points": points})
        found = self.client.retrieve(NAME, [0, 1, 2], with_vectors=True)
        self.assert_near([point.vector[""] for point in found], embedded(texts, "passage"))
        by_text = self.ask({"query": {"text": texts[1], "model": EMBEDDER}})["points"]
        by_vector = self.ask({"query": embedded([texts[1]], "query")[0]})["points"]
        self.assertEqual([point["id"] for point in by_text], [point["id"] for point in by_vector])
        asked = {"query": {"text": "kings", "model": "qdrant/bm25"}, "using": "words"}
        self.assertEqual([point["id"] for point in self.ask(asked)["points"]], [2])
        hybrid = {
            "prefetch": [
                {"query": {"text": "a dog", "model": EMBEDDER}, "limit": 3},
                {"query": {"text": "dogs", "model": "bm25"}, "using": "words", "limit": 3},
            ],
            "query": {"fusion": "rrf"},
        }
        self.assertEqual(self.ask(hybrid)["points"][0]["id"], 1)

    def put(self, path, body):
        return self.server.send("PUT", path, body)["result"]

    def ask(self, body):
        return self.server.post(f"/collections/{NAME}/points/query", body)["result"]

    def test_a_collection_is_shown_as_it_was_made(self):
        info = self.client.get_collection(NAME)
        self.assertEqual(info.config.params.vectors.distance, models.Distance.COSINE)
        self.assertEqual(info.config.params.sparse_vectors["words"].modifier, models.Modifier.IDF)
        self.assertEqual(info.config.metadata, {"owner": "tests"})
        self.client.create_payload_index(NAME, "word", field_schema="keyword", wait=True)
        self.assertEqual(self.client.get_collection(NAME).payload_schema["word"].data_type, models.PayloadSchemaType.KEYWORD)

    def test_aliases(self):
        create = models.CreateAlias(collection_name=NAME, alias_name="other")
        self.client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
        self.assertEqual([alias.alias_name for alias in self.client.get_collection_aliases(NAME).aliases], ["other"])
        self.assertEqual(self.client.count("other").count, 0)
        delete = models.DeleteAlias(alias_name="other")
        self.client.update_collection_aliases([models.DeleteAliasOperation(delete_alias=delete)])
        self.assertFalse(self.client.collection_exists("other"))

    def test_snapshots(self):
        vector = embedded(["river"])[0]
        self.client.upsert(NAME, [models.PointStruct(id=1, vector={"": vector}, payload={"a": 1})])
        made = self.client.create_snapshot(NAME)
        self.assertEqual([one.name for one in self.client.list_snapshots(NAME)], [made.name])
        self.client.delete(NAME, [1])
        self.assertTrue(self.client.recover_snapshot(NAME, made.name))
        self.assertEqual(self.client.retrieve(NAME, [1])[0].payload, {"a": 1})
        self.client.delete_snapshot(NAME, made.name)
        self.assertEqual(self.client.list_snapshots(NAME), [])

    def test_the_version_of_the_server_fits_the_client(self):
        from qdrant_client.common.version_check import get_server_version, is_compatible
        import importlib.metadata

        headers = {"User-Agent": "python-client/1"}
        own = importlib.metadata.version("qdrant-client")
        self.assertTrue(is_compatible(own, get_server_version(self.url, headers, None, 10)))


class Keys(Served):
    environment = {"MAGRAY_API_KEYS": "user", "MAGRAY_ADMIN_KEYS": "admin"}

    def test_a_users_key_reads_and_an_administrators_writes(self):
        options = {"url": self.url, "https": False}
        admin, user = (QdrantClient(api_key=key, **options) for key in ("admin", "user"))
        vectors = models.VectorParams(size=2, distance=models.Distance.DOT)
        with self.assertRaises(Exception) as refused:
            user.create_collection(NAME, vectors_config=vectors)
        self.assertEqual(refused.exception.status_code, 403)
        admin.create_collection(NAME, vectors_config=vectors)
        admin.upsert(NAME, [models.PointStruct(id=1, vector=[1.0, 0.0])])
        self.assertEqual([point.id for point in user.query_points(NAME, [1.0, 0.0]).points], [1])
        with self.assertRaises(Exception) as refused:
            user.delete(NAME, [1])
        self.assertEqual(refused.exception.status_code, 403)
