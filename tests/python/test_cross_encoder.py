"""Scores of pairs: their form, their order, their functions."""

import numpy as np
from installed import CLASSIFIER, EMBEDDER, RANKER, SETTINGS, TOLERANCE, Isolated

QUERY, TEXTS = "the river and the cat", ["the cat sat on the river", "a dog", "river"]


class CrossEncoderTest(Isolated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from magray import CrossEncoder

        cls.ranker = CrossEncoder(RANKER, **SETTINGS)
        cls.addClassCleanup(cls.ranker.close)

    def test_one_label_is_a_score_between_0_and_1(self):
        pairs = [(QUERY, text) for text in TEXTS]
        scores = self.ranker.predict(pairs)
        self.assertEqual((scores.shape, scores.dtype), ((3,), np.float32))
        raw = self.ranker.predict(pairs, activation_fn=lambda rows: rows)
        np.testing.assert_allclose(scores, 1 / (1 + np.exp(-raw)), atol=1e-6)
        np.testing.assert_allclose(self.ranker.predict(pairs[1]), scores[1], atol=TOLERANCE)

    def test_the_best_come_first(self):
        scores = self.ranker.predict([(QUERY, text) for text in TEXTS])
        ranked = self.ranker.rank(QUERY, TEXTS, top_k=2, return_documents=True)
        order = np.argsort(-scores, kind="stable")[:2]
        self.assertEqual([one["corpus_id"] for one in ranked], order.tolist())
        self.assertEqual([one["text"] for one in ranked], [TEXTS[at] for at in order])

    def test_several_labels_are_rows(self):
        from magray import CrossEncoder

        model = CrossEncoder(CLASSIFIER, **SETTINGS)
        rows = model.predict([(QUERY, text) for text in TEXTS], apply_softmax=True)
        self.assertEqual(rows.shape, (3, model.num_labels))
        np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-5)
        with self.assertRaisesRegex(ValueError, "one label ranks"):
            model.rank(QUERY, TEXTS)

    def test_mistakes_are_named(self):
        from magray import CrossEncoder

        with self.assertRaisesRegex(ValueError, "two texts, and this one has 3"):
            self.ranker.predict([("a", "b", "c")])
        with self.assertRaisesRegex(ValueError, "does not score"):
            CrossEncoder(EMBEDDER, **SETTINGS)
