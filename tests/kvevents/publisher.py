"""A publisher on loopback that speaks the engines' wire format: PUB for batches, ROUTER for the kept ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import zmq

END = b"\xff" * 8


def payload(*events, ts: float = 1.0, rank: int | None = 0) -> bytes:
    """A batch as an engine encodes it."""
    return msgspec.msgpack.encode([ts, list(events), rank])


def store(found: int, parent: int | None = None) -> list:
    """A store as an array."""
    return ["BlockStored", [found], parent, [found, found], 2, None, "GPU"]


class Publisher:
    """Publishes what it is told, keeps all but `forgets`, and answers on its replay socket."""

    def __init__(self, *, with_topic: bool = True, topic: bytes = b"kv-events") -> None:
        self.topic = topic
        self.kept: dict[int, bytes] = {}
        self.asked: list[int] = []
        self._with_topic = with_topic
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._router = self._context.socket(zmq.ROUTER)
        self.endpoint = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def wait(self, seconds: float = 5.0) -> None:
        """Until somebody has subscribed."""
        assert self._pub.poll(round(seconds * 1000)), "nobody subscribed"
        self._pub.recv()

    def send(self, seq: int, body: bytes, *, is_kept: bool = True, is_sent: bool = True) -> None:
        """Publish a batch, or lose it on the way."""
        if is_kept:
            self.kept[seq] = body
        if is_sent:
            self._pub.send_multipart([self.topic, seq.to_bytes(8, "big"), body])

    def send_frames(self, *frames: bytes) -> None:
        """Publish whatever."""
        self._pub.send_multipart(list(frames))

    def _answer(self) -> None:
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            client, _, number = self._router.recv_multipart()
            first = int.from_bytes(number, "big")
            front = [client, b"", self.topic] if self._with_topic else [client, b""]
            for seq, body in sorted(self.kept.items()):
                if seq >= first:
                    self._router.send_multipart([*front, seq.to_bytes(8, "big"), body])
            self._router.send_multipart([*front, END, b""])
            self.asked.append(first)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
        self._context.destroy(linger=0)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def until(is_so: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for something, without a fixed sleep."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
