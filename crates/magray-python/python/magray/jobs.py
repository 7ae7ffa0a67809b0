"""A corpus in Parquet files as a folder of Parquet files with vectors, or as a Lance dataset, in portions that are each there as a whole
or not at all.

A portion's file has the name of a hash of its keys and is renamed into place, so that one that is computed twice is there once; fragments
of Lance are taken in by the driver, once. A job that is started again computes the keys that the output does not have: it removes no row,
also where the input has lost its key or changed its text. Runs portions; who runs them where is `magray.ray`'s matter.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from magray.batches import Embedder, as_column

_MARK = b"magray.portion"
# Rows that are decoded at once.
_BATCH_ROWS = 16_384
# What reads a folder of Parquet leaves out names that begin with a dot. Those without it are of earlier versions.
_UNFINISHED = re.compile(r"\.?part-[0-9a-f]{32}\.parquet\.[0-9a-f]{32}\.part")
# A process of a node that was lost sight of may still write; none writes a file for so long.
_UNFINISHED_S_MAX = 24 * 3600


@dataclass(frozen=True)
class Portion:
    """Some rows of a file; `source` is what tells the file from another one that was later written to its place."""

    file: str
    start: int
    rows: int
    source: str = ""

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
            source = f"{_content(path)}-{os.stat(path).st_mtime_ns}"
            rows = pyarrow.parquet.read_metadata(path).num_rows
            starts = range(0, rows, self.portion)
            found += [Portion(path, start, min(self.portion, rows - start), source) for start in starts]
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

    def done(self, planned: Iterable[Portion]) -> tuple[set[Portion], Any]:
        """The portions of these that are whole, and the keys of all other rows of the output (`None`: there are none)."""
        import pyarrow.parquet

        if self.is_lance:
            from magray import lance

            # A dataset does not say which portions its rows came in.
            return set(), lance.done_keys(self.output, self.key)

        wanted, whole = set(planned), set()
        chunks: list[Any] = []
        for path in self.parts():
            file = pyarrow.parquet.ParquetFile(path)
            portion = _marked(file)
            if portion in wanted and portion is not None and portion.rows == file.metadata.num_rows:
                whole.add(portion)
            else:
                # What another plan has made (other portions, other files, another content of a file) is known by its keys.
                chunks += file.read([self.key]).column(0).chunks
        return whole, pyarrow.chunked_array(chunks) if chunks else None

    def parts(self) -> list[str]:
        """The files of the output that are whole."""
        if not os.path.isdir(self.output):
            return []
        names = sorted(name for name in os.listdir(self.output) if name.endswith(".parquet"))
        return [os.path.join(self.output, name) for name in names]

    def remove_unfinished(self) -> None:
        """Removes files that were begun and left, when the driver of a job starts."""
        if self.is_lance or not os.path.isdir(self.output):
            return
        for entry in os.scandir(self.output):
            with suppress(FileNotFoundError):
                if _UNFINISHED.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > _UNFINISHED_S_MAX:
                    os.remove(entry.path)

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
        name = f"part-{digest.hexdigest()[:32]}.parquet"
        unfinished = os.path.join(self.output, f".{name}.{uuid.uuid4().hex}.part")
        try:
            pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), unfinished)
            _sync(unfinished)
            os.replace(unfinished, os.path.join(self.output, name))
        finally:
            with suppress(FileNotFoundError):
                os.remove(unfinished)
        _sync(self.output)
        return int(table.num_rows), ""


class Reader:
    """Reads portions of Parquet files. Where they come in order, as they mostly do, none of a group of rows is read twice, and groups without
    rows that are asked for are not read: a group may have a million rows or few, and other processes read the portions between."""

    def __init__(self) -> None:
        self._opened: tuple[str, str] | None = None
        self._file: Any = None
        # By group of rows its first row and the one after its last.
        self._groups: list[range] = []
        # The group that is being read, what was read of it last, and the row of the file that this begins with.
        self._group = range(0)
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._start = 0

    def rows(self, portion: Portion) -> Any:
        """The rows of a portion; fewer where the file has fewer."""
        try:
            return self._rows(portion)
        except BaseException:
            # A read that failed has no further batch, as one that reached its end: the next call begins anew.
            self._opened = None
            raise

    def _rows(self, portion: Portion) -> Any:
        import pyarrow

        if (portion.file, portion.source) != self._opened:
            self._open(portion)
        row, end = portion.start, min(portion.start + portion.rows, self._groups[-1].stop if self._groups else 0)
        parts = []
        while row < end:
            if row not in self._group or row < self._start:
                self._begin_group(row)
            while row >= self._start + self._batch.num_rows:
                self._start += self._batch.num_rows
                self._batch = next(self._batches)
            parts.append(self._batch.slice(row - self._start, end - row))
            row += parts[-1].num_rows
        return pyarrow.Table.from_batches(parts, schema=self._file.schema_arrow)

    def _open(self, portion: Portion) -> None:
        import pyarrow.parquet

        if portion.source and not portion.source.startswith(_content(portion.file)):
            raise ValueError(f"{portion.file} was changed while a job reads it: start the job again")
        self._file, self._groups, self._group = pyarrow.parquet.ParquetFile(portion.file), [], range(0)
        for at in range(self._file.num_row_groups):
            start = self._groups[-1].stop if self._groups else 0
            self._groups.append(range(start, start + self._file.metadata.row_group(at).num_rows))
        self._opened = portion.file, portion.source

    def _begin_group(self, row: int) -> None:
        [at] = [at for at, rows in enumerate(self._groups) if row in rows]
        self._group = self._groups[at]
        self._batches = self._file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[at])
        self._start, self._batch = self._group.start, next(self._batches)


def _content(path: str) -> str:
    """What tells the content of a Parquet file: a digest of its footer, which has the sizes, the places and mostly the extremes of all
    columns, and of its size."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        # The length of the footer, and four letters.
        footer = int.from_bytes(file.read(4), "little") + 8
        file.seek(max(size - footer, 0))
        return hashlib.sha256(b"%d %b" % (size, file.read())).hexdigest()[:32]


def _marked(file: Any) -> Portion | None:
    """What a file of the output was made of; `None`: it does not say so, or as another version does."""
    told = (file.schema_arrow.metadata or {}).get(_MARK)
    try:
        return Portion(**json.loads(told)) if told else None
    except (TypeError, ValueError):
        return None


def _sync(path: str) -> None:
    """Waits until a file, or the names of a folder, will survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems of networks have no such thing for folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)
