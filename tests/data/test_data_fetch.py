"""Fetching, from a server on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from colonnade import data
from colonnade.data import Download, File, Layout, Source
from colonnade.data.sources import catalogue
from colonnade.data.sources.fetch import fetch_source
from colonnade.errors import DataCorrupt, DataError, DataMissing

Pages = dict[str, bytes]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Pages, str]]:
    """What the server gives by path (`cut` announces more than it sends), and its address."""
    given: Pages = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = given.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            announced = len(content) + (100 if self.path == "/cut" else 0)
            self.send_header("Content-Length", str(announced))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield given, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def source(*downloads: Download, files: tuple[str, ...]) -> Source:
    layout = Layout(tuple(File(path) for path in files), lambda folder, options: None)
    return Source("toy", "a toy", "table", 2, "http://home", "none", (layout,), downloads)


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tarred(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, content)
    return packed.getvalue()


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


def test_plain_files_with_progress(alone: Path, pages: tuple[Pages, str]) -> None:
    given, address = pages
    given |= {"/a": b"first" * 100_000, "/b": b"second"}
    toy = source(
        Download(f"{address}/a", "toy/a.bin", sha256(given["/a"])),
        Download(f"{address}/b", "toy/b.bin"),
        files=("toy/a.bin", "toy/b.bin"),
    )
    seen: list[tuple[str, int, int]] = []
    folder = fetch_source(toy, progress=lambda *step: seen.append(step))
    assert folder == data.cache_folder()
    assert (folder / "toy/a.bin").read_bytes() == given["/a"]
    assert (folder / "toy/b.bin").read_bytes() == b"second"
    assert seen[-1] == (f"{address}/b", 6, 6)
    assert max(done for url, done, _ in seen if url.endswith("/a")) == 500_000
    assert len(leftovers(folder)) == 2
    given["/b"] = b"newer"  # again, over what is there
    fetch_source(toy)
    assert (folder / "toy/b.bin").read_bytes() == b"newer"


@pytest.mark.parametrize("pack", [tarred, zipped])
def test_archives(alone: Path, pages: tuple[Pages, str], pack: object) -> None:
    given, address = pages
    given["/x"] = pack("inner/a.bin", b"content")  # type: ignore[operator]
    md5 = hashlib.md5(given["/x"], usedforsecurity=False).hexdigest()
    toy = source(
        Download(f"{address}/x", "toy", f"md5:{md5}", unpack=True), files=("toy/inner/a.bin",)
    )
    folder = fetch_source(toy, alone)
    assert folder == alone
    assert [path.relative_to(alone).as_posix() for path in leftovers(alone)] == ["toy/inner/a.bin"]


def test_wrong_checksum_leaves_nothing(alone: Path, pages: tuple[Pages, str]) -> None:
    given, address = pages
    given |= {"/a": b"right", "/b": b"tampered with"}
    toy = source(
        Download(f"{address}/a", "a.bin", sha256(b"right")),
        Download(f"{address}/b", "b.bin", sha256(b"expected")),
        files=("a.bin", "b.bin"),
    )
    with pytest.raises(DataCorrupt) as caught:
        fetch_source(toy)
    assert sha256(b"expected") in str(caught.value)
    assert sha256(b"tampered with") in str(caught.value)
    assert leftovers(data.cache_folder()) == []


def test_cut_transfer_leaves_nothing(alone: Path, pages: tuple[Pages, str]) -> None:
    given, address = pages
    given["/cut"] = b"half"
    with pytest.raises(DataMissing, match="could not be fetched"):
        fetch_source(source(Download(f"{address}/cut", "a.bin"), files=("a.bin",)))
    assert leftovers(data.cache_folder()) == []


def test_not_found_says_what_to_place(alone: Path, pages: tuple[Pages, str]) -> None:
    _, address = pages
    with pytest.raises(DataMissing, match=r"404.*Looked for a\.bin in.*http://home"):
        fetch_source(source(Download(f"{address}/none", "a.bin"), files=("a.bin",)))


def test_no_network(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    toy = source(Download(f"http://127.0.0.1:{port}/a", "a.bin"), files=("a.bin",))
    with pytest.raises(DataMissing, match=r"could not be fetched.*place them in"):
        fetch_source(toy)


@pytest.mark.parametrize("name", ["../evil", "/evil", "toy/../../evil"])
def test_archives_cannot_write_elsewhere(alone: Path, pages: tuple[Pages, str], name: str) -> None:
    given, address = pages
    for pack in (tarred, zipped):
        given["/x"] = pack(name, b"evil")
        toy = source(Download(f"{address}/x", "toy", unpack=True), files=("toy/a.bin",))
        with pytest.raises(DataCorrupt):
            fetch_source(toy, alone)
        outside = [path for path in alone.parent.rglob("evil") if alone / "toy" not in path.parents]
        assert outside == []


def test_archive_with_other_files(alone: Path, pages: tuple[Pages, str]) -> None:
    given, address = pages
    given["/x"] = tarred("other.bin", b"content")
    toy = source(Download(f"{address}/x", "toy", unpack=True), files=("toy/a.bin",))
    with pytest.raises(DataCorrupt, match=r"does not hold toy/a\.bin"):
        fetch_source(toy)
    assert leftovers(data.cache_folder()) == []
    given["/x"] = b"no archive"
    with pytest.raises(DataCorrupt):
        fetch_source(toy)


def test_unwritable_folder(alone: Path, pages: tuple[Pages, str]) -> None:
    given, address = pages
    given["/a"] = b"content"
    blocked = alone / "file"
    blocked.write_text("")
    toy = source(Download(f"{address}/a", "a.bin"), files=("a.bin",))
    with pytest.raises(DataError, match="COLONNADE_CACHE"):
        fetch_source(toy, blocked / "below")


def test_fetch_by_name(
    alone: Path, pages: tuple[Pages, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, address = pages
    given["/a"] = b"content"
    toy = source(Download(f"{address}/a", "a.bin"), files=("a.bin",))
    monkeypatch.setattr(catalogue, "SOURCES", (toy,))
    assert data.fetch("toy") == data.cache_folder()
    assert data.available()[0].status == "here"


def test_sets_that_cannot_be_fetched(alone: Path) -> None:
    with pytest.raises(DataError, match="comes with Colonnade"):
        data.fetch("digits")
    with pytest.raises(DataMissing, match=r"KDDTrain\+\.txt"):
        data.fetch("nsl-kdd")
