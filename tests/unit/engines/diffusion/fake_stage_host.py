"""A stage process without weights: what a pool sees of it is what its prompt says."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec

from headway.engines.diffusion.orphans import end_with_parent


def send(link: socket.socket, **message: object) -> None:
    body = msgspec.msgpack.encode(message)
    link.sendall(len(body).to_bytes(4, "big") + body)


def stop() -> None:
    """Hang as a process does that nothing wakes."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_once(mark: str) -> None:
    """Only the first process that is told so; `mark` is there afterwards."""
    path = Path(mark)
    if not path.exists():
        path.touch()
        stop()


def main() -> None:
    stdin = sys.stdin.buffer
    order = msgspec.msgpack.decode(stdin.read(int.from_bytes(stdin.read(4), "big")))
    end_with_parent()
    threading.Thread(target=lambda: (stdin.read(), os._exit(0)), daemon=True).start()
    if order["folder"] == "broken":
        os._exit(3)
    if order["folder"] == "stopped":
        stop()
    link = socket.socket(fileno=int(sys.argv[1]))
    send(link, type="Ready", held_bytes=7)
    while head := link.recv(4, socket.MSG_WAITALL):
        body = link.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        work = msgspec.msgpack.decode(body)
        said = {"Encode": "prompts", "EncodePicture": "pixels", "Decode": "grid"}[work["type"]]
        prompt = work[said][0] if said == "prompts" else work[said].decode()
        word, _, mark = prompt.partition(" ")
        if word == "die":
            os._exit(1)
        if word == "hang":
            signal.pause()
        if word == "stop":
            stop()
        if word == "stop-once":
            stop_once(mark)
        if word == "cut":  # in the middle of its answer
            link.sendall((99).to_bytes(4, "big") + b"half")
            stop()
        send(link, type="Answer", body=prompt.encode(), peak_bytes=0)


if __name__ == "__main__":
    main()
