"""One stage of a pipeline as a process: `python -m headway.engines.diffusion.stage_host FD`.

Its order comes on stdin, which then stays open: when it closes, the engine is gone and this process ends. Work comes
over the socket FD. Only the weights of its stage are loaded.
"""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec
import torch

from headway.engines.diffusion.families.protocol import Frames
from headway.engines.diffusion.loading import LoadSettings, load
from headway.engines.diffusion.memory import is_out_of_memory, release
from headway.engines.diffusion.orphans import end_with_parent
from headway.engines.diffusion.peaks import counter_of, held_of, seen_bytes
from headway.engines.diffusion.stage_wire import (
    Answer,
    Decode,
    Encode,
    EncodePicture,
    HostOrder,
    Ready,
    Reply,
    Sorry,
    Work,
    receive,
    send,
)
from headway.engines.diffusion.stages import LocalStages, embeddings_to, frames_to, from_bytes, latents_to, picture_from


def read_order() -> HostOrder:
    """The order on stdin; afterwards a thread ends this process when stdin closes."""
    end_with_parent()
    stdin = sys.stdin.buffer
    order = msgspec.msgpack.decode(stdin.read(int.from_bytes(stdin.read(4), "big")), type=HostOrder)

    def watch() -> None:
        stdin.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    return order


@torch.inference_mode()
def answer(stages: LocalStages, device: torch.device, work: Work) -> Reply:
    """Run one piece of work."""
    try:
        if not work.counts:
            return Answer(_done(stages, device, work))
        with counter_of(device) as count:
            body = _done(stages, device, work)
            _, most = count.lap()
        return Answer(body, seen_bytes(most, device))
    except Exception as error:  # the process's outer loop: whatever it is, it is the answer to this call
        sorry = Sorry(f"{type(error).__name__}: {error}", is_out_of_memory(error))
    release()
    return sorry


def _done(stages: LocalStages, device: torch.device, work: Work) -> bytes:
    match work:
        case Encode(prompts):
            return embeddings_to(stages.encode(prompts))
        case EncodePicture(body):
            pixels, generators = picture_from(body, device)
            return latents_to(stages.encoding(pixels, generators)(), generators)
        case Decode(grid, size):
            frames: Frames = stages.decoding(from_bytes(grid, device)["grid"], size)()
            return frames_to(frames)


def is_well(device: torch.device) -> bool:
    """False once a kernel has failed: nothing that this process asks of the device is answered any more."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def serve(link: socket.socket, stages: LocalStages, device: torch.device) -> None:
    """Answer until the other end is gone, or the device: the pool starts another process then."""
    while (body := receive(link)) is not None:
        reply = answer(stages, device, msgspec.msgpack.decode(body, type=Work))
        if isinstance(reply, Sorry) and not is_well(device):
            return
        send(link, reply)


def main() -> None:
    """The process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the engine's business, which still needs this stage to drain
        signal.signal(number, signal.SIG_IGN)
    order = read_order()
    link = socket.socket(fileno=int(sys.argv[1]))
    settings = LoadSettings(Path(order.folder), order.device, order.dtype, order.threads)
    loaded = load(settings, only=(order.role,))
    stages = LocalStages(loaded.family, loaded.pipeline.vae, order.tile_pixels)
    send(link, Ready(held_of(loaded.device)))
    serve(link, stages, loaded.device)


if __name__ == "__main__":
    main()
