"""Early stopping: when a layer says that it has learned enough, and what a run makes of it."""

from collections.abc import Sequence

import numpy as np
import pytest

from syncpretrain import Stack, pretrain
from syncpretrain.events import EpochFinished, Event, LayerFinished, RunFinished
from syncpretrain.learners.early_stopping import EarlyStopping
from syncpretrain.models.layer import DenseLayer
from syncpretrain.pretraining import build as building
from syncpretrain.schedule.kinds import LayerPlan, lockstep_row, planned_rows
from syncpretrain.settings import settings_from

LAYERS = (16, 12, 8)


def layer(bias: float, units: str = "bernoulli") -> DenseLayer:
    """One visible unit without any weight."""
    none = np.zeros(1, dtype=np.float32)
    return DenseLayer(
        np.zeros((1, 1), dtype=np.float32), none, none + np.float32(bias), None, *2 * [units]
    )


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


def stops_at(
    metric: str, patience: int, biases: Sequence[float], train: np.ndarray, held_out: np.ndarray
) -> int | None:
    """Return the epoch, from 1, after which a layer with these biases stops."""
    stopping = EarlyStopping(metric, patience)
    units = "gaussian" if metric == "validation-error" else "bernoulli"
    for epoch, bias in enumerate(biases, start=1):
        if stopping.stops(layer(bias, units), train, held_out):
            return epoch
    return None


SEQUENCES = [  # losses, patience, the epoch that is the last
    ([5, 4, 3, 2, 1], 1, None),
    ([5, 4, 4.5], 1, 3),
    ([5, 4, 4.5], 2, None),
    ([5, 4, 4.5, 4.2, 4.1], 3, 5),
    ([5, 4, 4.5, 3, 3.5, 3.2], 2, 6),
    ([5, 5], 1, 2),
    ([1, 2, 3, 4], 3, 4),
]
LOSSES = [  # metric, the sign that makes a bias of a loss, the held-out examples
    ("validation-error", 1, 0),  # the reconstruction is the bias: the error is its square
    ("pseudo-likelihood", -1, 1),  # sigmoid(bias) rises as the loss falls
]


class TestMetrics:
    @pytest.mark.parametrize(("metric", "sign", "held_out"), LOSSES)
    @pytest.mark.parametrize(("losses", "patience", "last"), SEQUENCES)
    def test_losses(self, metric, sign, held_out, losses, patience, last):
        biases, rows = [sign * loss for loss in losses], column(*[held_out] * 3)
        assert stops_at(metric, patience, biases, 9 - rows, rows) == last

    @pytest.mark.parametrize(
        ("gaps", "patience", "last"),
        [
            ([5, 4, 3, 2, 1], 1, None),
            ([5, 4, 4.5], 1, 3),
            ([5, 4, 4.5, 4.2, 4.3, 4.4], 2, 6),  # grown twice in a row
            ([1, 2, 1, 2, 1, 2], 2, None),
            ([1, 2, 2, 3, 4], 2, 5),  # what stays is not growing
            ([-3, -2, -1], 1, None),  # held-out examples are the likelier ones
        ],
    )
    def test_free_energy_gap(self, gaps, patience, last):
        """Without weights the free energy is -bias v: the gap is the bias."""
        assert stops_at("free-energy-gap", patience, gaps, column(1, 1), column(0, 0)) == last

    def test_a_gap_that_may_be_chance_stops_nothing(self):
        train, held_out = column(0, 1, 0, 1), column(0, 1, 0, 0)
        gaps = [1, 2, 3, 4, 5]
        assert stops_at("free-energy-gap", 2, gaps, train, held_out) is None
        many = np.tile(train, (200, 1)), np.tile(held_out, (200, 1))
        assert stops_at("free-energy-gap", 2, gaps, *many) == 3


def reads_of(events: list[Event]) -> tuple[tuple[int, ...], ...]:
    finished = [event for event in events if isinstance(event, EpochFinished)]
    return tuple(tuple(e.reads for e in finished if e.layer == layer) for layer in (1, 2))


def run(bits: np.ndarray, **settings) -> tuple[Stack, list[Event]]:
    events: list[Event] = []
    wanted = {"layers": LAYERS, "epochs": 40, "batch_size": 20, "refresh_epochs": 0}
    stack = pretrain(
        bits[:60], validation=bits[60:], observers=[events.append], **(wanted | settings)
    )
    return stack, events


class After(EarlyStopping):
    """Stops from a certain epoch on."""

    def __init__(self, epoch: int) -> None:
        super().__init__("validation-error", 1)
        self._left = epoch

    def stops(self, layer: DenseLayer, train: np.ndarray, held_out: np.ndarray) -> bool:
        self._left -= 1
        return self._left <= 0


@pytest.mark.parametrize("runtime", ["serial", "threads"])
@pytest.mark.parametrize("last", [(9, 2), (3, 9), (4, 1), (1, 1)])
@pytest.mark.parametrize("refresh", [0, 1, 2])
def test_a_run_in_lockstep_reads_as_if_it_had_been_planned_so(
    bits, monkeypatch, runtime, last, refresh
):
    """Newer versions wake a stopped layer for its refreshes."""
    monkeypatch.setattr(building, "build_stopping", lambda _, layer: After(last[layer - 1]))
    stack, events = run(bits, epochs=5, refresh_epochs=refresh, runtime=runtime)
    assert sorted(event.layer for event in events if isinstance(event, LayerFinished)) == [1, 2]
    assert isinstance(events[-1], RunFinished)
    plans = [LayerPlan(min(5, n), refresh) for n in last]
    wanted = tuple(row.reads for row in planned_rows(plans, lockstep_row))
    assert reads_of(events) == wanted
    monkeypatch.undo()
    short = [min(5, n) for n in last]
    planned, _ = run(bits, epochs=short, refresh_epochs=refresh)
    assert stack.parameters_sha256 == planned.parameters_sha256


def test_a_stopped_run_replays(bits):
    settings = {"early_stopping": "pseudo-likelihood", "patience": 1, "learning_rate": 0.5}
    stack, events = run(bits, pace="free", **settings)
    replayed, _ = run(bits, pace="free", replay=reads_of(events), **settings)
    assert replayed.parameters_sha256 == stack.parameters_sha256


def test_layers_stop_by_their_own_account():
    settings = settings_from(LAYERS, early_stopping="free-energy-gap").pretrain
    found = [building.build_stopping(settings, layer) for layer in (1, 2)]
    assert len({id(stopping) for stopping in found} - {id(None)}) == 2
    assert building.build_stopping(settings_from(LAYERS).pretrain, 1) is None
