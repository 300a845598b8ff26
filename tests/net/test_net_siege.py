"""What bounds the connections of a party, and the memory that their threads take."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, re, tempfile, threading

from colonnade.net import siege

if {limited}:
    siege.limit_arenas()
gate = threading.Barrier(21)


def work():
    held = [bytearray(1000) for _ in range(1000)]
    gate.wait(30)
    gate.wait(30)
    del held


threads = [threading.Thread(target=work) for _ in range(20)]
for thread in threads:
    thread.start()
gate.wait(30)
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(len(re.findall(rb"<heap nr", file.read())))
gate.wait(30)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas are glibc's")
def test_threads_share_a_few_arenas() -> None:
    """Without the limit twenty threads that hold memory at once have arenas of their own."""

    def arenas(limited: bool) -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(limited=limited)],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout)

    assert arenas(limited=True) <= 2 < arenas(limited=False)
