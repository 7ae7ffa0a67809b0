"""A Lance dataset as the output of a job: processes write fragments, the driver alone makes them part of the dataset.

A fragment that was written and not taken in is no part of it. Computes no vectors. Needs `pylance` and `pyarrow`.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import lance
import pyarrow

from magray._magray import MagrayError


def done_keys(path: str, key: str) -> Any:
    """The keys of the rows that the dataset has (`None`: there is none)."""
    found = _opened(path)
    return None if found is None else found.to_table(columns=[key]).column(0)


def written(path: str, table: Any) -> str:
    """Writes rows as fragments beside those of the dataset; what `Dataset.take` makes them part of it by."""
    fragments = lance.fragment.write_fragments(table, path, schema=table.schema)
    schema = base64.b64encode(table.schema.serialize().to_pybytes()).decode()
    return json.dumps({"schema": schema, "fragments": [fragment.to_json() for fragment in fragments]})


class Dataset:
    """A dataset to which this process alone adds."""

    def __init__(self, path: str) -> None:
        self.path = path
        found = _opened(path)
        self.version: int | None = None if found is None else found.version

    def take(self, told: str) -> None:
        """Makes fragments part of the dataset, all of them or none."""
        found = json.loads(told)
        fragments = [lance.FragmentMetadata.from_json(json.dumps(one)) for one in found["fragments"]]
        if self.version is None:
            schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(found["schema"])))
            operation = lance.LanceOperation.Overwrite(schema, fragments)
        else:
            operation = lance.LanceOperation.Append(fragments)
        expected = (self.version or 0) + 1
        made = lance.LanceDataset.commit(self.path, operation, read_version=self.version)
        if made.version != expected:
            raise MagrayError(f"another program writes to {self.path}: run one job on a dataset at a time")
        self.version = made.version


def _opened(path: str) -> Any:
    try:
        return lance.dataset(path)
    except (ValueError, FileNotFoundError) as error:
        if "not found" not in str(error).lower():
            raise
        return None
