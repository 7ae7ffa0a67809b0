"""The Helm chart: many sets of values against the schemas of Kubernetes and of custom resources, and what its output promises.

Asks no cluster.
"""

import json
import re
import tomllib
import unittest
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml
from chart import CHART, ROOT, documents, helm, rendered

SCHEMAS = Path(__file__).resolve().parent / "schemas"
# The least that the chart asks for, and the newest that is known.
VERSIONS = ("1.29", "1.37")
KEYS = {"existingSecret": "magray-keys"}
GPU_ALONE = {"cpu": {"enabled": False}, "gpu": {"enabled": True}}
SETS = {
    "defaults": {},
    "two pools": {"pools": {"gpu": {"enabled": True, "replicas": 3, "nodeSelector": {"gpu": "h200"}}}},
    "gpu alone, two each": {"pools": GPU_ALONE | {"gpu": {"enabled": True, "gpus": 2, "device": "require-gpu"}}},
    "keys, tls, hub token": {"auth": KEYS, "tls": {"existingSecret": "magray-tls"}, "hubToken": {"existingSecret": "hub"}},
    "administrators' keys alone": {"auth": KEYS | {"apiKeys": ""}},
    "claim for the cache": {"cache": {"kind": "claim", "size": "50Gi", "storageClass": "fast", "accessModes": ["ReadWriteMany"]}},
    "claim that is there": {"cache": {"kind": "existingClaim", "existingClaim": "models"}, "pullModels": False},
    "collections": {"collections": {"enabled": True, "storageClass": "fast"}, "pools": {"cpu": {"replicas": 1}}},
    "keda": {"autoscaling": {"kind": "keda", "keda": {"authenticationRef": "prometheus"}}},
    "keda from zero, gpu": {"pools": GPU_ALONE, "autoscaling": {"kind": "keda", "minReplicas": 0, "maxReplicas": 4}},
    "hpa": {"autoscaling": {"kind": "hpa"}, "pools": {"gpu": {"enabled": True}}},
    "pools that scale apart": {
        "pools": {"cpu": {"autoscaling": {"kind": "hpa", "maxReplicas": 30}}, "gpu": {"enabled": True, "autoscaling": {"kind": "keda", "minReplicas": 1}}}
    },
    "monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "monitoring with keys and tls": {
        "auth": KEYS,
        "tls": {"existingSecret": "magray-tls"},
        "podMonitor": {"enabled": True, "bearerTokenSecret": "magray-scrape"},
    },
    "inference pool": {"inferencePool": {"enabled": True, "endpointPicker": {"failureMode": "FailClose"}}},
    "kserve alone": {"kserve": {"enabled": True, "gpus": 1}, "pools": {"cpu": {"enabled": False}}, "imagePullSecrets": [{"name": "registry"}]},
    "kserve for the cluster": {"kserve": {"enabled": True, "kind": "ClusterServingRuntime"}},
    "a third pool": {
        "pools": {
            "ranker": {
                "enabled": True, "device": "cpu", "replicas": 1, "gpus": 0, "resources": {}, "models": ["my/ranker"],
                "settings": {"embed": {"precision": "bf16"}}, "autoscaling": {},
            }
        }
    },
    "everything else": {
        "image": {"digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "fullnameOverride": "embedder",
        "models": ["all-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5"],
        "aliases": {"text-embedding-3-small": "all-MiniLM-L6-v2"},
        "settings": {"embed": {"precision": "bf16"}, "server": {"texts_max": 512}},
        "allowedHosts": ["embed.example.com"],
        "service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}},
        "networkPolicy": {
            "from": [{"podSelector": {"matchLabels": {"app": "web"}}}],
            "monitoringFrom": [],
            "allowHub": False,
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
        },
        "podDisruptionBudget": {"maxUnavailable": "25%"},
        "serviceAccount": {"create": False, "name": "own"},
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "search"},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "topologySpread": False,
        "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}],
    },
}
# What is refused, and what the message says.
REFUSED = [
    ({"imge": {}}, "'imge' not allowed"),
    ({"image": {"digest": "latest"}}, "/image/digest"),
    ({"models": []}, "/models"),
    ({"drain": {"delaySeconds": -1}}, "/drain/delaySeconds"),
    ({"service": {"port": 70000}}, "/service/port"),
    ({"cache": {"size": "ten"}}, "/cache/size"),
    ({"pools": {"cpu": {"device": "tpu"}}}, "/pools/cpu/device"),
    ({"autoscaling": {"kind": "cpu"}}, "'none', 'keda', 'hpa'"),
    ({"autoscaling": {"busyRatio": 1.5}}, "/autoscaling/busyRatio"),
    ({"pools": {"cpu": {"enabled": False}}}, "there is nothing to run: enable a pool"),
    ({"pools": {"cpu": {"gpus": 1}}}, "pools.cpu asks for 1 GPUs and computes on the cpu"),
    ({"pools": GPU_ALONE | {"gpu": {"enabled": True, "device": "require-gpu", "gpus": 0}}}, "requires a GPU and asks for none"),
    ({"collections": {"enabled": True}}, "set pools.cpu.replicas to 1"),
    ({"collections": {"enabled": True}, "pools": {"gpu": {"enabled": True}}}, "enable one pool alone"),
    ({"cache": {"kind": "existingClaim"}}, "cache.existingClaim names none"),
    ({"autoscaling": {"minReplicas": 5, "maxReplicas": 2}}, "maxReplicas (2) is less than minReplicas (5)"),
    ({"auth": KEYS, "podMonitor": {"enabled": True}}, "podMonitor.bearerTokenSecret"),
    ({"auth": KEYS, "inferencePool": {"enabled": True}}, "the endpoint picker reads /metrics without a key"),
    ({"auth": KEYS | {"apiKeys": "", "adminKeys": ""}}, "neither auth.apiKeys nor auth.adminKeys"),
]


def custom_schema(document):
    group, version = document["apiVersion"].split("/")
    kind = document["kind"].lower().removeprefix("cluster") if group == "serving.kserve.io" else document["kind"].lower()
    return json.loads((SCHEMAS / f"{kind}-{group}-{version}.json").read_text())


def containers(document):
    pod = document["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def workloads(rendered_documents):
    return [document for document in rendered_documents if document["kind"] in ("Deployment", "StatefulSet")]


class Chart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.sets = {name: documents(values, "prod") for name, values in SETS.items()}

    def test_every_set_is_valid(self):
        self.assertGreaterEqual(len(self.sets), 12)
        for name, rendered_documents in self.sets.items():
            for document in rendered_documents:
                with self.subTest(name, kind=document["kind"]):
                    if "." in document["apiVersion"] and not document["apiVersion"].split("/")[0].endswith(".k8s.io") or document["kind"] == "InferencePool":
                        jsonschema.validate(document, custom_schema(document))
                        continue
                    for version in VERSIONS:
                        kubernetes_validate.validate(document, version, strict=True)

    def test_every_kind_is_made_by_some_set(self):
        made = {document["kind"] for rendered_documents in self.sets.values() for document in rendered_documents}
        self.assertEqual(
            made,
            {
                "ClusterServingRuntime", "ConfigMap", "Deployment", "HorizontalPodAutoscaler", "InferencePool", "NetworkPolicy",
                "PersistentVolumeClaim", "PodDisruptionBudget", "PodMonitor", "ScaledObject", "Service", "ServiceAccount",
                "ServingRuntime", "StatefulSet",
            },
        )

    def test_wrong_values_are_refused_with_a_sentence(self):
        for values, said in REFUSED:
            with self.subTest(said):
                done = rendered(values)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(said, done.stderr)

    def test_the_schemas_refuse_what_is_wrong(self):
        [scaled] = [document for document in self.sets["keda"] if document["kind"] == "ScaledObject"]
        with self.assertRaises(jsonschema.ValidationError):
            jsonschema.validate(scaled | {"spec": scaled["spec"] | {"minReplicas": 1}}, custom_schema(scaled))
        [service] = [document for document in self.sets["defaults"] if document["kind"] == "Service"]
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(service | {"spec": service["spec"] | {"ports": 80}}, VERSIONS[0], strict=True)

    def test_no_container_has_rights_it_does_not_need(self):
        for name, rendered_documents in self.sets.items():
            for document in workloads(rendered_documents):
                pod = document["spec"]["template"]["spec"]
                with self.subTest(name):
                    self.assertTrue(pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"])
                    self.assertIs(pod["automountServiceAccountToken"], False)
                    for container in containers(document):
                        security = container["securityContext"]
                        self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
                        self.assertIs(security["readOnlyRootFilesystem"], True)
                        self.assertIs(security["allowPrivilegeEscalation"], False)

    def test_a_pod_has_the_time_that_its_server_takes_to_stop(self):
        for name, rendered_documents in self.sets.items():
            settings = {document["metadata"]["name"]: document for document in rendered_documents if document["kind"] == "ConfigMap"}
            for document in workloads(rendered_documents):
                server = tomllib.loads(settings[document["metadata"]["name"]]["data"]["magray.toml"])["server"]
                grace = document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
                with self.subTest(name):
                    self.assertGreater(grace, server["drain_delay_s"] + server["drain_timeout_s"])
                    # Twice the time between two readiness probes that fail is less.
                    probe = containers(document)[-1]["readinessProbe"]
                    self.assertGreaterEqual(server["drain_delay_s"], probe["periodSeconds"] * probe["failureThreshold"])

    def test_every_setting_that_the_chart_writes_is_known(self):
        known = set(re.findall(r"^\| `([a-z_.0-9]+)` \|", (ROOT / "docs" / "configuration.md").read_text(), re.M))
        for rendered_documents in self.sets.values():
            for document in rendered_documents:
                if document["kind"] == "ConfigMap":
                    self.assertLessEqual(set(keys(tomllib.loads(document["data"]["magray.toml"]))), known)

    def test_services_and_budgets_choose_the_pods_that_there_are(self):
        for name, rendered_documents in self.sets.items():
            pods = [document["spec"]["template"]["metadata"]["labels"] for document in workloads(rendered_documents)]
            for document in rendered_documents:
                selector = {
                    "Service": lambda spec: spec["selector"],
                    "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
                    "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
                    "PodMonitor": lambda spec: spec["selector"]["matchLabels"],
                    "InferencePool": lambda spec: spec["selector"]["matchLabels"],
                }.get(document["kind"])
                if selector:
                    with self.subTest(name, kind=document["kind"]):
                        self.assertTrue(any(selector(document["spec"]).items() <= labels.items() for labels in pods))

    def test_keys_come_from_secrets_alone(self):
        text = json.dumps(self.sets["keys, tls, hub token"])
        self.assertIn("secretKeyRef", text)
        self.assertIn('"secretName": "magray-keys"', text)
        self.assertNotIn('"kind": "Secret"', text)

    def test_what_scales_has_no_fixed_number(self):
        for name in ("keda", "hpa"):
            for document in workloads(self.sets[name]):
                self.assertNotIn("replicas", document["spec"])
        for document in workloads(self.sets["defaults"]):
            self.assertEqual(document["spec"]["replicas"], 2)

    def test_gpus_are_asked_for_where_they_compute(self):
        [gpu] = workloads(self.sets["gpu alone, two each"])
        pull, server = containers(gpu)
        self.assertEqual(server["resources"]["limits"]["nvidia.com/gpu"], 2)
        self.assertNotIn("nvidia.com/gpu", pull["resources"]["limits"])

    def test_metrics_that_scale_are_those_of_the_server(self):
        source = "".join(file.read_text() for file in (ROOT / "crates/magray/src/server/metrics").glob("*.rs"))
        named = set(re.findall(r"\b(?:magray|vllm)[_:][a-z_]+", "".join(file.read_text() for file in CHART.glob("templates/*.yaml"))))
        adapter = yaml.safe_load((ROOT / "deploy/prometheus/adapter.yml").read_text())
        made = {rule["name"].get("as", "") for rule in adapter["rules"]}
        self.assertGreater(len(named), 3)
        self.assertEqual({name for name in named - made if f'"{name}"' not in source}, set())

    def test_helm_finds_nothing_to_say(self):
        done = helm("lint", "--strict", str(CHART))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


def keys(tree, before=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from keys(value, f"{before}{key}.")
        else:
            yield before + key
