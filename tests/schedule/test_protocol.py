"""Every interleaving of a small run, explored breadth first: the real schedule, modelled workers.

The model is the driver's loop, the mailboxes, the versions' buffers and one worker a layer. A step
is what happens under one lock, or between two of them. The schedule is the library's own, made
anew from its past in each state. No wait has a deadline here, so that a lost wake-up is a deadlock.

Three things keep the states few, and lose none that differ for anybody but the one who moves:

* Whether a waiting worker already sleeps, or is still about to look into its empty inbox, is
  decided when something is put there; likewise for the driver.
* A death is reported at once. Reported later, it is that of a worker which stood still meanwhile.
* At the end the workers are released one by one, as they have nothing in common any more.
"""

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from scheduleplay import KNOWN

from syncpretrain.schedule.kinds import Free, LayerPlan
from syncpretrain.schedule.schedule import Command, Past, Release, Schedule, Train

SLOTS, MAX_BUFFERS = 2, 3
Plans = list[LayerPlan]
PACES = KNOWN | {"free": Free}


class ProtocolError(Exception):
    """Something happened that never may."""


class Worker(NamedTuple):
    phase: str = "waiting"  # asleep, woken, opening, buffering, writing, training, dead, gone
    command: Train | None = None
    source: int = -1  # the buffer read, while writing another
    buffer: int = -1  # the buffer written, then trained on


class Store(NamedTuple):
    """The versions of one layer and the buffers of their activations."""

    held: tuple[tuple[int, int], ...] = ()  # version and buffer, -1 before they are made
    contents: tuple[tuple[int, bool], ...] = ()  # of each buffer: version, and whether complete
    spare: tuple[int, ...] = ()


class State(NamedTuple):
    past: int  # its number in the brain's book
    todo: tuple[Command, ...]
    inboxes: tuple[tuple[Train, ...], ...]
    workers: tuple[Worker, ...]
    stores: tuple[Store, ...]
    mode: str = "driving"  # draining, closing, ended
    awake: bool = True  # the driver
    failed: int = 0  # the layer whose failure ended the run
    stopping: bool = False
    broken: int = 0  # so many inboxes are
    running: frozenset[int] = frozenset()
    results: tuple[tuple[str, int], ...] = ()
    deaths: int = 0  # that may still come
    stops: int = 0  # layers that may still learn enough


class Brain:
    """The library's schedule, as a function of its past."""

    def __init__(self, name: str, plans: Plans) -> None:
        self.make = lambda: Schedule(plans, PACES[name](plans), slots=SLOTS)
        self.pasts: list[Past] = []
        self.numbers: dict[Past, int] = {}
        self.answers: dict[tuple[int, int, bool], tuple[int, tuple[Command, ...]]] = {}
        self.is_over: list[bool] = []

    def begin(self) -> tuple[int, tuple[Command, ...]]:
        schedule = self.make()
        commands = tuple(schedule.begin())
        return self.number(schedule), commands

    def finished(self, past: int, layer: int, stops: bool) -> tuple[int, tuple[Command, ...]]:
        question = (past, layer, stops)
        if question not in self.answers:
            schedule = self.make()
            again = schedule.resume(self.pasts[past])
            if tuple(c.layer for c in again) != schedule.training or len(again) > SLOTS:
                raise ProtocolError(f"a resumed schedule says {again}")
            commands = tuple(schedule.finished(layer, stops=stops))
            self.answers[question] = self.number(schedule), commands
        return self.answers[question]

    def number(self, schedule: Schedule) -> int:
        past = schedule.past
        if past not in self.numbers:
            self.numbers[past] = len(self.pasts)
            self.pasts.append(past)
            self.is_over.append(schedule.is_finished)
        return self.numbers[past]


def swapped(items: tuple, i: int, item: object) -> tuple:
    return (*items[:i], item, *items[i + 1 :])


class Protocol:
    """The moves; subclasses break one of them."""

    def __init__(self, name: str, *, depth: int = 4, epochs: int = 3) -> None:
        self.depth, self.epochs = depth, epochs
        self.brain = Brain(name, [LayerPlan(epochs, refresh_epochs=1)] * depth)

    def start(self, deaths: int, stops: int) -> State:
        past, todo = self.brain.begin()
        return State(
            past,
            todo,
            inboxes=((),) * self.depth,
            workers=(Worker(),) * self.depth,
            stores=(Store(),) * (self.depth + 1),
            deaths=deaths,
            stops=stops,
        )

    def moves(self, s: State) -> Iterator[State]:
        if s.mode == "ended":
            return
        yield from getattr(self, s.mode)(s)
        for i, worker in enumerate(s.workers):
            if worker.phase in ("woken", "opening", "buffering", "writing", "training"):
                yield from getattr(self, worker.phase)(s, i, worker)
            if s.deaths and s.mode != "closing":
                dead = self.set(s, i, Worker("dead"))._replace(deaths=s.deaths - 1)
                yield from self.report(dead, ("failed", i + 1))

    # The driver.

    def driving(self, s: State) -> Iterator[State]:
        if s.todo:
            yield from self.execute(s._replace(todo=s.todo[1:]), s.todo[0])
        elif not self.brain.is_over[s.past]:
            yield from self.take(s)
        elif any(s.inboxes) or s.running:
            raise ProtocolError("the run is over before its epochs")
        else:
            yield s._replace(mode="closing", stopping=True)

    def draining(self, s: State) -> Iterator[State]:
        if s.todo:
            s, head = s._replace(todo=s.todo[1:]), s.todo[0]
            yield from self.execute(s, head) if isinstance(head, Release) else [s]
        elif s.running:
            yield from self.take(s)
        else:
            yield s._replace(mode="closing")

    def closing(self, s: State) -> Iterator[State]:
        i = s.broken
        if i and s.workers[i - 1].phase not in ("gone", "dead"):
            return  # it is joined before the next is told
        if i == self.depth:
            yield s._replace(mode="ended")
            return
        if s.inboxes[i] and s.workers[i].phase != "dead":
            raise ProtocolError(f"layer {i + 1} never took its command")
        s = s._replace(broken=i + 1, inboxes=swapped(s.inboxes, i, ()))
        yield from self.woken_by_break(s, i)

    def take(self, s: State) -> Iterator[State]:
        if not s.results or not s.awake:
            return
        kind, layer = s.results[0]
        s = s._replace(results=s.results[1:], running=s.running - {layer})
        if kind == "failed":
            yield s._replace(mode="draining", stopping=True, failed=layer)
        elif kind == "stopped":
            yield s
        else:
            store = s.stores[layer]
            version = self.brain.pasts[s.past].done[layer - 1] + 1
            s = self.put_store(s, layer, store._replace(held=(*store.held, (version, -1))))
            past, todo = self.brain.finished(s.past, layer, kind == "learned enough")
            yield s._replace(past=past, todo=todo)

    def execute(self, s: State, command: Command) -> Iterator[State]:
        if isinstance(command, Release):
            yield self.forget(s, command.layer, command.version)
            return
        i = command.layer - 1
        inboxes = swapped(s.inboxes, i, (*s.inboxes[i], command))
        s = s._replace(inboxes=inboxes, running=s.running | {command.layer})
        yield from self.woken_by_put(s, i)

    # The workers.

    def woken(self, s: State, i: int, worker: Worker) -> Iterator[State]:
        if s.inboxes[i]:
            command, *rest = s.inboxes[i]
            s = s._replace(inboxes=swapped(s.inboxes, i, tuple(rest)))
            yield self.set(s, i, Worker("opening" if i else "training", command))
        else:
            yield self.set(s, i, Worker("gone" if i < s.broken else "asleep"))

    def opening(self, s: State, i: int, worker: Worker) -> Iterator[State]:
        command = worker.command
        if (made := self.buffer_of(s, i, command.reads)) >= 0:
            yield self.set(s, i, worker._replace(phase="training", buffer=made))
        else:
            source = self.buffer_of(s, i - 1, command.below_reads) if i > 1 else -1
            if i > 1 and source < 0:
                raise ProtocolError("read before it was computed")
            yield self.set(s, i, worker._replace(phase="buffering", source=source))

    def buffering(self, s: State, i: int, worker: Worker) -> Iterator[State]:
        store, content = s.stores[i], (worker.command.reads, False)
        if store.spare:
            buffer = store.spare[-1]
            contents = swapped(store.contents, buffer, content)
            store = store._replace(contents=contents, spare=store.spare[:-1])
        else:
            buffer = len(store.contents)
            if buffer == MAX_BUFFERS:
                raise ProtocolError(f"layer {i} needs more than {MAX_BUFFERS} buffers")
            store = store._replace(contents=(*store.contents, content))
        s = self.put_store(s, i, store)
        yield self.set(s, i, worker._replace(phase="writing", buffer=buffer))

    def writing(self, s: State, i: int, worker: Worker) -> Iterator[State]:
        if s.stopping:
            yield from self.report(self.set(s, i, Worker()), ("stopped", i + 1))
        command, store = worker.command, s.stores[i]
        if i > 1:
            self.check(s, i - 1, command.below_reads, worker.source, whole=True)
        if self.buffer_of(s, i, command.reads) >= 0:
            raise ProtocolError("made twice")
        self.check(s, i, command.reads, worker.buffer, whole=False)
        contents = swapped(store.contents, worker.buffer, (command.reads, True))
        held = tuple((v, worker.buffer if v == command.reads else b) for v, b in store.held)
        s = self.put_store(s, i, store._replace(held=held, contents=contents))
        yield self.set(s, i, worker._replace(phase="training", source=-1))

    def training(self, s: State, i: int, worker: Worker) -> Iterator[State]:
        if i > 0:
            self.check(s, i, worker.command.reads, worker.buffer, whole=True)
        waiting = self.set(s, i, Worker())
        if s.stopping:
            yield from self.report(waiting, ("stopped", i + 1))
        yield from self.report(waiting, ("finished", i + 1))
        if s.stops and worker.command.epoch < self.epochs:
            waiting = waiting._replace(stops=s.stops - 1)
            yield from self.report(waiting, ("learned enough", i + 1))

    # What they share.

    def report(self, s: State, message: tuple[str, int]) -> Iterator[State]:
        after = s._replace(results=(*s.results, message))
        yield after
        if not s.results and not s.todo:  # the driver may sleep
            yield self.woken_driver(after._replace(awake=False))

    def woken_driver(self, s: State) -> State:
        return s._replace(awake=True)

    def woken_by_put(self, s: State, i: int) -> Iterator[State]:
        yield from self.woken_from(s, i, "woken")

    def woken_by_break(self, s: State, i: int) -> Iterator[State]:
        yield from self.woken_from(s, i, "woken")

    def woken_from(self, s: State, i: int, sleeper: str) -> Iterator[State]:
        """Yield what a layer is after a change of its inbox, awake or woken up from its sleep."""
        if s.workers[i].phase == "dead":
            yield s
        elif s.workers[i].phase != "waiting":
            raise ProtocolError(f"layer {i + 1} has something to do")
        else:
            yield self.set(s, i, Worker("woken"))
            yield self.set(s, i, Worker(sleeper))

    def forget(self, s: State, layer: int, version: int) -> State:
        buffer, store = self.buffer_of(s, layer, version), s.stores[layer]
        held = tuple(item for item in store.held if item[0] != version)
        store = store._replace(held=held)
        if buffer >= 0:
            contents = swapped(store.contents, buffer, (0, False))
            store = store._replace(contents=contents, spare=(*store.spare, buffer))
        return self.put_store(s, layer, store)

    def set(self, s: State, i: int, worker: Worker) -> State:
        return s._replace(workers=swapped(s.workers, i, worker))

    def put_store(self, s: State, layer: int, store: Store) -> State:
        return s._replace(stores=swapped(s.stores, layer, store))

    def buffer_of(self, s: State, layer: int, version: int) -> int:
        for held, buffer in s.stores[layer].held:
            if held == version:
                return buffer
        raise ProtocolError(f"version {version} of layer {layer} is not held")

    def check(self, s: State, layer: int, version: int, buffer: int, *, whole: bool) -> None:
        """Fail where a buffer in use is not, or no more, all of one version that is held."""
        self.buffer_of(s, layer, version)
        store = s.stores[layer]
        if store.contents[buffer] != (version, whole) or buffer in store.spare:
            raise ProtocolError(f"a mix: {store} was read as version {version} of layer {layer}")


def explore(protocol: Protocol, *, deaths: int = 0, stops: int = 0) -> tuple[int, Counter]:
    """Visit every state; return how many there are and how many runs' ends are of which kind.

    Raises
    ------
    ProtocolError
        On a forbidden move, a deadlock, or a run that may go on for ever.
    """
    first = protocol.start(deaths, stops)
    numbers, queue, ends = {first: 0}, deque([first]), Counter()
    follows: list[list[int]] = []
    while queue:
        state = queue.popleft()
        follows.append([])
        for after in protocol.moves(state):
            if after not in numbers:
                numbers[after] = len(numbers)
                queue.append(after)
            follows[-1].append(numbers[after])
        if state.mode == "ended":
            ends["failed" if state.failed else "complete"] += 1
        elif not follows[-1]:
            raise ProtocolError(f"a deadlock: {state}")
    before = Counter(j for after in follows for j in after)
    free = [0]
    for i in free:  # in an order in which every state comes after all that lead to it
        for j in follows[i]:
            before[j] -= 1
            if not before[j]:
                free.append(j)
    if len(free) < len(numbers):
        raise ProtocolError("a run that never ends")
    return len(numbers), ends


FAULTS = [{}, {"deaths": 1}, {"stops": 1}, {"deaths": 1, "stops": 1}]
# States at the least, with both.
SIZES = {"synchronized": 400_000, "greedy": 6_000, "rounds": 20_000}


@pytest.mark.parametrize("name", SIZES)
def test_no_interleaving_goes_wrong(name):
    counts = [explore(Protocol(name), **faults) for faults in FAULTS]
    states = [count for count, _ in counts]
    assert states[0] < min(states[1:3])
    assert max(states[1:3]) < states[3]
    assert states[3] > SIZES[name]
    for faults, (_, ends) in zip(FAULTS, counts, strict=True):
        assert ends["complete"] > 0
        assert (ends["failed"] > 0) == ("deaths" in faults)
    print(f"{name}: {states} states")


@pytest.mark.parametrize(
    ("faults", "sizes", "least"),
    [
        ({}, {}, 100_000),
        ({"deaths": 1, "stops": 1}, {"depth": 3}, 100_000),
        ({"deaths": 1}, {"epochs": 2}, 50_000),
    ],
)
def test_no_interleaving_of_a_free_run_goes_wrong(faults, sizes, least):
    states, ends = explore(Protocol("free", **sizes), **faults)
    assert states > least
    assert ends["complete"] > 0
    print(f"free, {faults}, {sizes}: {states} states")


class LosesAWakeUp(Protocol):
    def woken_by_put(self, s: State, i: int) -> Iterator[State]:
        yield from self.woken_from(s, i, "asleep")


class NeverReleases(Protocol):
    def woken_by_break(self, s: State, i: int) -> Iterator[State]:
        yield from self.woken_from(s, i, "asleep")


class LeavesTheDriverAsleep(Protocol):
    def woken_driver(self, s: State) -> State:
        return s


class ForgetsTooEarly(Protocol):
    """What an epoch begins to read is forgotten."""

    def execute(self, s: State, command: Command) -> Iterator[State]:
        for after in super().execute(s, command):
            early = isinstance(command, Train) and command.layer > 1
            yield self.forget(after, command.layer - 1, command.reads) if early else after


class ReusesTooEarly(Protocol):
    """A buffer goes back although its version is held, as soon as another version is published."""

    def take(self, s: State) -> Iterator[State]:
        for after in super().take(s):
            for layer, store in enumerate(after.stores):
                if store != s.stores[layer] and store.held[0][1] not in (-1, *store.spare):
                    spare = (*store.spare, store.held[0][1])
                    after = self.put_store(after, layer, store._replace(spare=spare))
            yield after


class HidesADeath(Protocol):
    def report(self, s: State, message: tuple[str, int]) -> Iterator[State]:
        yield from [s] if message[0] == "failed" else super().report(s, message)


class DropsAMessage(Protocol):
    """A worker that is asked to stop leaves without a word."""

    def report(self, s: State, message: tuple[str, int]) -> Iterator[State]:
        yield from [s] if message[0] == "stopped" else super().report(s, message)


class TurnsInCircles(Protocol):
    """A stopped worker takes its command again."""

    def training(self, s: State, i: int, worker: Worker) -> Iterator[State]:
        if s.stopping:
            yield self.set(s, i, worker._replace(phase="opening" if i else "training"))
        else:
            yield from super().training(s, i, worker)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (LosesAWakeUp, "a deadlock"),
        (NeverReleases, "a deadlock"),
        (LeavesTheDriverAsleep, "a deadlock"),
        (ForgetsTooEarly, "version 1 of layer 1 is not held"),
        (ReusesTooEarly, "a mix"),
        (HidesADeath, "a deadlock"),
        (DropsAMessage, "a deadlock"),
        (TurnsInCircles, "a run that never ends"),
    ],
)
def test_a_broken_protocol_is_found_out(broken, message):
    with pytest.raises(ProtocolError, match=message):
        explore(broken("synchronized", depth=3), deaths=1)
    explore(Protocol("synchronized", depth=3), deaths=1)


def test_a_buffer_too_many_is_found_out(monkeypatch):
    monkeypatch.setitem(globals(), "MAX_BUFFERS", 2)
    with pytest.raises(ProtocolError, match="needs more than 2 buffers"):
        explore(Protocol("synchronized"))
