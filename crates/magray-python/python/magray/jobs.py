"""A corpus in Parquet files as a folder of Parquet files with vectors, or as a Lance dataset, in portions that are each there as a whole
or not at all.

A portion's file has the name of a hash of its keys and is renamed into place, so that one that is computed twice is there once; fragments
of Lance are taken in by the driver, once. A job that is started again computes the keys that the output does not have. Runs portions; who
runs them where is `magray.ray`'s matter.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from magray.batches import Embedder, as_column

_MARK = b"magray.portion"
# Rows that are decoded at once.
_BATCH_ROWS = 16_384


@dataclass(frozen=True)
class Portion:
    """Some rows of a file."""

    file: str
    start: int
    rows: int

    def shown(self) -> dict[str, Any]:
        """As plain fields."""
        return asdict(self)


@dataclass(frozen=True)
class Job:
    """What is embedded, and where to. `inputs` are files or folders of Parquet; `key` names the column that tells rows apart; an
    `output` that ends with `.lance` is a Lance dataset, any other a folder of Parquet files."""

    inputs: tuple[str, ...]
    output: str
    key: str = "id"
    text: str = "text"
    vectors: str = "embedding"
    portion: int = 2048

    @property
    def is_lance(self) -> bool:
        """Whether the output is a Lance dataset."""
        return self.output.rstrip("/").endswith(".lance")

    def plan(self) -> list[Portion]:
        """All portions of the inputs."""
        import pyarrow.parquet

        found = []
        for path in self._files():
            rows = pyarrow.parquet.read_metadata(path).num_rows
            found += [
                Portion(path, start, min(self.portion, rows - start)) for start in range(0, rows, self.portion)
            ]
        return found

    def _files(self) -> list[str]:
        found = []
        for path in self.inputs:
            if os.path.isdir(path):
                names = sorted(name for name in os.listdir(path) if name.endswith(".parquet"))
                found += [os.path.abspath(os.path.join(path, name)) for name in names]
            else:
                found.append(os.path.abspath(path))
        if not found:
            raise ValueError(f"no Parquet file in {', '.join(self.inputs) or 'nothing'}")
        return found

    def done(self) -> tuple[set[Portion], Any]:
        """The portions that are whole, and the keys of all other rows of the output (`None`: there are none)."""
        import pyarrow.parquet

        if self.is_lance:
            from magray import lance

            # A dataset does not say which portions its rows came in.
            return set(), lance.done_keys(self.output, self.key)

        planned, whole = set(self.plan()), set()
        chunks: list[Any] = []
        for path in self.parts():
            file = pyarrow.parquet.ParquetFile(path)
            told = (file.schema_arrow.metadata or {}).get(_MARK)
            portion = Portion(**json.loads(told)) if told else None
            if portion in planned and portion is not None and portion.rows == file.metadata.num_rows:
                whole.add(portion)
            else:
                # What another plan has made (other portions, other files) is known by its keys.
                chunks += file.read([self.key]).column(0).chunks
        return whole, pyarrow.chunked_array(chunks) if chunks else None

    def parts(self) -> list[str]:
        """The files of the output that are whole."""
        if not os.path.isdir(self.output):
            return []
        names = sorted(name for name in os.listdir(self.output) if name.endswith(".parquet"))
        return [os.path.join(self.output, name) for name in names]

    def taker(self) -> Callable[[str], None]:
        """What the one driver of a job does with what `run` tells beside the rows: fragments become part of a dataset."""
        if not self.is_lance:
            return lambda told: None
        from magray import lance

        dataset = lance.Dataset(self.output)
        return lambda told: dataset.take(told) if told else None

    def run(
        self, portion: Portion, done_keys: Any, embedder: Embedder, reader: Reader | None = None
    ) -> tuple[int, str]:
        """Computes a portion but for keys that are done, and writes it; how many rows that were, and what `taker` is told. One `reader`
        serves all portions of a process."""
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet

        table = (reader or Reader()).rows(portion)
        for name in (self.key, self.text):
            if name not in table.column_names:
                raise ValueError(f"{portion.file} has no column '{name}', but {', '.join(table.column_names)}")
        if done_keys is not None:
            is_done = pyarrow.compute.is_in(table.column(self.key), value_set=done_keys)
            table = table.filter(pyarrow.compute.invert(is_done))
        if table.num_rows == 0:
            return 0, ""
        rows = embedder.rows(table.column(self.text).to_pylist())
        table = table.append_column(self.vectors, as_column(rows))
        if self.is_lance:
            from magray import lance

            return int(table.num_rows), lance.written(self.output, table)
        metadata = (table.schema.metadata or {}) | {_MARK: json.dumps(portion.shown()).encode()}
        digest = hashlib.sha256()
        for key in table.column(self.key).to_pylist():
            digest.update(repr(key).encode() + b"\n")
        os.makedirs(self.output, exist_ok=True)
        path = os.path.join(self.output, f"part-{digest.hexdigest()[:32]}.parquet")
        unfinished = f"{path}.{uuid.uuid4().hex}.part"
        try:
            pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), unfinished)
            os.replace(unfinished, path)
        finally:
            if os.path.exists(unfinished):
                os.remove(unfinished)
        return int(table.num_rows), ""


class Reader:
    """Reads portions of Parquet files. Where they come in order, as they mostly do, none of a group of rows is read twice: a group may have
    a million rows, and a portion has few of them."""

    def __init__(self) -> None:
        self._path = ""
        self._schema: Any = None
        self._batches: Iterator[Any] = iter(())
        # What was read last, and the row of the file that it begins with.
        self._batch: Any = None
        self._start = 0

    def rows(self, portion: Portion) -> Any:
        """The rows of a portion; fewer where the file has become shorter."""
        import pyarrow

        if portion.file != self._path or portion.start < self._start:
            self._open(portion)
        parts, next_row, end = [], portion.start, portion.start + portion.rows
        while next_row < end:
            if self._batch is None:
                self._batch = next(self._batches, None)
                if self._batch is None:
                    break
            part = self._batch.slice(next_row - self._start, end - next_row) if next_row < self._end() else None
            if part is not None:
                parts.append(part)
                next_row += part.num_rows
            if next_row >= self._end():
                self._start, self._batch = self._end(), None
        return pyarrow.Table.from_batches(parts, schema=self._schema)

    def _end(self) -> int:
        return self._start + int(self._batch.num_rows)

    def _open(self, portion: Portion) -> None:
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(portion.file)
        groups = [span for span in _spans(file) if span[2] > portion.start]
        self._path, self._schema, self._batch = portion.file, file.schema_arrow, None
        self._start = groups[0][1] if groups else portion.start
        self._batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[at for at, _, _ in groups])


def _spans(file: Any) -> Iterator[tuple[int, int, int]]:
    """By group of rows its first row and the one after its last."""
    start = 0
    for at in range(file.num_row_groups):
        rows = file.metadata.row_group(at).num_rows
        yield at, start, start + rows
        start += rows
