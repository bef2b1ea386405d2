"""Stands in for CuPy where there is no GPU: its arrays are NumPy's, in a wrapper as strict.

What CuPy 14 refuses is refused here too: NumPy arrays among its own, conversion to a NumPy array
without ``get()``, keywords that its functions lack, arrays of another device than the current one.
A little more is refused: NumPy arrays as indices, which CuPy would copy to the device.

``log`` records what was queued as (device, stream, what), in order; "synchronize" is a wait.
Kernels of a ``RawModule`` run from their CUDA source; see ``fakecuda.py``.

Work is done at once, or as late as a device may do it (``install(..., deferred=True)``): each
stream keeps its work until somebody waits for it, and an array holds NaN until then. So a missing
wait between two streams, or between a stream and the host, ends in other numbers. Streams of the
devices in ``PROMPT`` do theirs as early as their waits permit instead: too early without them.

A stream that is recorded works nothing; its graph does, each time that it is launched. What CUDA
refuses meanwhile is refused, and so are CuPy's products. A stream that waits for an event of a
recorded one is recorded with it, and is a queue of its own when the graph is launched; at the end
of the recording the first stream must have waited for it. Memory that was got while recording, but
from no pool of one's own, belongs to others afterwards: each launch overwrites it with NaN.

Kernels and copies reach the memory of another device as CUDA lets them: kernels once access to it
is enabled, copies always.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import fakecuda
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from syncpretrain.backends import cublas, cuda_kernels, cupy_backend

Key = tuple[int, str]  # of a stream: its device and its name
DEVICES = 2
MEMORY = 1 << 34  # bytes of a device
PROMPT: frozenset[int] = frozenset()
PEERS = True  # whether devices can read each other's memory
CAPABILITY = "75"  # of every device: without fused steps, unless a test has another one
NULL = "null"  # the default stream
log: list[tuple[int, str, str]] = []
_now = threading.local()
_queues: defaultdict[tuple[int, str], list[Callable[[], Any]]] = defaultdict(list)
_graphs: dict[Key, Graph] = {}  # of the streams that are recorded
_readable: set[tuple[int, int]] = set()  # devices, and those whose memory their kernels may read
stream_names = {0: NULL}  # by their addresses
_is_deferred = False
_working = threading.RLock()  # the queues, and the work in them
uploads: list[int] = []  # bytes of each copy from the host
_numbers = itertools.count()
_made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # memory, by number
installed = 0  # so many times
freed: list[tuple[int, str]] = []  # the device, and of what unused memory was given back
room: dict[str, int] = {}  # bytes that are "free" for pools, "kept" in the default one, if few
left: list[int] = []  # bytes of all arrays there were when unused memory was given back
_pinned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by address
FUNCTIONS = {  # of __array_function__: the keywords of CuPy's functions
    "clip": {"out"},
    "copyto": {"casting", "where"},
    "dot": {"out"},
    "empty_like": {"dtype", "order", "subok", "shape"},
    "max": {"axis", "out", "keepdims"},
    "ones_like": {"dtype", "order", "subok", "shape"},
    "outer": {"out"},
    "repeat": {"axis"},
    "split": {"axis"},
    "sum": {"axis", "dtype", "out", "keepdims"},
    "take": {"axis", "out"},
    "tile": set(),
    "zeros_like": {"dtype", "order", "subok", "shape"},
}


def current_device() -> int:
    return getattr(_now, "device", 0)


def current_stream() -> str:
    return get_current_stream().name


def recently_asked() -> deque[np.ndarray]:
    """Return the arrays whose addresses this thread has asked for, the last ones."""
    if not hasattr(_now, "asked"):
        _now.asked = deque(maxlen=8)
    asked: deque[np.ndarray] = _now.asked
    return asked


def note(what: str) -> None:
    log.append((current_device(), current_stream(), what))


def recording() -> Graph | None:
    """Return the graph that the current stream's work goes to."""
    return _graphs.get((current_device(), current_stream()))


def refuse_while_recording(what: str) -> None:
    graph = recording()
    if graph is not None:
        graph.is_valid = False
        raise CUDARuntimeError(900, f"cudaErrorStreamCaptureUnsupported: {what}")


def queue(work: Callable[[], Any], device: int | None = None, stream: str | None = None) -> None:
    """Queue work on a stream, by default the current one."""
    key = current_device() if device is None else device, stream or current_stream()
    if key in _graphs:
        _graphs[key].append(key, work)
    elif _is_deferred:
        with _working, np.errstate(all="ignore"):
            _queues[key].append(work)
            while key[0] in PROMPT and _queues[key]:
                _queues[key].pop(0)()
    else:
        work()


def wait(device: int, stream: str | None = None) -> None:
    """Do what is queued on a stream, or on all of a device, where none may be recorded."""
    refuse_while_recording("a wait")
    if stream is None and any(key[0] == device for key in _graphs):
        raise CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported: a wait for a device")
    note("synchronize")
    with _working, np.errstate(all="ignore"):  # as on a device
        for key in [key for key in _queues if key[0] == device and stream in (key[1], None)]:
            while _queues[key]:
                _queues[key].pop(0)()


def computed(function: Callable[[], Any], inputs: list[Any]):
    """Return what a function of arrays will return, queued; a view of one of them at once."""
    if not _is_deferred and recording() is None:
        return function()
    with np.errstate(all="ignore"):
        result = function()  # of what is not there yet: for its shape and type
    if isinstance(result, (list, tuple)):
        return result  # of parts of an array
    result = np.asarray(result)
    if not any(np.may_share_memory(result, each) for each in inputs):
        result = allocated(result.copy())
        result.fill(np.nan if result.dtype.kind == "f" else 1)
        queue(lambda: np.copyto(result, function()))
    return result


def allocated(array: np.ndarray) -> np.ndarray:
    """Return an array of new memory; of a recording it is others' but for a pool's."""
    graph, allocator = recording(), getattr(_now, "allocator", None)
    if allocator is not None and array.nbytes:
        allocator(array.nbytes).hold(array)
    elif graph is not None and allocator is None:
        graph.lost.append(array)
    return counted(array)


def counted(array: np.ndarray) -> np.ndarray:
    """Return an array of new memory, which is counted as long as it lives."""
    _made[next(_numbers)] = array
    return array


class Graph:
    """What a stream, and others that waited for it, were given while they were recorded."""

    launched = 0

    def __init__(self, origin: Key) -> None:
        self._origin = origin
        self._work: list[tuple[Key, str, Any]] = []  # a function, or an event's number
        self.lost: list[np.ndarray] = []
        self.is_valid = self.is_mapped = True
        # How much of each stream's work a stream comes after, and an event.
        self._after: dict[Key, dict[Key, int]] = {origin: {origin: 0}}
        self._events: list[dict[Key, int]] = []

    def append(self, key: Key, work: Callable[[], Any]) -> None:
        self._work.append((key, "work", work))
        self._after[key][key] += 1

    def record(self, key: Key) -> int:
        """Record an event; return its number."""
        self._events.append(dict(self._after[key]))
        self._work.append((key, "record", len(self._events) - 1))
        return len(self._events) - 1

    def wait(self, key: Key, event: int) -> None:
        """Let a stream wait for an event, and be recorded from now on if it was not."""
        own = self._after.setdefault(key, {key: 0})
        for other, count in self._events[event].items():
            own[other] = max(own.get(other, 0), count)
        self._work.append((key, "wait", event))

    def is_joined(self) -> bool:
        """Whether the first stream comes after all work."""
        first = self._after[self._origin]
        return all(first.get(key, -1) >= own[key] for key, own in self._after.items())

    def streams(self) -> list[Key]:
        return list(self._after)

    def launch(self, stream=None) -> None:
        assert stream is None
        refuse_while_recording("a launch of a graph")
        if not self.is_mapped:
            raise CUDARuntimeError(700, "cudaErrorIllegalAddress")
        note("graph")
        Graph.launched += 1
        places = {(d, name): (d, f"{name} in graph {Graph.launched}") for d, name in self._after}
        places[self._origin] = current_device(), current_stream()
        marks: dict[int, _Mark] = {}
        for key, what, own in self._work:
            if what == "record":
                marks[own] = _Mark(places[key])
            else:
                queue(marks[own].wait if what == "wait" else own, *places[key])
        for array in self.lost:
            queue(lambda array=array: array.fill(np.nan if array.dtype.kind == "f" else 1))


class DefaultPool:
    """What arrays of a device, or pinned memory, come from and go back to."""

    def __init__(self, what: str) -> None:
        self._what = what

    def free_bytes(self) -> int:
        return 0

    def free_all_blocks(self) -> None:
        freed.append((current_device(), self._what))
        if self._what == "memory":
            if "free" in room:
                room["free"] += room.pop("kept", 0)
            left.append(sum(array.nbytes for array in _made.values()))


class Memory:
    """Memory of a device, of which there is no end unless ``room`` says how much is "free"."""

    def __init__(self, size: int) -> None:
        if size > room.get("free", size):
            raise CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")
        if "free" in room:
            room["free"] -= size
        self.size = size


class MemoryPointer:
    def __init__(self, mem: Memory, offset: int, pool: MemoryPool | None = None) -> None:
        assert offset == 0
        self.mem, self._pool = mem, pool

    def hold(self, array: np.ndarray) -> None:
        """Stand for the memory of an array, and go back to the pool with it."""
        if self._pool is not None:
            weakref.finalize(array, self._pool.unused.append, self.mem).atexit = False


class MemoryPool:
    """Keeps memory that is free again; gives it all back where there is no other, as CuPy's does.

    Graphs that were recorded with it are of no use then: they write to memory that is unmapped.
    """

    def __init__(self, allocator: Callable[[int], MemoryPointer] | None = None) -> None:
        self._allocator = allocator or (lambda size: MemoryPointer(Memory(size), 0))
        self.unused: list[Memory] = []
        self._graphs: weakref.WeakSet[Graph] = weakref.WeakSet()

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        assert size == 0 and fraction is None, "no limit"

    def malloc(self, size: int) -> MemoryPointer:
        graph = recording()
        if graph is not None:
            self._graphs.add(graph)
        elif self._graphs:
            raise AssertionError("memory that graphs write to, for an array outside of them")
        fitting = [memory for memory in self.unused if memory.size >= size]
        if not fitting:
            return MemoryPointer(self._new(-(-size // 512) * 512), 0, self)
        found = min(fitting, key=lambda memory: memory.size)
        self.unused.remove(found)
        return MemoryPointer(found, 0, self)

    def _new(self, size: int) -> Memory:
        for _ in range(3):
            try:
                return self._allocator(size).mem
            except CUDARuntimeError as error:
                if error.status != 2:
                    raise
            self.free_all_blocks()
        raise MemoryError(f"Out of memory allocating {size:,} bytes")

    def free_all_blocks(self) -> None:
        if self.unused:
            freed.append((current_device(), "memory of a pool"))
            for graph in self._graphs:
                graph.is_mapped = False
        self.unused.clear()


class _Block:
    """Sets something of this thread in its ``with`` block."""

    attribute: str

    def __init__(self, value) -> None:
        self._value = value
        self._before: list[Any] = []

    def __enter__(self):
        self._before.append(getattr(_now, self.attribute, None))
        setattr(_now, self.attribute, self._value)
        return self

    def __exit__(self, *_: object) -> None:
        before = self._before.pop()
        if before is None:
            delattr(_now, self.attribute)
        else:
            setattr(_now, self.attribute, before)


class UsingAllocator(_Block):
    attribute = "allocator"


class Device(_Block):
    attribute = "device"

    def __init__(self, device: int | None = None) -> None:
        super().__init__(current_device() if device is None else device)
        self.id = self._value
        self.mem_info = MEMORY, MEMORY  # free bytes, and all
        self.compute_capability = CAPABILITY

    def synchronize(self) -> None:
        wait(self.id)


class _Mark:
    """A place in a queue, behind all that was queued there when it was made."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._is_reached = False
        queue(self._reach, *key)

    def _reach(self) -> None:
        self._is_reached = True

    def wait(self) -> None:
        """Do what is queued before it."""
        with _working, np.errstate(all="ignore"):
            while not self._is_reached:
                _queues[self._key].pop(0)()


class Event:
    """What was queued on a stream before the last call of ``record``; nothing without one."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self._device = current_device()
        self._mark: _Mark | None = None
        self._recorded: tuple[Graph, int] | None = None

    def record(self) -> None:
        note("record")
        key = current_device(), current_stream()
        assert key[0] == self._device, "an event is recorded on a stream of its device"
        graph = recording()
        self._recorded = None if graph is None else (graph, graph.record(key))
        self._mark = _Mark(key) if graph is None else None

    def synchronize(self) -> None:
        refuse_while_recording("a wait")
        note("wait for an event")
        if self._mark is not None:
            self._mark.wait()

    def hold_back(self) -> None:
        """Have the current stream wait for it before its next work."""
        note("wait for an event")
        if self._recorded is not None:
            graph, number = self._recorded
            key = current_device(), current_stream()
            assert graph in _graphs.values(), "an event of a recording that has ended"
            assert _graphs.get(key, graph) is graph, "two recordings in one"
            _graphs[key] = graph
            graph.wait(key, number)
        elif self._mark is not None:
            refuse_while_recording("a wait for an event from before")
            queue(self._mark.wait)


class Stream(_Block):
    attribute = "stream"
    made = 0

    def __init__(self, null=False, non_blocking=False, priority=None):
        assert non_blocking, "a blocking stream waits for the default one"
        self.priority = max(-5, min(0, priority or 0))  # what CUDA makes of it
        Stream.made += 1
        super().__init__(self)
        self.name, self.ptr = f"stream {Stream.made}", Stream.made
        stream_names[self.ptr] = self.name
        self._device = current_device()

    def synchronize(self) -> None:
        wait(self._device, self.name)

    def wait_event(self, event: Event) -> None:
        with self:
            event.hold_back()

    def begin_capture(self) -> None:
        key = self._device, self.name
        _graphs[key] = Graph(key)

    def end_capture(self) -> Graph:
        graph = _graphs[self._device, self.name]
        for key in graph.streams():
            del _graphs[key]
        if not graph.is_valid:
            raise CUDARuntimeError(901, "cudaErrorStreamCaptureInvalidated")
        if not graph.is_joined():
            raise CUDARuntimeError(904, "cudaErrorStreamCaptureUnjoined")
        return graph


class NullStream:
    name, ptr = NULL, 0

    def wait_event(self, event: Event) -> None:
        event.hold_back()

    def synchronize(self) -> None:
        wait(current_device(), NULL)


def get_current_stream():
    return getattr(_now, "stream", None) or NullStream()


def unwrap(value, what: str, others=()):
    """Return a NumPy array of one's own array, or a scalar; refuse arrays of the host.

    ``others`` are devices whose arrays may be used as well.
    """
    if isinstance(value, ndarray):
        if value.device.id != current_device() and value.device.id not in others:
            raise ValueError(
                f"Array device must be same as the current device: array device ="
                f" {value.device.id} while current = {current_device()} ({what})"
            )
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)} ({what})")
    if isinstance(value, (list, tuple)):
        return type(value)(unwrap(each, what) for each in value)
    return value


def called(function: Callable[..., Any], name: str, args, out):
    """Return what a function of arrays and scalars returns: ``out``, or new arrays."""
    given = [unwrap(each, name) for each in args]
    if out is not None:
        queue(lambda: function(*given))
        return out
    return wrap(computed(lambda: function(*given), [x for x in given if isinstance(x, np.ndarray)]))


def wrap(result):
    if isinstance(result, (list, tuple)):
        return type(result)(wrap(each) for each in result)
    return ndarray(np.asarray(result))


class ndarray(NDArrayOperatorsMixin):  # noqa: N801 - CuPy's name
    """An array "on the device"."""

    def __init__(self, host: np.ndarray, device: Device | None = None) -> None:
        self._host = host
        self.device = device or Device()

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct"
            " a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc, method: str, *inputs, **options):
        name = ufunc.__name__
        if name == "matmul" and recording() is not None:
            text = "calling cuBLAS API during stream capture is currently unsupported"
            raise NotImplementedError(text)
        if method != "__call__" or not options.keys() <= {"out", "dtype", "casting"}:
            raise TypeError(f"{name}: CuPy has no {method} with {sorted(options)}")
        note(name)
        (out,) = options.pop("out", (None,))
        if out is not None:
            if not isinstance(out, ndarray):
                raise TypeError(f"{name}: out is an array of the host")
            options["out"] = unwrap(out, name)
            options.setdefault("casting", "same_kind")
        return called(lambda *given: ufunc(*given, **options), name, inputs, out)

    def __array_function__(self, function, types, args, kwargs):
        name = function.__name__
        name = "max" if name == "amax" else name
        if name not in FUNCTIONS:
            raise TypeError(f"{name} is not in the stand-in for CuPy: tests/helpers/fakecupy.py")
        unknown = kwargs.keys() - FUNCTIONS[name]
        if unknown:
            raise TypeError(f"{name}() got an unexpected keyword argument {unknown.pop()!r}")
        note(name)
        given = {key: unwrap(value, name) for key, value in kwargs.items()}
        changed = args[0] if name == "copyto" else kwargs.get("out")
        if name == "copyto" and not kwargs and isinstance(args[1], ndarray):
            return self._copy_between(*args)
        return called(lambda *own: function(*own, **given), name, args, changed)

    @staticmethod
    def _copy_between(to: ndarray, given: ndarray) -> None:
        """Copy an array, perhaps of another device; then as memory, without conversion."""
        target, source = unwrap(to, "copyto"), given._host
        if given.device.id != current_device():
            same = target.dtype == source.dtype and target.shape == source.shape
            flat = target.flags.c_contiguous and source.flags.c_contiguous
            assert same and flat, "between devices only memory is copied"
        queue(lambda: np.copyto(target, source, casting="same_kind"))

    def __getitem__(self, index):
        at = unwrap(index, "index")
        if not isinstance(at, np.ndarray) and at is not Ellipsis:
            at = (*at, ...) if isinstance(at, tuple) else (at, ...)  # a number is a view as well
        return ndarray(computed(lambda: self._host[at], [self._host]), self.device)

    def __setitem__(self, index, value) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        note("setitem")
        own, at, given = unwrap(self, "setitem"), unwrap(index, "index"), unwrap(value, "setitem")
        queue(lambda: own.__setitem__(at, given))

    def __len__(self) -> int:
        return len(self._host)

    def get(self) -> np.ndarray:
        wait(current_device(), current_stream())
        return self._host.copy()

    def item(self):
        return self.get().item()

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def copy(self) -> ndarray:
        note("copy")  # onto the current device, wherever this is
        return ndarray(computed(self._host.copy, []))

    @property
    def data(self):
        recently_asked().append(self._host)
        return SimpleNamespace(
            ptr=self._host.ctypes.data,
            owner=self._host,
            copy_from_device_async=self._fill_from_any_device,
            copy_from_host_async=self._fill_from,
            copy_to_host_async=self._copy_to,
        )

    def _fill_from_any_device(self, source, size: int) -> None:
        note("peer copy")  # by the current stream, wherever this is
        assert size == source.owner.nbytes == self._host.nbytes
        assert source.owner.flags.c_contiguous and self._host.flags.c_contiguous
        queue(lambda: ctypes.memmove(self._host.ctypes.data, source.owner.ctypes.data, size))

    def _fill_from(self, pointer: ctypes.c_void_p, size: int) -> None:
        note("upload")
        assert size == self._host.nbytes
        uploads.append(size)
        first = pointer.value
        pinned = [(at, it) for at, it in _pinned.items() if at <= first < at + len(it)]
        given = ctypes.string_at(first, size)  # at once, as of pageable memory

        def fill() -> None:
            now = [it[first - at : first - at + size] for at, it in pinned]
            ctypes.memmove(self._host.ctypes.data, now[0] if now else given, size)

        queue(fill)

    def _copy_to(self, pointer: ctypes.c_void_p, size: int) -> None:
        note("download")
        assert size == self._host.nbytes
        queue(lambda: ctypes.memmove(pointer.value, self._host.ctypes.data, size))

    @property
    def flags(self):
        return SimpleNamespace(c_contiguous=self._host.flags.c_contiguous)

    def reshape(self, *shape) -> ndarray:
        note("reshape")
        return ndarray(computed(lambda: self._host.reshape(*shape), [self._host]), self.device)

    def fill(self, value) -> None:
        self[...] = value


def _delegate(name: str):
    def method(self: ndarray, *args, **options):
        note(name)
        given = {key: unwrap(value, name) for key, value in options.items()}
        function = lambda own, *more: getattr(own, name)(*more, **given)  # noqa: E731
        return called(function, name, (self, *args), options.get("out"))

    return method


for _name in ("sum", "max", "min", "astype"):
    setattr(ndarray, _name, _delegate(_name))
for _name in ("shape", "dtype", "ndim", "size", "strides", "itemsize", "nbytes"):
    setattr(ndarray, _name, property(lambda self, name=_name: getattr(self._host, name)))
ndarray.T = property(lambda self: ndarray(self._host.T, self.device))  # type: ignore[attr-defined]


class RawKernel:
    def __init__(self, source: str, name: str) -> None:
        self._source, self._name = source, name
        self._most_shared: dict[int, int] = {}  # bytes, by device

    def _allow_shared(self, size: int) -> None:
        self._most_shared[current_device()] = size

    max_dynamic_shared_size_bytes = property(fset=_allow_shared)

    def __call__(self, grid, block, args, *, shared_mem=0):
        own = current_device()
        assert shared_mem <= self._most_shared.get(own, 48 << 10), f"{self._name}: shared memory"
        others = {device for reader, device in _readable if reader == own}
        for each in args:
            assert not isinstance(each, np.ndarray), f"{self._name}: an array of the host"
            unwrap(each, self._name, others)
        note(self._name)
        queue(lambda: fakecuda.launch(self._source, self._name, grid, block, args))


class RawModule:
    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        assert "--fmad=false" in options, "the shim does not contract products and sums"
        self._code = code

    def get_function(self, name: str) -> RawKernel:
        assert name in fakecuda.parameters(self._code), f"{name} is not in the source"
        return RawKernel(self._code, name)


class CompileException(Exception):  # noqa: N818 - CuPy's name
    """As CuPy's, neither a RuntimeError nor an OSError."""


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def asarray(array, dtype=None) -> ndarray:
    note("asarray")
    if isinstance(array, ndarray):
        return array
    refuse_while_recording("a copy from the host")
    copy = np.array(array, dtype=dtype)  # from the host's memory at once
    uploads.append(copy.nbytes)
    return ndarray(counted(computed(copy.copy, [])))


def empty(shape, dtype=float) -> ndarray:
    array = np.empty(shape, dtype=dtype)
    if array.dtype.kind == "f":
        array.fill(np.nan)
    return ndarray(allocated(array))


def enable_peer_access(peer: int) -> None:
    if (current_device(), peer) in _readable:
        raise CUDARuntimeError(704, "cudaErrorPeerAccessAlreadyEnabled")
    _readable.add((current_device(), peer))


def alloc_pinned_memory(size: int):
    memory = (ctypes.c_char * size)()
    _pinned[ctypes.addressof(memory)] = memory
    return memory


def by_name(*parts):
    return {part.__name__: part for part in parts}


def fake_cupy(devices: int = DEVICES) -> ModuleType:
    """Return a module that can stand in ``sys.modules`` as cupy."""
    module = ModuleType("cupy")

    def creating(function):
        def create(*args, **options) -> ndarray:
            return ndarray(counted(np.asarray(computed(lambda: function(*args, **options), []))))

        return create

    runtime = SimpleNamespace(
        getDeviceCount=lambda: devices,
        deviceCanAccessPeer=lambda device, peer: int(PEERS),
        deviceEnablePeerAccess=enable_peer_access,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 12090,
        getDeviceProperties=lambda device: {"name": b"stand-in"},
        CUDARuntimeError=CUDARuntimeError,
    )
    vars(module).update(
        __version__="14.2.0",
        **by_name(ndarray, asarray, RawModule, empty),
        **{each.__name__: creating(each) for each in (np.zeros, np.ones, np.full)},
        empty_like=lambda array: empty(array.shape, dtype=array.dtype),
        get_default_memory_pool=lambda: DefaultPool("memory"),
        get_default_pinned_memory_pool=lambda: DefaultPool("pinned memory"),
        float32=np.float32,
        cuda=SimpleNamespace(
            **by_name(Device, Event, Memory, MemoryPointer, MemoryPool, Stream),
            **by_name(alloc_pinned_memory, get_current_stream),
            compiler=SimpleNamespace(CompileException=CompileException),
            device=SimpleNamespace(get_cublas_handle=lambda: 0),
            is_available=lambda: devices > 0,
            runtime=runtime,
            using_allocator=UsingAllocator,
        ),
    )
    return module


def install(monkeypatch, devices: int = DEVICES, *, deferred: bool = False) -> ModuleType:
    """Let ``import cupy`` find the stand-in until the test ends."""
    global installed
    installed += 1
    module = fake_cupy(devices)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(sys.modules[__name__], "_is_deferred", deferred)
    monkeypatch.setattr(cublas, "load_library", lambda cupy: importlib.import_module("fakecublas"))
    for each in (_queues, _graphs, _readable, log, uploads, left, freed, room, _made):
        each.clear()
    cuda_kernels.kernels_of.cache_clear()  # of the modules before
    cupy_backend._streams.cache_clear()
    return module
