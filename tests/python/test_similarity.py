"""What is done with vectors: searched, mined, grouped, made smaller."""

import numpy as np
from installed import Isolated

DRAW = np.random.default_rng(7)


class SimilarityTest(Isolated):
    def test_a_search_in_chunks_is_one_in_whole(self):
        from magray.sentence_transformers import util

        queries, corpus = DRAW.normal(size=(5, 8)), DRAW.normal(size=(90, 8))
        whole = util.semantic_search(queries, corpus, top_k=4)
        ids = [[one["corpus_id"] for one in found] for found in util.semantic_search(queries, corpus, 2, 7, 4)]
        self.assertEqual(ids, [[one["corpus_id"] for one in found] for found in whole])
        scores = util.cos_sim(queries, corpus)
        for row, found in zip(scores, whole):
            self.assertEqual([one["corpus_id"] for one in found], np.argsort(-row)[:4].tolist())

    def test_near_pairs_and_groups_are_found(self):
        from magray.sentence_transformers import util

        centres = np.eye(4)[:3]
        rows = np.concatenate([centre + DRAW.normal(scale=0.01, size=(6, 4)) for centre in centres])
        groups = util.community_detection(rows, threshold=0.9, min_community_size=5)
        self.assertEqual(sorted(map(sorted, groups)), [list(range(at, at + 6)) for at in (0, 6, 12)])
        pairs = util.paraphrase_mining_embeddings(rows, top_k=2)
        self.assertTrue(all(first // 6 == second // 6 for _, first, second in pairs))
        self.assertEqual([score for score, *_ in pairs], sorted((score for score, *_ in pairs), reverse=True))

    def test_functions_agree_with_their_definitions(self):
        from magray.sentence_transformers import util

        a, b = DRAW.normal(size=(3, 5)), DRAW.normal(size=(3, 5))
        np.testing.assert_allclose(util.dot_score(a, b), a @ b.T, atol=1e-5)
        np.testing.assert_allclose(util.pairwise_cos_sim(a, b), np.diag(util.cos_sim(a, b)), atol=1e-6)
        np.testing.assert_allclose(util.pairwise_dot_score(a, b), (a * b).sum(1), atol=1e-5)
        np.testing.assert_allclose(util.euclidean_sim(a, b)[0, 1], -np.linalg.norm(a[0] - b[1]), atol=1e-5)
        np.testing.assert_allclose(util.manhattan_sim(a, b)[0, 1], -abs(a[0] - b[1]).sum(), atol=1e-5)
        np.testing.assert_allclose(util.cos_sim(np.zeros(5), a), 0)
