"""The speed-ups of four publications beside those of the simulator, with its assumptions.

Layers' times are in proportion to their weights, since the publications give none, and a pass is a
fifth of a step. Where a simulation has a free number, it is fitted to one figure, marked "fitted",
and the others follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from syncpretrain.planning.scaling.curves import Exchange, scaled, serve
from syncpretrain.planning.scaling.job import Job
from syncpretrain.planning.scaling.work import LayerWork, Network
from syncpretrain.settings import settings_from

__all__ = ["SIMULATED", "SLIDES_NODES", "SLIDES_TASKS", "Figure", "rows_of"]

Layers = tuple[int, ...]
JOB = ("replicas", "times", "versions")  # options that are not settings

SANTARA = (784, 1000, 500, 250, 30)
SANTARA_HOURS = {"greedy": "3:14:43", "synchronized": "1:49:11"}
CMU_FOUR = (784, 2000, 2000, 2000, 2000)
CMU_ROWS = 55_000
CMU_TIMES = 2e-11  # seconds of a weight and an example: 5 products at 0.5 TFLOP/s
CMU_LINK = 6e9  # bytes a second of PCI Express 3.0 with eight lanes, through which all GPUs go
# Speed-ups by ranks, two nodes (table 1) and two tasks a node (table 2).
SLIDES_NODES = {
    **{4: (1413, 3.1552), 8: (674, 6.6152), 12: (405, 11.0152), 16: (314, 14.2152)},
    **{20: (318, 14.0152), 24: (342, 13.0152), 28: (428, 10.4152), 32: (741, 6.0152)},
}
SLIDES_TASKS = {
    **{4: (1411, 3.1552), 8: (728, 6.1254), 12: (438, 10.1854), 16: (337, 13.2054)},
    **{20: (337, 13.2054), 24: (365, 12.2054), 28: (474, 9.4054), 32: (856, 5.2054)},
}
YADAN_DAYS = {"2 GPUs, model": 6.6, "2 GPUs, data": 7.0, "4 GPUs, data": 7.2, "4 GPUs, hybrid": 4.8}
YADAN_ONE = 10.5
YADAN_BYTES = 4 * 61e6  # the parameters of that net (Krizhevsky et al. 2012)
YADAN_STEPS = 100 * 1.28e6 / 256  # 100 epochs of ImageNet
DAY = 86_400.0


@dataclass(frozen=True)
class Figure:
    """A published speed-up, or none, beside the simulated one."""

    name: str
    published: float | None
    simulated: float
    note: str = ""

    @property
    def row(self) -> list[str]:
        if self.published is None:
            return [self.name, "", f"{self.simulated:.2f}", "", self.note]
        off = 100 * (self.simulated / self.published - 1)
        return [
            self.name,
            f"{self.published:.2f}",
            f"{self.simulated:.2f}",
            f"{off:+.0f} %",
            self.note,
        ]


def rows_of(paper: str) -> list[list[str]]:
    """Return the rows of a publication's table."""
    return [figure.row for figure in SIMULATED[paper]()]


def works(layers: Layers, *, crowding: float = 0.0, times: float = 1e-9) -> tuple[LayerWork, ...]:
    """Return layers whose steps take ``times`` seconds a weight."""
    return tuple(
        LayerWork(
            step=times * v * h,
            forward=times * v * h / 5,
            crowding=crowding,
            visible=v,
            hidden=h,
            parameters=v * h + v + h,
        )
        for v, h in pairwise(layers)
    )


def speedup(
    layers: Layers,
    devices: int,
    *,
    crowding: float = 0.0,
    rows: int = 50_000,
    network: Network | None = None,
    **options: Any,
) -> float:
    """Return how many times faster than greedy training on one device a job is on several."""
    own = {name: options.pop(name) for name in JOB if name in options}
    times = own.pop("times", 1e-9)
    greedy = {"epochs": options["epochs"], "batch_size": options["batch_size"]}

    def job(stack: dict[str, Any]) -> Job:
        return Job(
            settings=settings_from(layers, workers=1, **stack).pretrain,
            works=works(layers, crowding=crowding, times=times),
            examples=rows,
            network=network or Network(),
            **(own if stack is options else {}),
        )

    return (
        scaled(job(greedy | {"schedule": "greedy"}), 1).seconds
        / scaled(job(options), devices).seconds
    )


def santara() -> list[Figure]:
    """Return the speed-up on four cores; the bound is that of the weights."""
    run: dict[str, Any] = {"epochs": 20, "batch_size": 100, "replicas": (1, 1, 1, 1)}
    as_paper: dict[str, Any] = {
        "pace": "free",
        "refresh_epochs": (0, 5, 20, 40),
        "finish": "first-layer",
    }
    published = seconds(SANTARA_HOURS["greedy"]) / seconds(SANTARA_HOURS["synchronized"])
    return [
        Figure("4 cores, as the paper", published, speedup(SANTARA, 4, **run, **as_paper)),
        Figure("4 cores, lockstep, all drained", None, speedup(SANTARA, 4, **run)),
        Figure("2 cores, lockstep, all drained", None, speedup(SANTARA, 2, **run)),
    ]


def cmu() -> list[Figure]:
    """Return the speed-ups of model and data parallelism on GPUs of one host.

    Each GPU gets the weights of all layers below after every epoch, and computes its input anew.
    With minibatches of 100 what the host does for each counts most, one GPU after the other; it is
    fitted.
    """
    found = []
    for batch, three, four in ((5000, 1.84, 2.1), (100, 1.24, 1.3)):
        crowding, note = 0.0, ""
        if batch == 100:
            crowding = fitted(partial(_cmu, 3, 3, batch), three)
            note = f"each busy GPU slows the others by {100 * crowding:.0f} %"
        for layers, devices, published in ((3, 3, three), (4, 4, four), (4, 3, None), (3, 2, None)):
            name = f"batch {batch}: {layers} layers on {devices}"
            own = "fitted" if batch == 100 and layers == devices == 3 else note
            gain = _cmu(layers, devices, batch, crowding)
            found.append(Figure(name, published, gain, "" if published is None else own))
    shared: dict[str, Any] = {
        "epochs": 40,
        "rows": CMU_ROWS,
        "schedule": "greedy",
        "replicas": (4,) * 4,
    }
    for batch, published in ((5000, 3.5), (100, None)):
        # Each GPU has a minibatch of its own: a step of four is one of four times the examples.
        times, link = CMU_TIMES * 4 * batch, Network(CMU_LINK, all_reduce="star")
        gain = speedup(CMU_FOUR, 4, batch_size=4 * batch, times=times, network=link, **shared)
        found.append(Figure(f"batch {batch}: data parallel on 4", published, gain))
    return found


def _cmu(depth: int, devices: int, batch: int, crowding: float) -> float:
    """Return the speed-up of some layers; a step's time grows with its minibatch."""
    return speedup(
        CMU_FOUR[: depth + 1],
        devices,
        crowding=crowding,
        rows=CMU_ROWS,
        network=Network(CMU_LINK),
        schedule="rounds",
        epochs=60 if batch == 5000 else 30,
        batch_size=batch,
        times=CMU_TIMES * batch,
        versions="parameters",
        replicas=(1,) * depth,
    )


def slides() -> list[Figure]:
    """Return the speed-ups by ranks: an exchange's share of a turn is fitted to four of them.

    The windows with the parameters are at all ranks, as the slides' one-sided messages suggest.
    """
    found = []
    for name, table in (("2 nodes", SLIDES_NODES), ("2 tasks a node", SLIDES_TASKS)):
        first = min(table)
        waits = fitted(partial(_ranks, first), table[first][1], most=4.0)
        for ranks, (_, published) in table.items():
            gain = _ranks(ranks, waits)
            more = gain / published
            note = f"{more:.1f} times the iterations, if they explain it" if ranks > 16 else ""
            note = "fitted" if ranks == first else note
            found.append(Figure(f"{name}: {ranks} ranks", published, gain, note))
    return found


def _ranks(ranks: int, size: float) -> float:
    """Return the speed-up where a turn is a second of computing and two of ``size`` of messages."""
    exchange = Exchange(computing=1.0, size=size, servers=ranks)
    turns = 40 * ranks
    return turns / serve(exchange, workers=ranks, turns=turns, network=Network(1.0)).seconds


def yadan() -> list[Figure]:
    """Return the speed-ups of one net's steps on GPUs that exchange through their host.

    Data parallelism on two is fitted by the host's bandwidth, model parallelism by the share of a
    step that is lost. A hybrid of four exchanges half of the parameters in each pair.
    """
    step = YADAN_ONE * DAY / YADAN_STEPS
    data = {name: YADAN_ONE / days for name, days in YADAN_DAYS.items()}

    def shared(devices: int, bandwidth: float, *, work: float = step, parts: int = 1) -> float:
        sums = Network(bandwidth, all_reduce="star").reduce(YADAN_BYTES / parts, devices)
        return step / (work / devices + parts * sums)

    slowness = fitted(lambda x: shared(2, 1e9 / max(x, 1e-9)), data["2 GPUs, data"])
    bandwidth = 1e9 / slowness
    halves = YADAN_DAYS["2 GPUs, model"] / YADAN_ONE  # of the step, on two
    hybrid = shared(2, bandwidth, work=halves * step, parts=2)
    note = f"fitted: {bandwidth / 1e9:.1f} GB/s through the host"
    return [
        Figure("2 GPUs, model", data["2 GPUs, model"], 1 / halves, "fitted"),
        Figure("2 GPUs, data", data["2 GPUs, data"], shared(2, bandwidth), note),
        Figure("4 GPUs, data", data["4 GPUs, data"], shared(4, bandwidth)),
        Figure("4 GPUs, model and data", data["4 GPUs, hybrid"], hybrid),
    ]


def fitted(speed: Callable[[float], float], published: float, *, most: float = 10.0) -> float:
    """Return the number at which a falling function has a value."""
    low, high = 0.0, most
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if speed(middle) > published else (low, middle)
    return low


def seconds(text: str) -> float:
    """Return the seconds of hours, minutes and seconds."""
    h, m, s = map(int, text.split(":"))
    return 3600.0 * h + 60.0 * m + s


SIMULATED: dict[str, Callable[[], Sequence[Figure]]] = {
    "santara": santara,
    "cmu": cmu,
    "slides": slides,
    "yadan": yadan,
}
