"""The sockets of a publisher: batches as they are sent, and those that it still keeps on request.

pyzmq is imported when a socket is opened, so that everything else works without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kvcanary_cli.errors import MissingError, UsageError

NUMBER_BYTES = 8
END_MARK = b"\xff" * NUMBER_BYTES
"""Number of the empty message behind the last kept batch."""
QUEUE = 100_000
"""Batches that wait in memory at most; the publisher's own limit. More are dropped, which shows as a gap."""
REPLAY_SECONDS = 2.0
"""How long an answer of the replay socket may take, from one message to the next."""


class Message(NamedTuple):
    """One message of a publisher; `seq` is None where the frames have no number."""

    seq: int | None
    payload: bytes
    error: str | None = None


def load_zmq() -> Any:
    """The zmq module; MissingError where pyzmq is not installed."""
    try:
        import zmq
    except ImportError as error:
        raise MissingError(
            "recording events needs pyzmq, which is not installed",
            hint="`pip install pyzmq`, or kvcanary with its extra `events`",
        ) from error
    return zmq


def check_endpoint(endpoint: str, flag: str) -> None:
    """UsageError for what can't be connected to."""
    if "://" not in endpoint:
        raise UsageError(
            f"{flag} is {endpoint!r}, an endpoint names its transport",
            hint=f"tcp://{endpoint if ':' in endpoint else endpoint + ':5557'}",
        )
    if "://*" in endpoint:
        raise UsageError(
            f"{flag} is {endpoint!r}, which is what the publisher binds",
            hint=f"name its host: {endpoint.replace('*', 'localhost')}, or `--bind` if the publisher connects",
        )


class Subscriber:
    """A SUB socket; use it as a context manager.

    Args:
        topic: only messages whose topic begins so.
        bind: wait at the endpoint for a publisher that connects, as one does whose own endpoint names a host.
    """

    def __init__(self, endpoint: str, topic: str = "", *, bind: bool = False) -> None:
        self._zmq = load_zmq()
        if not bind:
            check_endpoint(endpoint, "ENDPOINT")
        self._context = self._zmq.Context()
        self._socket = self._context.socket(self._zmq.SUB)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        self._socket.setsockopt(self._zmq.RCVHWM, QUEUE)
        self._socket.setsockopt(self._zmq.SUBSCRIBE, topic.encode())
        try:
            (self._socket.bind if bind else self._socket.connect)(endpoint)
        except self._zmq.ZMQError as error:
            self.close()
            what = "bound" if bind else "connected to"
            raise UsageError(f"ENDPOINT {endpoint!r} can't be {what}: {error}") from None

    def receive(self, seconds: float) -> Message | None:
        """The next message; None if none comes in time, or a signal does."""
        try:
            if not self._socket.poll(max(0, round(seconds * 1000))):
                return None
            frames = self._socket.recv_multipart()
        except self._zmq.error.ZMQError:
            return None
        return _message(frames)

    def close(self) -> None:
        """Close the socket and drop what waits in it."""
        self._context.destroy(linger=0)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _message(frames: list[bytes]) -> Message:
    """Topic, number and payload; a message without topic is understood too."""
    if len(frames) in (2, 3) and len(frames[-2]) == NUMBER_BYTES:
        return Message(int.from_bytes(frames[-2], "big"), frames[-1])
    sizes = ", ".join(str(len(frame)) for frame in frames[:4])
    error = f"{len(frames)} frames of {sizes} bytes: topic, a number of 8 bytes and a payload are expected"
    return Message(None, frames[-1] if frames else b"", error)


class ReplaySocket:
    """Asks a publisher for batches that it keeps.

    The publisher answers one request with many messages, which a REQ socket can't receive: this is a DEALER that
    sends the empty frame that a REQ would.
    """

    def __init__(self, endpoint: str) -> None:
        self._zmq = load_zmq()
        check_endpoint(endpoint, "`--replay`")
        self.endpoint = endpoint

    def ask(self, first: int, *, seconds: float = REPLAY_SECONDS) -> Iterator[Message]:
        """Kept batches from number `first` on, up to the end mark or until no more come."""
        context = self._zmq.Context()
        socket = context.socket(self._zmq.DEALER)
        socket.setsockopt(self._zmq.LINGER, 0)
        try:
            socket.connect(self.endpoint)
            socket.send_multipart([b"", first.to_bytes(NUMBER_BYTES, "big")])
            while socket.poll(round(seconds * 1000)):
                frames = socket.recv_multipart()
                if len(frames) < 2 or frames[-2] == END_MARK or not frames[-1]:
                    return
                # older publishers send no topic, and the empty frame in front stands for none
                yield _message(frames[-2:])
        except self._zmq.ZMQError:
            return
        finally:
            context.destroy(linger=0)
