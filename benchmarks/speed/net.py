"""What the process runtime costs: against a bare gRPC stream, and against one process.

    python benchmarks/speed/net.py [rate] [bulk] [step] [--out FILE]

rate  four parties, 64 KiB embeddings, no model work: steps per second of the process runtime, of
      a bare bidirectional gRPC stream with the same certificates that moves ready-made bytes, and
      of one that turns tensors into bytes and back and hashes them at both ends, taken in turns;
      and the CPU time of all parties together, which other load on the machine changes less
bulk  one tensor of 200 MB: MB per second, and memory above the tensor
step  splitnn, MNIST quadrants, CNNs, one thread per party: time of an epoch over mutual TLS
      against one process, taken in turns
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import queue
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

import colonnade
from colonnade.net import certs
from colonnade.net.mesh import OPTIONS
from colonnade.results.environment import commit

HERE = Path(__file__).resolve().parent
NAMES = ["bank", "shop", "telco", "clinic"]
BIG, SMALL = os.urandom(65536), os.urandom(5120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="rate|bulk|step")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "net.json")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    known: dict[str, Callable[[int], dict[str, Any]]] = {"rate": rate, "bulk": bulk, "step": step}
    content = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.sections or list(known):
        print(f"{name}:", flush=True)
        content[name] = known[name](arguments.turns) | {"commit": commit()}
        arguments.out.parent.mkdir(exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


def rate(turns: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"bytes": [], "tensors": [], "process": []}
    cpu: dict[str, list[float]] = {name: [] for name in found}  # seconds per 1000 steps
    for _ in range(turns):
        taken = {
            "bytes": bare_stream(1000, tensors=False),
            "tensors": bare_stream(1000, tensors=True),
            "process": echo_rate(1000),
        }
        for name, (rate, seconds) in taken.items():
            found[name].append(rate)
            cpu[name].append(seconds)
        print(
            "  " + ", ".join(f"{name} {r:.0f} (CPU {s:.2f} s)" for name, (r, s) in taken.items()),
            flush=True,
        )
    ratios = {
        name: statistics.median(o / b for o, b in zip(found["process"], found[name], strict=True))
        for name in ("bytes", "tensors")
    }
    print(
        f"  median {statistics.median(found['process']):.0f} steps/s: {ratios['bytes']:.2f} of a "
        f"bare stream of bytes, {ratios['tensors']:.2f} of one of hashed tensors"
    )
    medians = ", ".join(f"{name} {statistics.median(seconds):.2f}" for name, seconds in cpu.items())
    print(f"  CPU seconds of all parties per 1000 steps: {medians}")
    return found | {"ratios": ratios, "cpu_seconds_per_1000_steps": cpu}


def bulk(turns: int) -> dict[str, Any]:
    found = {k: v for numbers in echo(megabytes=200, repeats=turns + 1) for k, v in numbers.items()}
    for name, value in found.items():
        print(f"  {name.replace('_', ' ')}: {value:.0f}")
    return found


def step(turns: int) -> dict[str, Any]:
    """Both with one thread per party; the first epoch warms up."""
    local, process = [], []
    settings = {
        "method": "splitnn",
        "model": "cnn",
        "epochs": 3,
        "evaluate_every": 0,
        "data": {"name": "mnist", "train_rows": 12800},
        "partition": {"kind": "tiles"},
    }
    digests = set()
    for _ in range(turns):
        for runtime, times in (("local", local), ("process", process)):
            with tempfile.TemporaryDirectory() as folder:
                result = colonnade.run(settings, out=Path(folder) / "run", runtime=runtime)
            times.append(min(result.content["timing"]["seconds_per_epoch"][1:]))
            digests.add(json.dumps(result.weights_sha256, sort_keys=True))
        print(f"  one process {local[-1]:.2f} s, four over mutual TLS {process[-1]:.2f} s")
    ratio = statistics.median(p / o for p, o in zip(process, local, strict=True))
    print(f"  {ratio:.2f} × the time; weights {'equal' if len(digests) == 1 else 'DIFFER'}")
    return {"local": local, "process": process, "ratio": ratio, "equal": len(digests) == 1}


def echo_rate(steps: int) -> tuple[float, float]:
    """Steps per second of the process runtime, and the CPU seconds of all parties per 1000."""
    logged = echo(steps=steps)
    seconds = sum(numbers["cpu_seconds"] for numbers in logged)
    rate = next(n["steps_per_second"] for n in logged if "steps_per_second" in n)
    return rate, 1000 * seconds / steps


def echo(**options: int) -> list[dict[str, float]]:
    """The numbers that each party of echo.py logged."""
    settings = {
        "method": str(HERE / "echo.py"),
        "epochs": 1,
        "evaluate_every": 0,
        "data": {"name": "digits"},
        "partition": {"kind": "columns", "parties": len(NAMES)},
        "parties": {name: {} for name in NAMES},
        "checkpoint": {"epochs": 0},
        "echo": options,
    }
    with tempfile.TemporaryDirectory() as folder:
        result = colonnade.run(settings, out=Path(folder) / "run", runtime="process")
    return [numbers for row in result.history for numbers in row["parties"].values()]


# ---- the bare stream -----------------------------------------------------------------------------


class Bytes:
    """Ready-made bytes go out, and what comes in is not looked at."""

    def pack(self, big: bool) -> bytes:
        return BIG if big else SMALL

    def unpack(self, data: bytes) -> None: ...


class Tensors:
    """What one would write by hand: raw elements, and a digest of them at both ends."""

    def __init__(self) -> None:
        self.big, self.small = torch.randn(128, 128), torch.randn(128, 10)

    def pack(self, big: bool) -> bytes:
        data = (self.big if big else self.small).numpy().tobytes()
        hashlib.sha256(data).digest()
        return data

    def unpack(self, data: bytes) -> torch.Tensor:
        hashlib.sha256(data).digest()
        return torch.from_numpy(np.frombuffer(data, np.float32).reshape(128, -1).copy())


def bare_stream(steps: int, tensors: bool) -> tuple[float, float]:
    """The same messages without ledger, numbering, policy, checks: steps per second, and the CPU
    seconds of all parties per 1000."""
    content = Tensors() if tensors else Bytes()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        place, port = Path(folder), free.getsockname()[1]
        free.close()
        certs.init(place)
        for name in NAMES:
            certs.party(place, name)
        answer = context.Queue()
        processes = [
            context.Process(target=bare_active, args=(place, port, steps, answer, content))
        ]
        processes += [
            context.Process(target=bare_passive, args=(place, port, name, steps, answer, content))
            for name in NAMES[1:]
        ]
        for process in processes:
            process.start()
        told: list[tuple[float, float]] = [answer.get(timeout=120) for _ in processes]
        for process in processes:
            process.join(10)
        rates, seconds = zip(*told, strict=True)
        return max(rates), 1000 * sum(seconds) / steps


def bare_active(place: Path, port: int, steps: int, answer: Any, content: Any) -> None:
    inbox = {name: queue.SimpleQueue() for name in NAMES[1:]}
    outbox = {name: queue.SimpleQueue() for name in NAMES[1:]}
    ready = threading.Semaphore(0)

    def exchange(requests: Any, context: grpc.ServicerContext) -> Any:
        name = context.auth_context()["x509_common_name"][0].decode()

        def pump() -> None:
            for message in requests:
                inbox[name].put(message)

        threading.Thread(target=pump, daemon=True).start()
        ready.release()
        yield from iter(outbox[name].get, None)

    handler = grpc.stream_stream_rpc_method_handler(exchange)
    server = grpc.server(futures.ThreadPoolExecutor(8), options=OPTIONS)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("bare", {"Exchange": handler})]
    )
    folder = place / NAMES[0]
    credentials = grpc.ssl_server_credentials(
        [((folder / "bank.key").read_bytes(), (folder / "bank.pem").read_bytes())],
        (folder / "ca.pem").read_bytes(),
        require_client_auth=True,
    )
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    for _ in inbox:
        ready.acquire()
    began, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        for big in (True, False):
            for name in inbox:
                content.unpack(inbox[name].get())
            data = content.pack(big)
            for name in inbox:
                outbox[name].put(data)
    answer.put((steps / (time.perf_counter() - began), time.process_time() - busy))
    for name in inbox:
        outbox[name].put(None)
    server.stop(1).wait()


def bare_passive(place: Path, port: int, name: str, steps: int, answer: Any, content: Any) -> None:
    folder = place / name
    credentials = grpc.ssl_channel_credentials(
        (folder / "ca.pem").read_bytes(),
        (folder / f"{name}.key").read_bytes(),
        (folder / f"{name}.pem").read_bytes(),
    )
    options = [*OPTIONS, ("grpc.ssl_target_name_override", certs.host_of(NAMES[0]))]
    channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials, options)
    grpc.channel_ready_future(channel).result(60)
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    answers = channel.stream_stream("/bare/Exchange")(iter(outbox.get, None))
    busy = time.process_time()
    for _ in range(steps):
        for big in (True, False):
            outbox.put(content.pack(big))
            content.unpack(next(answers))
    answer.put((0.0, time.process_time() - busy))  # the active party tells the rate
    outbox.put(None)
    for _ in answers:
        pass


if __name__ == "__main__":
    main()
