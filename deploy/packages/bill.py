"""A bill of materials in CycloneDX 1.5: every crate that is linked into the program, by cargo's own graph.

Leaves out what only tests and build scripts need.
"""

import datetime
import json
import subprocess
import uuid


def write(path, root, target, epoch):
    words = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(subprocess.run(words, cwd=root, check=True, capture_output=True, text=True).stdout)
    path.write_text(json.dumps(document(metadata, "magray", epoch), indent=1) + "\n")
    return path


def document(metadata, program, epoch):
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    [start] = [id for id in metadata["workspace_members"] if packages[id]["name"] == program]
    linked, left = set(), [start]
    while left:
        id = left.pop()
        if id not in linked:
            linked.add(id)
            left += normal(nodes[id])
    reference = lambda id: purl(packages[id])
    ordered = sorted(linked - {start}, key=reference)
    head = component(packages[start], "application")
    made = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    depends = [{"ref": reference(id), "dependsOn": sorted(map(reference, normal(nodes[id])))} for id in [start, *ordered]]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(depends))}",
        "version": 1,
        "metadata": {"timestamp": made, "component": head},
        "components": [component(packages[id], "library") for id in ordered],
        "dependencies": depends,
    }


def normal(node):
    return [dependency["pkg"] for dependency in node["deps"] if any(kind["kind"] is None for kind in dependency["dep_kinds"])]


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, kind):
    made = {"type": kind, "bom-ref": purl(package), "name": package["name"], "version": package["version"], "purl": purl(package)}
    if package.get("license"):
        # Older crates have a slash in place of the word.
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ").replace("  ", " ")}]
    if package.get("repository"):
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made
