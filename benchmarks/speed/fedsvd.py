"""FedSVD at the size of the paper's largest table, against the plain decomposition.

    python benchmarks/speed/fedsvd.py [--rows 5000] [--columns 13824 13824] [--q 32] [--out DIR]

One party per number of columns, all in this process: masks, masked parts in the ring, their sum,
its singular vectors, unmasking. Prints seconds, the ratio to torch's decomposition of the joined
matrix by the same means, the largest difference of the leading q vectors, and the highest memory
of the process above that of the matrices themselves.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch

from colonnade.privacy import fedsvd
from colonnade.results.environment import commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--columns", type=int, nargs="+", default=[13824, 13824])
    parser.add_argument("--q", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    torch.manual_seed(0)
    # Of falling spectrum, as real tables are: the leading vectors are well apart.
    spread = torch.linspace(0, 2, given.q, dtype=torch.float64).exp()
    factors = torch.randn(given.rows, given.q, dtype=torch.float64) * spread
    matrices = [
        factors @ torch.randn(given.q, width, dtype=torch.float64)
        + torch.randn(given.rows, width, dtype=torch.float64)
        for width in given.columns
    ]
    matrices = [(m - m.mean(0)) / m.std(0) for m in matrices]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    ours = fedsvd.left_vectors_of(matrices, given.q)
    seconds = time.perf_counter() - began
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    began = time.perf_counter()
    plain = fedsvd.fix_signs(fedsvd.left_vectors(torch.cat(matrices, 1), given.q))
    plain_seconds = time.perf_counter() - began
    found = {
        "command": f"fedsvd.py --rows {given.rows} --columns {' '.join(map(str, given.columns))} "
        f"--q {given.q}",
        "commit": commit(),
        "seconds": seconds,
        "plain_seconds": plain_seconds,
        "ratio": seconds / plain_seconds,
        "largest_difference": float((ours - plain).abs().max()),
        "bytes_of_matrices": sum(matrix.nbytes for matrix in matrices),
        "bytes_above": memory,
        "threads": torch.get_num_threads(),
    }
    print(f"FedSVD {seconds:.1f} s, plain {plain_seconds:.1f} s, ratio {found['ratio']:.2f}")
    print(f"largest difference of {given.q} vectors {found['largest_difference']:.1e}")
    held = found["bytes_of_matrices"] / 1e9
    print(f"memory above the matrices ({held:.2f} GB): {memory / 1e9:.2f} GB")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "fedsvd.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
