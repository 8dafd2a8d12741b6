"""A stage process without weights: what a pool sees of it is what its prompt says."""

import os
import signal
import socket
import sys
import threading

import msgspec


def send(link: socket.socket, **message: object) -> None:
    body = msgspec.msgpack.encode(message)
    link.sendall(len(body).to_bytes(4, "big") + body)


def main() -> None:
    stdin = sys.stdin.buffer
    order = msgspec.msgpack.decode(stdin.read(int.from_bytes(stdin.read(4), "big")))
    threading.Thread(target=lambda: (stdin.read(), os._exit(0)), daemon=True).start()
    if order["folder"] == "broken":
        os._exit(3)
    link = socket.socket(fileno=int(sys.argv[1]))
    send(link, type="Ready", held_bytes=7)
    while head := link.recv(4, socket.MSG_WAITALL):
        body = link.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        prompt = msgspec.msgpack.decode(body)["prompts"][0]
        if prompt == "die":
            os._exit(1)
        if prompt == "hang":
            signal.pause()
        send(link, type="Answer", body=prompt.encode(), peak_bytes=0)


if __name__ == "__main__":
    main()
