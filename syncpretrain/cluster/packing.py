"""Messages as bytes: an envelope, and the large arrays beside it, which are not copied."""

from __future__ import annotations

import io
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

__all__ = ["Buffer", "Envelope", "pack", "sizes_in", "unpack"]

APART_BYTES = 1 << 14  # smaller arrays are copied into the envelope
PROTOCOL = 5  # the first that takes arrays apart

Buffer = bytes | bytearray | memoryview


class Envelope(NamedTuple):
    """What is known of a message before its arrays have come.

    ``sent`` is ``time.monotonic()`` of the sender; ``sizes`` are the bytes of the arrays beside it.
    """

    port: tuple[Any, ...]
    sent: float
    sizes: tuple[int, ...]
    body: bytes


def pack(port: tuple[Any, ...], sent: float, thing: Any) -> list[Buffer]:
    """Return the envelope of a message and its large arrays, which must not change until sent."""
    apart: list[Buffer] = []

    def stays(buffer: Any) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not in one piece
            return True
        if raw.nbytes < APART_BYTES:
            return True
        apart.append(raw)
        return False

    body = io.BytesIO()
    ForkingPickler(body, PROTOCOL, True, stays).dump(thing)
    sizes = tuple(memoryview(own).nbytes for own in apart)
    envelope = Envelope(port, sent, sizes, body.getvalue())
    return [bytes(ForkingPickler.dumps(tuple(envelope), PROTOCOL)), *apart]


def sizes_in(envelope: Buffer) -> tuple[int, ...]:
    """Return the bytes of each array that belongs to an envelope."""
    return Envelope(*ForkingPickler.loads(envelope)).sizes


def unpack(parts: Sequence[Buffer]) -> tuple[Envelope, Any]:
    """Return the envelope and the message of received bytes, in which its arrays stay."""
    envelope = Envelope(*ForkingPickler.loads(parts[0]))
    return envelope, ForkingPickler.loads(envelope.body, buffers=parts[1:])
