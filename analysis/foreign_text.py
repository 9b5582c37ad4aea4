"""Columns of text tables and Parquet files, read row by row into arrays of 8 bytes a number.

Memory grows with the numbers that are kept, not with the text: two columns of a log of 1 GiB, 5.5M rows, raised the
peak by 170 MiB. A torn last line is dropped and noted; a row that cannot be what its header says is refused by line.
"""

import csv
import gzip
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Rows = Iterable[tuple[int, Sequence[Any]]]  # (line or row, its cells)

csv.field_size_limit(2**24)  # a cell of polybeast lists the returns of all episodes; the default is 2**17 characters


def read_text(
    path: Path, numbers: Mapping[str, str], *, keys: Mapping[str, str] | None = None, separator: str = ",",
    fields: Sequence[str] | None = None, skip_lines: int = 0, short_rows: bool = False, notes: list[str],
) -> dict[tuple[str, ...], pd.DataFrame]:  # fmt: skip
    """Per combination of values of `keys` a frame with the columns of `numbers`, both {our name: the file's}.

    The header is the first line after `skip_lines`, unless `fields` gives it. Raises ValueError naming file, line,
    column, what was found and what is allowed.
    """
    keys = keys or {}
    columns = [*keys.values(), *numbers.values()]
    rows = _text_rows(path, columns, separator, fields, skip_lines, short_rows, notes)
    return _collect(path, "line", rows, keys, numbers)


def read_parquet(
    path: Path, numbers: Mapping[str, str], keys: Mapping[str, str]
) -> dict[tuple[str, ...], pd.DataFrame]:
    """As `read_text`, of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: cannot be read as Parquet ({error}); allowed: a Parquet file") from None
    columns = [*keys.values(), *numbers.values()]
    for column in columns:
        position(path, file.schema_arrow.names, column)
    batches = (batch.to_pydict() for batch in file.iter_batches(columns=sorted(set(columns))))
    cells = (row for batch in batches for row in zip(*(batch[column] for column in columns)))
    return _collect(path, "row", enumerate(cells, 1), keys, numbers)


def header(path: Path, separator: str = ",", skip_lines: int = 0) -> list[str]:
    """The names of a text table's columns."""
    lines = whole_lines(path, [])
    for _ in range(skip_lines):
        next(lines, None)
    return next(csv.reader(lines, delimiter=separator), [])


def whole_lines(path: Path, notes: list[str]) -> Iterator[str]:
    """The lines of a text file, gzipped or not, without a last one that does not end."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="\n") as file:
            for line in file:
                if line.endswith("\n"):
                    yield line
                else:
                    notes.append(f"{path}: a torn last line of {len(line)} characters is dropped")
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: cannot be read as gzip ({error}); allowed: the whole file") from None


def position(path: Path, names: Sequence[str], column: str) -> int:
    """Where a column stands. Raises ValueError listing the columns that there are."""
    if column not in names:
        raise ValueError(f"{path}: no column {column!r}; allowed: {', '.join(names) or 'none, the file is empty'}")
    return names.index(column)


def _text_rows(path, columns, separator, fields, skip_lines, short_rows, notes) -> Iterator[tuple[int, list[str]]]:
    lines = whole_lines(path, notes)
    for _ in range(skip_lines):
        next(lines, None)
    reader = csv.reader(lines, delimiter=separator)
    names = list(fields) if fields else next(reader, [])
    places = [position(path, names, column) for column in columns]
    try:
        for cells in reader:
            if not cells or cells == names or cells[0].startswith("# "):  # blank, or the header again
                continue
            if len(cells) != len(names):
                if len(cells) > len(names) or not short_rows:
                    raise ValueError(f"{path}, line {skip_lines + reader.line_num}: {_unequal(cells, names)}")
                cells += [""] * (len(names) - len(cells))
            yield skip_lines + reader.line_num, [cells[place] for place in places]
    except csv.Error as error:
        raise ValueError(f"{path}, line {skip_lines + reader.line_num}: {error}; allowed: a table of text") from None


def _unequal(cells: Sequence[str], names: Sequence[str]) -> str:
    return f"has {len(cells)} cells; allowed: {len(names)}, as its header ({', '.join(names[:3])}, ...)"


def _collect(
    path: Path, place: str, rows: Rows, keys: Mapping[str, str], numbers: Mapping[str, str]
) -> dict[tuple[str, ...], pd.DataFrame]:
    found: dict[tuple[str, ...], list[array]] = {}
    described = list(numbers.items())
    for number, cells in rows:
        key = tuple(str(cell) for cell in cells[: len(keys)])
        if "" in key or "None" in key:
            raise ValueError(f"{path}, {place} {number}: {list(keys.values())[_blank(key)]} is blank; allowed: a value")
        columns = found.setdefault(key, [array("d") for _ in numbers])
        for (name, column), values, cell in zip(described, columns, cells[len(keys) :]):
            try:
                values.append(_value(name, cell))
            except ValueError as error:
                raise ValueError(f"{path}, {place} {number}: {column} is {cell!r}; allowed: {error}") from None
    return {
        key: pd.DataFrame({name: np.frombuffer(values) for name, values in zip(numbers, columns)})
        for key, columns in found.items()
    }


def _blank(key: Sequence[str]) -> int:
    return next(index for index, value in enumerate(key) if value in ("", "None"))


def _value(name: str, cell: Any) -> float:
    """A cell as a number, NaN for a blank one. Raises ValueError with what is allowed."""
    if name == "listed_episodes":  # a cell of returns, as Python writes a tuple: (), (1.0,), (1.0, 2.0)
        return float(sum(bool(part.strip(" ()")) for part in cell.split(","))) if cell else math.nan
    try:
        value = math.nan if cell is None or cell == "" else float(cell)
    except ValueError:
        raise ValueError("a number, or blank where there is none") from None
    if name == "steps" and not 0 <= value < math.inf:
        raise ValueError("a finite number from 0")
    if math.isinf(value):
        raise ValueError("a finite number, NaN, or blank where there is none")
    return value
