"""Stands for a process that the nursery forked: passes signals on, ends as it ends.

    python -S -E stub.py SOCKET colonnade run file.toml
    python -S -E stub.py SOCKET FILE PLAN --federation …

It imports next to nothing, and so starts in 20 ms instead of three seconds.
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    place, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as nursery:
        nursery.connect(place)
        here = os.getcwd()  # noqa: PTH109 - pathlib takes time
        wish = {"arguments": arguments, "folder": here, "environment": dict(os.environ)}
        socket.send_fds(nursery, [json.dumps(wish).encode()], [0, 1, 2])
        for number in PASSED_ON:
            signal.signal(number, lambda got, _: nursery.send(bytes([got])))
        status = int(nursery.recv(16) or b"9")  # without a nursery there is no party either
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
