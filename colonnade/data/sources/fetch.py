"""Fetches a set from its official address and verifies it, and keeps nothing of a failed fetch."""

from __future__ import annotations

import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

from colonnade.data.sources.files import cache_folder, compute_digest, find_below, missing, reading
from colonnade.data.sources.source import Download, Source
from colonnade.errors import DataCorrupt, DataError, DataMissing

Progress = Callable[[str, int, int], None]  # address, bytes so far, bytes in all (0: unknown)
_BLOCK = 1 << 18
_TIMEOUT = 30.0  # seconds without a byte


def fetch_source(
    source: Source, folder: Path | None = None, progress: Progress | None = None
) -> Path:
    """Fetch a set and return its folder: the cache folder unless another is given."""
    target = cache_folder() if folder is None else Path(folder)
    if source.embedded:
        raise DataError(
            f"'{source.name}' comes with Colonnade: there is nothing to fetch. Load it."
        )
    if not source.downloads:
        raise missing(source, folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=".fetch-") as name:
            staged = Path(name) / "staged"
            for number, download in enumerate(source.downloads):
                _stage(source, download, Path(name) / str(number), staged, progress)
            if find_below(source, staged) is None:
                raise DataCorrupt(
                    f"the file from {source.downloads[0].url} does not hold "
                    f"{', '.join(file.path for file in source.layouts[-1].files)}. Nothing was "
                    f"kept. Place the files by hand in {target}, from {source.homepage}."
                )
            # Nothing moves to its place before everything is here and verified.
            _merge(staged, target)
    except OSError as error:
        raise DataError(
            f"'{source.name}' could not be written to {target}: {error}. "
            "Make room there, or set COLONNADE_CACHE to another folder."
        ) from error
    return target


def _stage(
    source: Source, download: Download, part: Path, staged: Path, progress: Progress | None
) -> None:
    _transfer(source, download.url, part, progress)
    if download.digest:
        found = compute_digest(part, download.digest.partition(":")[0])
        if found != download.digest:
            raise DataCorrupt(
                f"{download.url} sent a file with the checksum {found}, not the published "
                f"{download.digest}. Nothing was kept. Try again later, or get the files of "
                f"'{source.name}' from {source.homepage}."
            )
    destination = staged / download.to
    if download.unpack:
        destination.mkdir(parents=True, exist_ok=True)
        with reading(part):
            _unpack(part, destination)
        part.unlink()
    else:
        destination.parent.mkdir(parents=True, exist_ok=True)
        part.replace(destination)


def _transfer(source: Source, url: str, part: Path, progress: Progress | None) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "colonnade"})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise _unreachable(source, url, error) from error
    with response, part.open("wb") as file:
        total = int(response.headers.get("Content-Length") or 0)
        done = 0
        while block := _block(source, url, response):
            file.write(block)
            done += len(block)
            if progress is not None:
                progress(url, done, total)
    if done < total:
        raise _unreachable(source, url, f"the connection ended after {done} of {total} bytes")


def _block(source: Source, url: str, response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_BLOCK)
    except (http.client.HTTPException, OSError) as error:
        raise _unreachable(source, url, error) from error


def _unreachable(source: Source, url: str, error: object) -> DataMissing:
    return DataMissing(f"{url} could not be fetched: {error}. Without it, {missing(source)}")


def _unpack(archive: Path, destination: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(destination)  # drops "..", drives and leading slashes by itself
    else:
        with tarfile.open(archive) as tarred:  # Python 3.11 has no filter before 3.11.4
            for member in tarred:
                place = (destination / member.name).resolve()
                if not member.isfile() or not place.is_relative_to(destination.resolve()):
                    continue  # files alone, and none of them elsewhere
                place.parent.mkdir(parents=True, exist_ok=True)
                source = tarred.extractfile(member)
                assert source is not None
                with source, place.open("wb") as target:
                    shutil.copyfileobj(source, target)


def _merge(staged: Path, target: Path) -> None:
    for path in sorted(staged.rglob("*")):
        place = target / path.relative_to(staged)
        if path.is_dir() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)  # the whole folder in one step
        elif path.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
