"""What the process runtime costs against an earlier commit: CPU time and rate of `net.py rate`.

    python benchmarks/speed/against.py [COMMIT] [--sittings 6] [--blocks 40] [--steps 50]
                                       [--out FILE]

COMMIT  5374036 if none is given, the last one before the checks of messages, journals of steps and
        seals; HEAD shows how far the measurement itself can be trusted: the ratio should be 1

The commit is checked out beside the working tree (git worktree). Of both, a federation of four
parties starts, and exchanges the messages of echo.py: 64 KiB embeddings, no model work. Both are up
at the same time, and only one works: they take turns, a block of some 0.2 s each, now one first and
now the other, so that other load meets both alike. Each pair of blocks gives a ratio of the CPU
seconds (user and system) of all parties, and one of wall time. Processes started again may be
faster or slower for all their life, so there are several sittings.

What is printed: the median over sittings of the median ratio of pairs, with a 95 % interval
(bootstrap: sittings are drawn, then the pairs of each). How runs start and end is not measured.
Both sides run turns.py as it is here, with the Kinds of their own echo.py.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from net import NAMES
from numpy.typing import NDArray

from colonnade.results.environment import commit

HERE = Path(__file__).resolve().parent
BEFORE = "5374036"
MESSAGES = 4 * (len(NAMES) - 1)  # of a step
MEGABYTES = 2 * (len(NAMES) - 1) * 4 * 128 * (128 + 10) / 1e6  # of a step
WARM = 2  # first pairs of a sitting, which do not count
DRAWS = 10_000
SECONDS = 120  # that a federation may take to start, or to do a block
Times = NDArray[np.float64]  # (sittings, blocks)


class Federation:
    """A run of the benchmark with the package of one tree."""

    def __init__(self, tree: Path, place: Path, blocks: int, steps: int) -> None:
        place.mkdir()
        self.place, self.tree = place, tree
        for name in ("go", "done"):
            os.mkfifo(place / name)
        self._go, self._done = (os.open(place / name, os.O_RDWR) for name in ("go", "done"))
        self._said = (place / "said.txt").open("wb")
        told = [str(tree), str(place), str(blocks), str(steps)]
        # Its own echo.py: a Kind is not declared the same way in every commit.
        paths = os.pathsep.join(map(str, (tree, tree / "benchmarks" / "speed")))
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "against.py"), "--play", *told],
            env=os.environ | {"PYTHONPATH": paths, "OMP_WAIT_POLICY": "PASSIVE"},
            cwd=place,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )

    def begin(self) -> None:
        os.write(self._go, b".")

    def wait(self) -> None:
        """Until it is ready, or has done a block."""
        until = time.monotonic() + SECONDS
        while not select.select([self._done], [], [], 0.5)[0]:
            if self._process.poll() is not None or time.monotonic() > until:
                self._fail()
        os.read(self._done, 1)

    def times(self) -> tuple[Times, Times]:
        """CPU seconds of all parties, and wall seconds, of each block."""
        if self._process.wait(SECONDS):
            self._fail()
        told = {name: json.loads((self.place / f"{name}.json").read_text()) for name in NAMES}
        cpu = np.sum([told[name]["cpu"] for name in NAMES], axis=0)
        return cpu, np.array(next(one["wall"] for one in told.values() if "wall" in one))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(SECONDS)
        for pipe in (self._go, self._done):
            os.close(pipe)
        self._said.close()

    def _fail(self) -> None:
        said = (self.place / "said.txt").read_text(errors="replace")[-3000:]
        sys.exit(f"{said}\nThe benchmark does not run, or takes too long, with {self.tree}")


def play(tree: str, folder: str, blocks: str, steps: str) -> None:
    """In a process of its own: one federation."""
    import colonnade  # that of the tree

    if Path(tree).resolve() not in Path(colonnade.__file__).resolve().parents:
        sys.exit(f"{colonnade.__file__} is not of {tree}")
    settings = {
        "method": str(HERE / "turns.py"),
        "epochs": 1,
        "evaluate_every": 0,
        "data": {"name": "digits"},
        "partition": {"kind": "columns", "parties": len(NAMES)},
        "parties": {name: {} for name in NAMES},
        "checkpoint": {"epochs": 0},
        "turns": {"folder": folder, "blocks": int(blocks), "steps": int(steps)},
    }
    colonnade.run(settings, out=Path(folder) / "run", runtime="process")


@contextmanager
def checked_out(name: str, place: Path) -> Iterator[Path]:
    """The tree of a commit."""
    git = ["git", "-C", str(HERE), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(place), name], check=True)
    try:
        yield place
    finally:
        subprocess.run([*git, "remove", "--force", str(place)], check=True)


def sitting(now: Path, before: Path, place: Path, blocks: int, steps: int) -> dict[str, Any]:
    """CPU and wall seconds of both, block by block."""
    place.mkdir()
    both = [
        Federation(tree, place / name, WARM + blocks, steps)
        for name, tree in (("now", now), ("before", before))
    ]
    try:
        for one in both:
            one.wait()
        for number in range(WARM + blocks):
            for one in both if number % 2 else reversed(both):
                one.begin()
                one.wait()
        found: dict[str, Any] = {}
        for one, name in zip(both, ("now", "before"), strict=True):
            cpu, wall = one.times()
            found[name] = {"cpu": cpu[WARM:].tolist(), "wall": wall[WARM:].tolist()}
        return found
    finally:
        for one in both:
            one.close()


def ratio(now: Times, before: Times) -> tuple[float, float, float]:
    """Median over sittings of the median ratio of pairs, and its 95 % interval."""
    ratios = now / before
    sittings, blocks = ratios.shape
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, sittings, (DRAWS, sittings))
    inner = generator.integers(0, blocks, (DRAWS, sittings, blocks))
    means = np.median(ratios[drawn[:, :, None], inner], axis=2)
    low, high = np.quantile(np.median(means, axis=1), [0.025, 0.975])
    return float(np.median(np.median(ratios, axis=1))), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", default=BEFORE, metavar="COMMIT")
    parser.add_argument("--sittings", type=int, default=6)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "against.json")
    arguments = parser.parse_args()
    content: dict[str, Any] = {"commit": commit(), "against": arguments.commit}
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        with checked_out(arguments.commit, place / "before") as before:
            for number in range(arguments.sittings):
                one = place / str(number)
                found.append(
                    sitting(HERE.parents[1], before, one, arguments.blocks, arguments.steps)
                )
                cpu = np.median(np.divide(found[-1]["now"]["cpu"], found[-1]["before"]["cpu"]))
                print(f"sitting {number + 1}: CPU {cpu:.3f}", flush=True)
    content |= {"steps": arguments.steps, "blocks": arguments.blocks}
    for what in ("cpu", "wall"):
        now, then = (np.array([one[side][what] for one in found]) for side in ("now", "before"))
        middle, low, high = ratio(now, then)
        content[what] = {"ratio": middle, "interval": [low, high], "sittings": []}
        content[what]["sittings"] = np.median(now / then, axis=1).tolist()
        print(f"{what}: {middle:.3f} of {arguments.commit} (95 % {low:.3f} to {high:.3f})")
        for side, seconds in (("now", now), ("before", then)):
            step = float(np.median(seconds)) / (arguments.steps - (what == "cpu") / 2)
            content[what][side] = {"milliseconds_per_step": 1000 * step}
            each = f"{1000 * step:.2f} ms a step"
            if what == "cpu":
                each += f", {1e6 * step / MESSAGES:.0f} µs a message"
                each += f", {1000 * step / MEGABYTES:.2f} ms a megabyte"
            print(f"  {side}: {each}")
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(*sys.argv[2:])
    else:
        main()
