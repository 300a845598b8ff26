"""Finds the files of data sets, verifies their checksums, and reports damaged ones."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import lzma
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from colonnade.data.sources.source import Layout, Source
from colonnade.errors import DataCorrupt, DataError, DataMissing

_STAMPS = "verified.json"
_BLOCK = 1 << 20


def cache_folder() -> Path:
    """Where Colonnade keeps what it fetched and decoded."""
    if chosen := os.environ.get("COLONNADE_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "colonnade"


def search_path(root: Path | None = None) -> list[Path]:
    """The folders in which a set is looked for, in this order."""
    folders = [] if root is None else [Path(root).expanduser()]
    if named := os.environ.get("COLONNADE_DATA"):
        folders.append(Path(named).expanduser())
    return list(dict.fromkeys([*folders, cache_folder()]))


def find(source: Source, root: Path | None = None) -> tuple[Layout, Path] | None:
    """The first complete layout of a set, and the folder its paths start from."""
    for folder in search_path(root):
        if located := find_below(source, folder):
            return located
    return None


def find_below(source: Source, folder: Path) -> tuple[Layout, Path] | None:
    for start in (folder, folder / source.name):
        for layout in source.layouts:
            if all(_exists(start / file.path) for file in layout.files):
                return layout, start
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # below a folder that we may not enter
        return False


def missing(source: Source, root: Path | None = None) -> DataMissing:
    """The error that reports what was looked for, where, and what to do."""
    forms = [", ".join(file.path for file in layout.files) for layout in source.layouts]
    folders = ", ".join(str(folder) for folder in search_path(root))
    ways = ["set COLONNADE_DATA to the folder that has these files"]
    if source.downloads:
        ways.append(f"run `colonnade data fetch {source.name}`")
    hint = f" ({source.by_hand})" if source.by_hand else ""
    ways.append(f"place them in {cache_folder()}, from {source.homepage}{hint}")
    return DataMissing(
        f"the data set '{source.name}' is not on this machine. Looked for {'; or '.join(forms)} "
        f"in {folders}. Either {', or '.join(ways)}."
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a broken file makes its decoder raise into DataCorrupt with the file's name."""
    try:
        yield
    except PermissionError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}. Check who may read it."
        ) from error
    except (
        OSError,  # bad gzip, HDF5 and PNG files among others
        EOFError,
        ValueError,
        KeyError,
        IndexError,
        SyntaxError,  # Pillow, on a broken PNG chunk
        TypeError,  # HDF5 and NumPy files with a group where an array belongs, or the reverse
        AttributeError,
        csv.Error,
        zlib.error,
        lzma.LZMAError,
        zipfile.BadZipFile,
        tarfile.TarError,
    ) as error:
        raise corrupt(path, str(error) or type(error).__name__) from error


def corrupt(path: Path, why: str) -> DataCorrupt:
    return DataCorrupt(
        f"{path} is not what it should be: {why}. Delete it and fetch or place a fresh copy."
    )


def contents(path: Path) -> bytes:
    """A whole file, unpacked if its name ends in .gz or .xz."""
    with reading(path):
        if path.suffix == ".gz":
            return gzip.decompress(path.read_bytes())
        if path.suffix == ".xz":
            return lzma.decompress(path.read_bytes())
        return path.read_bytes()


def compute_digest(path: Path, algorithm: str) -> str:
    """`algorithm:hex` of a file; of the names and sizes below it for a folder."""
    if path.is_dir():
        return _folder_digest(path)
    hasher = hashlib.new(algorithm.removeprefix("gunzip-"))
    unpack = algorithm.startswith("gunzip-")
    with reading(path), gzip.open(path) if unpack else path.open("rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
    return f"{algorithm}:{hasher.hexdigest()}"


def _folder_digest(folder: Path) -> str:
    # 90 000 images are too many to read just for a digest: size and time stand for the content.
    hasher = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        stat = path.stat()
        entry = f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}\n"
        hasher.update(entry.encode())
    return f"names:{hasher.hexdigest()}"


def known_digest(path: Path, algorithm: str) -> str:
    """`compute_digest`, cached by size and modification time."""
    if path.is_dir():
        return compute_digest(path, algorithm)
    stat = path.stat()
    entry = f"{path.resolve()} {algorithm}"
    stamp = [stat.st_size, stat.st_mtime_ns]
    recorded = _read_stamps().get(entry)
    if recorded and recorded[:2] == stamp and isinstance(recorded[2], str):
        return recorded[2]
    digest = compute_digest(path, algorithm)
    # Read again, because another party's process may have added its own in the meantime.
    stamps = _read_stamps() | {entry: [*stamp, digest]}
    with suppress(OSError):  # a read-only cache only costs time
        write_atomically(cache_folder() / _STAMPS, json.dumps(stamps, indent=0).encode())
    return digest


def _read_stamps() -> dict[str, list[int | str]]:
    try:
        stamps = json.loads((cache_folder() / _STAMPS).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(stamps, dict):
        return {}
    return {k: v for k, v in stamps.items() if isinstance(v, list) and len(v) == 3}


def write_atomically(path: Path, content: bytes) -> None:
    """All of it or nothing, also when several processes write the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as file:
        temporary = Path(file.name)
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def verify(source: Source, layout: Layout, folder: Path) -> list[str]:
    """The digests of a layout's files, each compared with the published one where there is one."""
    found = []
    for file in layout.files:
        path = folder / file.path
        if not file.digest and not source.cached:
            continue
        digest = known_digest(path, file.digest.partition(":")[0] or "sha256")
        if file.digest and digest != file.digest:
            raise wrong_digest(source, path, file.digest, digest)
        found.append(digest)
    return found


def wrong_digest(source: Source, path: Path, expected: str, found: str) -> DataCorrupt:
    again = f"`colonnade data fetch {source.name}`" if source.downloads else "placing it again"
    return DataCorrupt(
        f"{path} of the data set '{source.name}' has the checksum {found}, not the published "
        f"{expected}: it is damaged or another version. Delete it and get it again by {again}."
    )
