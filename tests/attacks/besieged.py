"""A party that listens with few descriptors to spare, and says what it logs.

python besieged.py FOLDER ADDRESS DESCRIPTORS
"""

import resource
import sys
from pathlib import Path

from colonnade.net.keys import Keys
from colonnade.net.mesh import Mesh


def main(folder: str, address: str, descriptors: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), int(descriptors)))
    mesh = Mesh(
        "bank",
        Keys.of(Path(folder) / "bank", "bank"),
        hub="bank",
        listen=address,
        dial={},
        accept=frozenset({"shop", "telco"}),
        relayed=frozenset(),
        agreed={},
        log=say,
    )
    mesh.start()
    say("ready")
    sys.stdin.read()
    mesh.close(0.1)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
