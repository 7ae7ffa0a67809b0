"""Renders the chart by helm, as a user would.

Touches no cluster: helm is given no configuration of one.
"""

import os
import subprocess
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "magray"
HELM = os.environ.get("HELM", "helm")


def helm(*words):
    with tempfile.TemporaryDirectory() as home:
        bare = {"PATH": os.environ.get("PATH", ""), "HOME": home, "KUBECONFIG": os.devnull}
        return subprocess.run([HELM, *words], capture_output=True, text=True, env=bare)


def rendered(values, namespace="default"):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        return helm("template", "r", str(CHART), "--namespace", namespace, "--values", file.name)


def documents(values, namespace="default"):
    done = rendered(values, namespace)
    if done.returncode:
        raise AssertionError(done.stderr)
    return [document for document in yaml.safe_load_all(done.stdout) if document]
