#!/usr/bin/env python3
"""Writes schemas/*.json, the schemas of custom resources that the chart makes, from clones of the repositories that have them.

Keeps what validates and leaves out what describes, so that they are small. Refuses a repository that lacks one of them.

    tests/helm/make_schemas.py CRDS_CATALOG INFERENCE_EXTENSION      two clones; needs PyYAML
"""

import json
import subprocess
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
# datreeio/CRDs-catalog, under the MIT licence.
CATALOG = {
    "scaledobject-keda.sh-v1alpha1": "keda.sh/scaledobject_v1alpha1.json",
    "podmonitor-monitoring.coreos.com-v1": "monitoring.coreos.com/podmonitor_v1.json",
    "servingruntime-serving.kserve.io-v1alpha1": "serving.kserve.io/servingruntime_v1alpha1.json",
}
# kubernetes-sigs/gateway-api-inference-extension, under the Apache licence 2.0.
POOL = "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
PROSE = {"description", "title", "example", "default", "x-kubernetes-validations"}


def main(catalog, extension):
    for name, path in CATALOG.items():
        write(name, json.loads(shown(catalog, path)))
    [version] = [version for version in yaml.safe_load(shown(extension, POOL))["spec"]["versions"] if version["name"] == "v1"]
    write("inferencepool-inference.networking.k8s.io-v1", closed(version["schema"]["openAPIV3Schema"]))


def shown(repository, path):
    return subprocess.run(["git", "-C", repository, "show", f"HEAD:{path}"], check=True, capture_output=True, text=True).stdout


def write(name, schema):
    (HERE / "schemas" / f"{name}.json").write_text(json.dumps(bare(schema), separators=(",", ":"), sort_keys=True) + "\n")


def bare(schema, are_names=False):
    """Without prose; a field may be called `description`, though."""
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: part for key, part in schema.items() if are_names or key not in PROSE}
    kept.pop("status", None) if are_names else None
    return {key: bare(part, are_names=key == "properties" and not are_names) for key, part in kept.items()}


def closed(schema):
    """With unknown fields refused, as the catalog has it."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made


if __name__ == "__main__":
    main(*sys.argv[1:])
