"""Schemathesis reads the document of the server and asks every route, rightly and wrongly.

No answer may be a fault of the server, and none may be one that the document does not tell of.
"""

import tempfile
from pathlib import Path

import chat_model
import hypothesis
import schemathesis
from schemathesis import GenerationMode, checks
from served import CHATTER, CLASSIFIER, EMBEDDER, FIXTURES, RANKER, Served, Server

# Of each route, rightly and wrongly; the seed is fixed, so that a failure can be repeated.
EXAMPLES = 25
# How fast the server is, is not asked here, and the machine may have other things to do.
PATIENCE_S = 120
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


class Document(Served):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        model = Path(folder.name, CHATTER)
        # Many requests say nothing about the length of their answers.
        chat_model.write(model, context=512)
        models = [*(FIXTURES / name for name in (EMBEDDER, RANKER, CLASSIFIER)), model]
        cls.server = Server(models=models)
        cls.addClassCleanup(cls.server.stop)
        cls.url = cls.server.url

    def test_every_route_answers_as_the_document_says(self):
        document = schemathesis.openapi.from_url(self.url + "/openapi.json")
        asked = set()
        for operation in (found.ok() for found in document.get_all_operations()):
            with self.subTest(method=operation.method, path=operation.path):
                ask(operation)
            asked.add(operation.path)
        self.assertLessEqual({"/v1/embeddings", "/embed", "/rerank", "/gpu/status", "/metrics", "/mcp", "/v1/chat/completions", "/v1/messages", "/api/chat"}, asked)


def ask(operation):
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @hypothesis.seed(1)
        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            # Without making failures smaller: the first is told.
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def run(case):
            case.validate_response(case.call(), checks=CHECKS)

        try:
            run()
        except hypothesis.errors.Unsatisfiable:
            # A route without parameters cannot be asked wrongly.
            if mode is GenerationMode.POSITIVE:
                raise
