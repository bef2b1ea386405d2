"""What LocalTrainer makes of networks, losses and data, what it says, and what it refuses."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="blocks of PyTorch need it")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchnets import InPlace, Two, convolutional, digest, digest_of, perceptron, rows  # noqa: E402

from syncpretrain.errors import DataError, DivergedError, SettingsError, WorkerError  # noqa: E402
from syncpretrain.events import Notice  # noqa: E402
from syncpretrain.torch import LocalTrainer, block, trainer  # noqa: E402
from syncpretrain.torch.losses import PooledHead, PredSimHead, similarities  # noqa: E402


def trainer_of(network=None, **settings):
    own = {"classes": 3, "runtime": "serial", "workers": 1} | settings
    return LocalTrainer(network or perceptron(), **own)


def fitted(network, X, y=None, weight=None, *, epochs=1, batch_size=30, **settings):
    how = {name: settings.pop(name) for name in ("max_restarts", "resume") if name in settings}
    how |= {"epochs": epochs, "batch_size": batch_size}
    return trainer_of(network, **settings).fit(X, y, weight, **how)


def sgd(rate):
    """Return a function that makes an optimizer, as those of a trainer."""
    return lambda parameters: torch.optim.SGD(parameters, rate)


def test_a_block_begins_with_a_weight_and_takes_what_follows():
    names = [[type(m).__name__ for m in own.children()] for own in block.blocks_of(perceptron())]
    assert names == [
        ["Linear", "BatchNorm1d", "ReLU", "Dropout"],
        ["Linear", "ReLU"],
        ["Shaken", "ReLU"],
        [],
    ]
    flat = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 2))
    assert [len(list(own.children())) for own in block.blocks_of(flat)] == [2, 0]


def test_the_network_learns_and_stays_the_callers():
    X, y = rows(300)
    network = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    own = fitted(network, X, y, epochs=20, optimizer=lambda p: torch.optim.Adam(p, 0.01))
    assert own.model is network
    with torch.no_grad():
        scores = network.eval()(torch.from_numpy(X))
    assert (scores.argmax(1).numpy() == y).mean() > 0.9
    assert isinstance(own.heads[1], nn.Identity), "the last block has the scores of the classes"
    assert own.history.layers[0].train[-1] < own.history.layers[0].train[0]


def test_a_last_block_without_scores_has_a_head_in_the_classifier():
    X, y = rows(60)
    for loss, kind in (("predsim", PredSimHead), ("cross-entropy", PooledHead)):
        own = fitted(perceptron(last=7), X, y, loss=loss)
        assert isinstance(own.heads[-1], kind)
        assert own.classifier(torch.from_numpy(X)).shape == (60, 3)


def test_a_second_call_goes_on():
    X, y = rows(60)
    own = fitted(perceptron(drop=0.0), X, y)
    before, heads = digest(own.model), own.heads
    own.fit(X, y, batch_size=30)
    assert digest(own.model) != before
    assert own.heads == heads
    with pytest.raises(SettingsError, match=r"X: got shape \(5,\), expected \(12,\) as in"):
        own.fit(X[:, :5], y)
    with pytest.raises(SettingsError, match="X: got is_weighted True, expected False as in the f"):
        own.fit(X, y, np.ones(60))


def test_reconstruction_needs_no_targets_and_can_be_fine_tuned():
    X, _ = rows(120)
    network = nn.Sequential(nn.Linear(12, 8), nn.Sigmoid(), nn.Linear(8, 4))
    own = fitted(network, X, loss="reconstruction", noise=0.2, epochs=15, classes=None)
    curve = own.history.layers[0].train
    assert curve[-1] < curve[0]
    code = network.eval()(torch.from_numpy(X))
    assert code.shape == (120, 4)
    code.sum().backward()


def linear(number, below, above):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(above)), 3))


@pytest.mark.parametrize("heads", [linear, None], ids=["own heads", "scores of the last block"])
def test_a_loss_of_ones_own_equals_the_built_in_one(heads):
    own, built_in = (
        fitted(perceptron(), *rows(60), heads=heads, loss=loss)
        for loss in (functional.cross_entropy, "cross-entropy")
    )
    assert digest_of(own) == digest_of(built_in)
    assert heads or isinstance(own.heads[-1], nn.Identity)


@pytest.mark.parametrize("loss", ["predsim", "cross-entropy"])
def test_weights_of_zero_leave_examples_out(loss):
    """Without batch normalization an example only counts by its loss."""

    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))

    X, y = rows(60)
    weight = np.r_[np.ones(40), np.zeros(20)].astype(np.float32)
    own = {"optimizer": sgd(0.1), "loss": loss}
    whole = fitted(network(), X, y, weight, batch_size=60, **own)
    part = fitted(network(), X[:40], y[:40], batch_size=40, **own)
    for a, b in zip(whole.model.parameters(), part.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_validation_without_weights_counts_each_example_once():
    X, y = rows(60)
    own = trainer_of().fit(X, y, np.ones(60), validation=(X, y))
    assert all(len(curve.validation) == 1 for curve in own.history.layers)


def test_similarities_are_cosines_of_centred_rows():
    z = torch.tensor([[1.0, 2.0, 6.0], [3.0, 1.0, 2.0]])
    c = z - z.mean(1, keepdim=True)
    expected = functional.cosine_similarity(c[:1], c[1:])
    torch.testing.assert_close(similarities(z)[0, 1], expected[0])


def test_large_maps_are_averaged_for_the_default_head():
    head = PooledHead((64, 32, 32), 10)
    assert head.linear.in_features == 64 * 8 * 8
    assert head(torch.zeros(2, 64, 32, 32)).shape == (2, 10)


def test_whole_numbers_reach_the_first_block_as_such():
    X = np.random.default_rng(0).integers(50, size=(60, 6))
    own = nn.Sequential(nn.Sequential(nn.Embedding(50, 4), nn.Flatten()), nn.Linear(24, 3))
    fitted(own, X, rows(60)[1])
    with pytest.raises(DataError, match="above 2\\*\\*24"):
        fitted(perceptron(), np.full((60, 12), 1 << 25), rows(60)[1])


def test_arrays_may_be_turned_around():
    X, y = rows(60)
    turned, own = (fitted(perceptron(), given, y) for given in (X[:, ::-1], X[:, ::-1].copy()))
    assert digest(turned.model) == digest(own.model)


class Endless(IterableDataset):
    """A data set without a length."""

    def __iter__(self):
        X, y = rows(50)
        return zip(torch.from_numpy(X), torch.from_numpy(y), strict=True)


def test_a_loader_without_a_length_is_counted():
    loader = DataLoader(Endless(), batch_size=16)
    own = trainer_of(runtime="threads", workers=2).fit(loader, epochs=2)
    assert [len(curve.train) for curve in own.history.layers] == [2] * 4


def test_auto_measures_and_says_what_it_chose(monkeypatch):
    X, y = rows(60)
    messages = []

    def tell(event):
        if isinstance(event, Notice):
            messages.append(event.message)

    monkeypatch.setattr(trainer, "usable_cores", lambda: 2)
    measured = trainer.least_seconds
    for costs, together, workers, gain in (
        ([4.0, 1.0, 1.0, 1.0], 7.0, 2, "at best 1.75"),
        ([4.0, 1.0, 1.0, 1.0], 10.0, 2, "2 threads 1.40"),
        ([4.0, 1.0, 1.0, 1.0], 13.5, 1, "2 threads 1.04"),  # the threads wait for each other
        ([9.0, 0.1, 0.1, 0.1], 9.3, 1, "at best 1.03"),
    ):

        def seconds(copies, enough=0.0, costs=costs, together=together):
            return costs[copies[0][0].learner.layer - 1] if len(copies) == 1 else together

        monkeypatch.setattr(trainer, "least_seconds", seconds)
        LocalTrainer(perceptron(), classes=3, observers=[tell]).fit(X, y)
        found = messages.pop()
        assert found.startswith(f"{workers} worker")
        assert found.endswith(f"; {gain} times one")
    monkeypatch.setattr(trainer, "least_seconds", measured)
    LocalTrainer(perceptron(), classes=3, observers=[tell]).fit(X, y)
    assert " for 4 blocks, measured at " in messages.pop()


def test_measuring_trains_nothing():
    X, y = rows(60)
    whole, measured = (fitted(perceptron(), X, y, workers=n) for n in (1, "auto"))
    auto = LocalTrainer(perceptron(), classes=3).fit(X, y, batch_size=30)
    assert digest(whole.model) == digest(measured.model) == digest(auto.model)


def shared():
    network = perceptron()
    network[4] = nn.Linear(16, 16)
    network[6].linear.weight = network[4].weight
    return network


def sparse():
    return nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(48, 3))


class Stateful(nn.Linear):
    """A module with a state beside its tensors."""

    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state):
        """Take nothing."""


class Turned(nn.Module):
    """A block that returns complex numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12, 8, dtype=torch.complex64))

    def forward(self, x):
        return x.to(torch.complex64) @ self.weight


def alike(between):
    """Return a network with a module between blocks that two of them share."""
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 12), between, nn.Linear(12, 12), between, nn.Linear(12, 3))


def small():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def of_one_memory():
    network = alike(nn.ReLU())
    network[2].weight = nn.Parameter(network[0].weight.data)
    return network


def with_one_dropout(number, below, above):
    return nn.Sequential(MODAL, *linear(number, below, above))


def normalized_first(number, below, above):
    return nn.Sequential(nn.BatchNorm1d(*above), nn.Linear(*above, 3))


class Skipping(nn.Sequential):
    """A sequence that is more than its modules in their order."""

    def forward(self, x):
        return x + super().forward(x)


class Keeping(nn.Linear):
    """A block that keeps what it computed, which cannot be copied then."""

    def forward(self, x):
        self.last = super().forward(x)
        return self.last


PLATEAU = torch.optim.lr_scheduler.ReduceLROnPlateau
MODAL = nn.Dropout(0.5)
ONE_LEFT = {"batch_size": 59, "heads": normalized_first, "loss": "cross-entropy"}
SHARING = {"heads": with_one_dropout, "loss": "cross-entropy"}
OF_A_TENSOR = lambda parameters: torch.optim.Adam(parameters, torch.tensor(1e-3))  # noqa: E731
OTHER = nn.Parameter(torch.zeros(1))  # of no block
WITH_OTHER = lambda parameters: torch.optim.Adam([*parameters, OTHER])  # noqa: E731
OF_OTHER = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([OTHER], 0.1), 1)
FLOAT64 = r"block 1 has torch.float64 on cpu, expected torch.float32 on cpu; take module.float\(\)"
MODULE = nn.Sequential(*(nn.Linear(12, 12) for _ in range(9)))
CASES = [
    (lambda: nn.Linear(12, 3), {}, "got Linear, expected an nn.Sequential"),
    (lambda: nn.Sequential(nn.ReLU()), {}, "no module with a weight"),
    (lambda: nn.Sequential(Two(12, 3)), {}, "block 1 returns tuple, expected one"),
    (shared, {}, "blocks 2 and 3 share a parameter"),
    (of_one_memory, {}, "model: blocks 1 and 2 share a parameter or buffer; blocks train apart"),
    (lambda: alike(nn.Dropout(0.3)), {}, "model: blocks 1 and 2 share a module with modes; blocks"),
    (lambda: alike(nn.RReLU()), {}, "model: blocks 1 and 2 share a module with modes"),
    (lambda: alike(InPlace(12, 12)), {}, "model: blocks 2 and 4 share a parameter or buffer"),
    (lambda: Skipping(nn.Linear(12, 12)), {}, "got Skipping, expected an nn.Sequential without a"),
    (perceptron, SHARING, "heads: blocks 1 and 2 share a module with modes; blocks train"),
    (perceptron, {"optimizer": OF_A_TENSOR}, "optimizer: got a tensor as lr, expected a number"),
    (lambda: perceptron().double(), {}, FLOAT64),
    (lambda: nn.Sequential(Turned(), nn.Linear(8, 3)), {}, "block 1 returns torch.complex64, .*wr"),
    (lambda: nn.Sequential(nn.Linear(12, 8), nn.Linear(7, 3)), {}, r"block 2 fails on .* \(8,\)"),
    (perceptron, {"heads": lambda *_: nn.Linear(5, 3)}, "the head or the loss of block 1 fails: "),
    (perceptron, {"heads": linear}, "returns one output with loss predsim, expected the sco"),
    (perceptron, {"loss": "infonce"}, "got 'infonce', expected .'cross-entropy', "),
    (perceptron, {"classes": None}, "classes: got None, expected a number with loss predsim"),
    (perceptron, {"loss": lambda h, y: h.sum(), "classes": None}, "heads: got nothing"),
    (perceptron, {"workers": 0}, "workers: got 0, expected auto"),
    (perceptron, {"runtime": "actors"}, "runtime: got 'actors', expected serial or"),
    (perceptron, {"noise": 1.5}, "noise: got 1.5"),
    (perceptron, {"noise": "0.2"}, "noise: got '0.2', expected 0 to below 1"),
    (perceptron, {"clip": "1"}, "clip: got '1', expected a number above 0"),
    (perceptron, {"accumulate": None}, "accumulate: got None, expected a whole number"),
    (perceptron, {"block_threads": True}, "block_threads: got True, expected a whole number"),
    (perceptron, {"epochs": None}, "epochs: got None, expected a whole number"),
    (perceptron, {"precision": torch.int8}, "precision: got torch.int8, expected torch.bfloat16"),
    (perceptron, {"scheduler": 3}, "optimizer: it or the schedule of block 1 fails: TypeError"),
    (perceptron, {"optimizer": lambda p: None}, "block 1 fails: AttributeError: 'NoneType'"),
    (perceptron, {"heads": lambda: None}, "heads: block 1: TypeError: .* 3 were given"),
    (perceptron, {"seed": -1}, "seed: got -1, expected a whole number"),
    (perceptron, {"optimizer": torch.optim.Adam([torch.zeros(1)])}, "optimizer: got .*Adam'>, exp"),
    (
        perceptron,
        {"loss": lambda h, y: h.sum() * np.nan, "heads": lambda *_: nn.Identity()},
        "loss: block 1 has nan before training",
    ),
    (perceptron, {"clip": 0}, "clip: got 0, expected a number above 0"),
    (perceptron, {"accumulate": 0}, "accumulate: got 0, expected a whole number"),
    (sparse, {"accumulate": 2}, "accumulate: got 2 with sparse gradients, expected 1"),
    (lambda: nn.Sequential(nn.LazyLinear(3)), {}, "model: got LazyLinear, expected one that knows"),
    (lambda: nn.Sequential(Stateful(12, 3)), {}, "model: got Stateful with extra state, expected"),
    (lambda: [nn.Linear(12, 3), torch.relu], {}, "model: got builtin.*, expected a module"),
    (perceptron, {"heads": lambda *_: nn.LazyLinear(3)}, "heads: got LazyLinear, expected one"),
    (perceptron, {"precision": "bf16"}, "precision: got 'bf16', expected torch.bfloat16"),
    (perceptron, {"optimizer": "adam"}, "optimizer: got <class 'str'>, expected a function"),
    (perceptron, {"optimizer": torch.optim.LBFGS}, "optimizer: got LBFGS"),
    (perceptron, {"scheduler": PLATEAU}, "optimizer: got ReduceLROnPlateau"),
    (perceptron, {"scheduler": lambda _: OF_OTHER}, "scheduler: got another optimizer in block 1"),
    (perceptron, {"optimizer": WITH_OTHER}, "optimizer: got parameters that are not of block 1"),
    (perceptron, {"heads": lambda *_: None}, "heads: got NoneType, expected a module"),
    (perceptron, {"classes": 2.5}, "classes: got 2.5, expected a whole number"),
    (perceptron, {"block_threads": 0}, "block_threads: got 0, expected a whole number"),
    (perceptron, {"batch_size": 0}, "batch_size: got 0, expected a whole number"),
    (perceptron, {"batch_size": 59}, "the last minibatch has one example; .* more than 1 value"),
    (small, ONE_LEFT, r"the last minibatch has one example; .* head .* more than 1 value"),
    (perceptron, {"scheduler_every": "week"}, "scheduler_every: got 'week'"),
    (perceptron, {"workers": True}, "workers: got True, expected auto, or 1 or more"),
    (perceptron, {"observers": [print, 3]}, "observers: got 3, expected functions of an event"),
    (perceptron, {"max_restarts": -1}, "max_restarts: got -1, expected 0 or more"),
    (perceptron, {"max_restarts": "a"}, "max_restarts: got 'a', expected 0 or more"),
    (perceptron, {"max_restarts": MODULE}, "max_restarts: got Sequential, expected 0"),
    (perceptron, {"resume": 3}, "resume: got 3, expected the path of a folder"),
]
NAMES = "classes clip runtime noise workers seed precision accumulate"  # each in a wrong place
CASES += [(perceptron, {n: MODULE}, f"^{n}: got Sequential, expected ") for n in NAMES.split()]


@pytest.mark.parametrize(("network", "settings", "message"), CASES)
def test_what_cannot_be_trained_is_refused_in_a_sentence(network, settings, message):
    X, y = rows(60)
    with pytest.raises(SettingsError, match=message):
        fitted(network(), X, y, **settings)


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 12), (4, 4)])
def test_a_schedule_by_minibatch_is_stepped_after_each_window(accumulate, steps):
    schedule = {"scheduler_every": "minibatch", "accumulate": accumulate}
    schedule["scheduler"] = lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=steps)
    own = fitted(perceptron(), *rows(60), epochs=2, batch_size=10, **schedule)
    assert {block.scheduler.last_epoch for block in own._blocks} == {steps}


@pytest.mark.parametrize(("every", "steps"), [("minibatch", 18), ("epoch", 3)])
def test_a_schedule_that_ends_too_early_is_refused_before_training(every, steps):
    def one_cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps - 1)

    network, short = perceptron(), {"scheduler": one_cycle, "scheduler_every": every}
    before, how = digest(network), {"epochs": 3 if every == "minibatch" else 4, "batch_size": 10}
    with pytest.raises(SettingsError, match=f"got total_steps {steps - 1} .* expected {steps}"):
        fitted(network, *rows(60), **how, **short)
    assert digest(network) == before
    steps += 1
    fitted(network, *rows(60), **how, **short)


def test_workers_are_measured_on_minibatches_that_are_larger_than_the_batch_size():
    X, y = rows(60)
    own = LocalTrainer(perceptron(), classes=3, workers="auto")
    own.fit([(X[:40], y[:40]), (X[40:], y[40:])], batch_size=8)
    assert len(own.history.layers[0].train) == 1


SHORT = DataLoader(TensorDataset(torch.ones(9, 12)), batch_size=10, drop_last=True)
NO_DATA = [
    (
        lambda X, y: iter([(X, y)]),
        "X: got list_iterator, expected arrays or an iterable of minibatches",
    ),
    (lambda X, y: SHORT.dataset, "X: got TensorDataset, expected arrays or an"),
    (lambda X, y: [(X, y, y, y)], "X: got 4 parts of a minibatch, expected X, y and weights"),
    (lambda X, y: [{"x": X}], "X or y: expected numbers, a row an example"),
    (lambda X, y: [3], "X or y: expected numbers, a row an example"),
    (lambda X, y: X[:0], "X or y: got no rows, expected one or more; give examples"),
    (lambda X, y: [(X[:0], y[:0])], "X or y: got no rows, expected one or more; give examples"),
    (lambda X, y: X.astype(complex), "X: got complex128, expected real numbers; give real and"),
    (lambda X, y: [np.complex64(X)], "X: got complex64, expected real numbers; give real and"),
    (lambda X, y: X.astype(str), "X or y: expected numbers, a row an example"),
    (lambda X, y: torch.from_numpy(X).bfloat16(), "X or y: .* an example .*BFloat16"),
    (lambda X, y: [], "without a minibatch, expected one or more; drop_last"),
    (lambda X, y: SHORT, "without a minibatch, expected one or more; drop_last"),
]


@pytest.mark.parametrize(("make", "message"), NO_DATA)
def test_what_is_no_data_is_refused(make, message):
    own = make(*rows(60))
    with pytest.raises(DataError, match=message):
        fitted(perceptron(), own, rows(60)[1][: len(own)] if hasattr(own, "shape") else None)


def test_targets_that_do_not_fit_are_refused():
    X, y = rows(60)
    with pytest.raises(SettingsError, match="y: got nothing with loss predsim"):
        fitted(perceptron(), X)
    with pytest.raises(DataError, match=r"y: got shape \(40,\), expected \(60,\)"):
        fitted(perceptron(), X, y[:40])
    loader = DataLoader(TensorDataset(torch.from_numpy(X)), batch_size=10)
    with pytest.raises(DataError, match="y: got it with an iterable"):
        fitted(perceptron(), loader, y)


BROKEN = [
    ({"y": rows(60)[1] + 1}, "y: got 1 to 3, expected 0 to 2"),
    ({"y": rows(60)[1] - 100}, "y: got -100 to -98, expected 0 to"),
    ({"y": rows(60)[1][:, None]}, r"y: got torch.int64 of shape \(1,\) an example"),
    ({"y": np.eye(3)[rows(60)[1]]}, r"y: got torch.float32 of shape \(3,\) an"),
    ({"y": rows(60)[1].astype(float)}, r"y: got torch.float32 of shape \(\) an"),
    ({"weight": np.r_[-1.0, np.ones(59)]}, "weight: got -1, expected 0 or more"),
    ({"weight": np.full(60, np.inf)}, "weight: got inf as float32 in row 0, column 0"),
    ({"validation": ()}, "validation: got no examples"),
    ({"validation": (rows(60)[0], rows(60)[1] + 3)}, "validation: y: got 3 to 5"),
    ({"validation": []}, "validation: got no examples"),
    ({"validation": 3}, r"validation: got int, expected \(X, y\) or an iterable of minibatches"),
    ({"validation": (3, 4)}, r"validation: object of type 'int' has no len\(\)"),
    ({"validation": (rows(60)[0],) * 4}, "validation: X: got 4 parts of a minibatch"),
    (
        {"validation": (rows(60)[0], rows(60)[1] + 0.5)},
        r"y: got [0-2]\.5, expected whole numbers as in",
    ),
    ({"validation": (*rows(60), np.ones(60))}, "weight: got it here, expected none as with the fi"),
    ({"weight": np.full(60, "2")}, "weight: got <U1, expected real numbers"),
    ({"weight": [[1]] * 59 + [[1, 2]]}, "weight: expected numbers, a row an example"),
    ({"X": np.where(np.arange(720) == 15, np.nan, 0).reshape(60, 12)}, "nan .* row 1, column 3"),
    ({"X": np.full((60, 12), 1e300)}, "X: got inf as float32 in row 0, column 0"),
]


@pytest.mark.parametrize(("given", "message"), BROKEN)
def test_wrong_numbers_are_refused_before_training(given, message):
    network = perceptron()
    before, (X, y) = digest(network), rows(60)
    with pytest.raises(DataError, match=message):
        trainer_of(network).fit(**{"X": X, "y": y} | given)
    assert digest(network) == before


@pytest.mark.parametrize("draws", [40, 150])
def test_a_sampler_may_draw_another_number_of_rows(draws):
    data = TensorDataset(*map(torch.from_numpy, rows(60)))
    sampler = WeightedRandomSampler(torch.ones(60), draws)
    own = trainer_of().fit(DataLoader(data, batch_size=16, sampler=sampler), epochs=2)
    assert own.model[1].num_batches_tracked == 2 * -(-draws // 16)


def test_the_classifier_is_refused_before_a_call():
    with pytest.raises(SettingsError, match="classifier: the heads are known after"):
        _ = LocalTrainer(perceptron(), classes=3).classifier


def test_a_head_that_changes_its_input_is_refused():
    X, y = rows(60)

    def heads(number, below, above):
        return InPlace(16, 3) if number == 1 else linear(number, below, above)

    with pytest.raises(WorkerError, match="head of block 1 changes its input in place"):
        fitted(perceptron(drop=0.0), X, y, heads=heads, loss="cross-entropy")


def test_a_block_of_the_script_itself_is_refused_for_processes(monkeypatch):
    monkeypatch.setattr(Two, "__module__", "__main__")
    parts = {"modules": nn.Sequential(perceptron(), Two(12, 12)), "head": nn.Identity()}
    loss = trainer.LocalLoss("predsim")
    own = block.Block(number=1, below=None, above=None, loss=loss, **parts)
    with pytest.raises(SettingsError, match="Two of block 1 is defined in the script"):
        own.__getstate__()


def test_a_block_that_diverges_is_taken_back_and_ends_the_run():
    network = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 3))
    with pytest.raises(DivergedError, match="layer 1 diverged in epoch 4"):
        fitted(network, *rows(60), epochs=9, optimizer=sgd(1e30), loss="cross-entropy")
    assert all(torch.isfinite(p).all() for p in network.parameters())


def test_a_frozen_block_hands_up_and_keeps_its_mode():
    X, y = rows(60, (1, 8, 8))
    network = convolutional()
    for parameter in network[0].parameters():
        parameter.requires_grad_(False)
    before = network[0].weight.clone()
    fitted(network, X, y)
    assert torch.equal(network[0].weight, before)


def test_the_package_imports_pytorch_when_it_is_used():
    code = "import sys, syncpretrain.torch as own; assert 'torch' not in sys.modules; "
    code += "own.LocalTrainer; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_each_call_trains_in_the_modes_of_the_first_and_leaves_those_it_found():
    X, y = rows(60)
    network = perceptron()
    network[3].eval()
    own = fitted(network, X, y)
    assert network[1].num_batches_tracked == 2
    network.eval()
    with torch.inference_mode():
        own.fit(X, y, batch_size=30)
    assert network[1].num_batches_tracked == 4
    assert not any(module.training for module in network.modules())


def test_a_network_in_evaluation_mode_trains_in_training_mode():
    network = perceptron().eval()
    fitted(network, *rows(60))
    assert network[1].num_batches_tracked == 2
    assert not network[1].training


def test_one_place_is_compared_by_its_values():
    z = torch.randn(5, 8, 1, 1)
    torch.testing.assert_close(similarities(z), similarities(z.flatten(1)))


@pytest.mark.parametrize("runtime", ["serial", "threads"])
@pytest.mark.parametrize("loss", ["predsim", "cross-entropy"])
def test_a_minibatch_without_weights_makes_no_step(loss, runtime):
    network = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    before = digest(network)
    own = fitted(network, *rows(60), np.zeros(60), loss=loss, runtime=runtime)
    assert digest(network) == before
    assert [curve.train for curve in own.history.layers] == [[0.0]] * 2
    assert not any(block.optimizer.state for block in own._blocks)


class Tied(nn.Module):
    """A decoder with the weights of its block."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, h):
        return functional.linear(h, self.linear.weight.t())


def test_a_head_may_share_parameters_with_its_block_alone():
    X, loss = rows(60)[0], "reconstruction"
    network = nn.Sequential(nn.Linear(12, 8), nn.Sigmoid())
    own = fitted(network, X, loss=loss, heads=lambda *_: Tied(network[0]))
    assert len(own._blocks[0].optimizer.param_groups[0]["params"]) == 2
    head, network = nn.Linear(12, 12), nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
    with pytest.raises(SettingsError, match="heads: blocks 1 and 2 share a parameter"):
        fitted(network, X, loss=loss, heads=lambda *_: head)


def test_a_block_that_trains_nothing_is_passed_through():
    network = perceptron()
    for parameter in network[-1].parameters():
        parameter.requires_grad_(False)
    before, first = digest(network[-1]), digest(network[0])
    fitted(network, *rows(60), clip=1.0)
    assert digest(network[-1]) == before
    assert digest(network[0]) != first


@pytest.mark.parametrize("between", [nn.ReLU(), nn.Flatten(), nn.Identity()])
def test_blocks_may_share_a_module_without_modes(between):
    X, y = rows(60)
    one, own = (fitted(alike(between), X, y, runtime=r, workers=2) for r in ("serial", "threads"))
    assert digest_of(one) == digest_of(own)


def test_validation_is_a_pair_or_minibatches():
    X, y = rows(60)
    parts = [(X[:25], y[:25]), (X[25:], y[25:])]
    found = []
    for validation in ((X, y), [X, y], parts, tuple(parts)):
        own = trainer_of(small()).fit(X, y, batch_size=30, validation=validation)
        found.append([curve.validation for curve in own.history.layers])
    assert found == found[:1] * 4


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda X, y: (X, y + 0.5), r"y: got [0-2]\.5, expected whole numb"),
        (lambda X, y: (X, y, np.ones(30)), "weight: got it here, expected none"),
    ],
)
def test_later_minibatches_are_of_the_kind_of_the_first(second, message):
    X, y = rows(30)
    with pytest.raises(DataError, match=message):
        fitted(perceptron(), [(X, y), second(X, y)])


def test_whole_numbers_stay_whole_and_take_no_noise():
    X, y = np.arange(360).reshape(30, 12) % 50, rows(30)[1]
    with pytest.raises(SettingsError, match="noise: got it with whole numbers as X"):
        fitted(sparse(), X, y, noise=0.2, optimizer=sgd(0.1))
    with pytest.raises(DataError, match=r"validation: X: got 0\.25, expected whole"):
        trainer_of(sparse(), optimizer=sgd(0.1)).fit(X, y, validation=(X + 0.25, y))


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_the_precision_of_the_caller_changes_no_bit(precision):
    X, y = rows(60)
    how = {"runtime": "threads", "workers": 2, "precision": precision, "epochs": 2}
    alone = fitted(perceptron(), X, y, **how)
    with torch.autocast("cpu", torch.bfloat16):
        inside = fitted(perceptron(), X, y, **how | {"runtime": "serial"})
    assert digest_of(alone) == digest_of(inside)


def weights_alone(parameters):
    return torch.optim.SGD([p for p in parameters if p.dim() > 1], 0.1)


def test_gradients_of_parameters_that_are_not_trained_do_not_add_up():
    """The norm that ``clip`` limits is of all parameters, whoever trains them."""
    X, y = rows(60)
    network = nn.Sequential(nn.Linear(12, 3))
    other = nn.Sequential(nn.Linear(12, 3))
    other.load_state_dict(network.state_dict())
    network[0].bias.grad = torch.full((3,), 1e3)
    how = {"optimizer": weights_alone, "clip": 0.01, "loss": "cross-entropy"}
    fitted(network, X, y, batch_size=60, epochs=3, **how)
    optimizer = weights_alone(list(other.parameters()))
    for _ in range(3):
        other.zero_grad()
        functional.cross_entropy(other(torch.from_numpy(X)), torch.from_numpy(y)).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.01)
        optimizer.step()
    torch.testing.assert_close(network[0].weight, other[0].weight, rtol=1e-5, atol=1e-6)


def warmed_up(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 2))


def to_zero(optimizer):
    return torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=2)


@pytest.mark.parametrize("scheduler", [warmed_up, to_zero])
def test_a_rate_of_0_is_a_rate(scheduler):
    X, y = rows(60)
    network = perceptron()
    before = digest(network)
    how = {"scheduler": scheduler, "scheduler_every": "minibatch", "optimizer": sgd(0.1)}
    own = fitted(network, X, y, epochs=2, **how)
    assert digest(network) != before
    own.fit(X, y, batch_size=30)


class Wrapped(nn.Module):
    """A block around a module that has no length, as compiled ones."""

    class Inner(nn.Linear):
        def __len__(self):
            raise TypeError("Linear does not support len()")

    def __init__(self):
        super().__init__()
        self.inner = Wrapped.Inner(12, 3)

    def forward(self, x):
        return self.inner(x)


def test_modules_inside_are_not_asked_for_their_length():
    fitted(nn.Sequential(Wrapped()), *rows(60))


@pytest.mark.parametrize("of", ["loader", "sampler", "batch_sampler"])
def test_a_generator_of_a_loader_follows_from_the_seed(of):
    data = TensorDataset(*map(torch.from_numpy, rows(60)))
    draws = torch.Generator().manual_seed(3)
    own = RandomSampler(data, generator=draws)
    how = {
        "loader": {"batch_size": 16, "shuffle": True, "generator": draws},
        "sampler": {"batch_size": 16, "sampler": own},
        "batch_sampler": {"batch_sampler": BatchSampler(own, 16, drop_last=False)},
    }[of]
    loader = DataLoader(data, **how)
    first, again = (trainer_of(small()).fit(loader, epochs=2) for _ in range(2))
    assert digest_of(first) == digest_of(again)
    assert digest_of(first) != digest_of(trainer_of(small(), seed=1).fit(loader, epochs=2))


class Around(nn.Module):
    """A head that has modules of its block."""

    def __init__(self, block):
        super().__init__()
        self.block, self.linear = block, nn.Linear(8, 3)

    def forward(self, h):
        return self.linear(h)


def test_a_head_leaves_the_modes_of_its_block():
    network = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8))
    network[1].eval()
    how = {"heads": lambda *_: Around(network).eval(), "loss": "cross-entropy"}
    own = fitted(network, *rows(60), **how)
    own.fit(*rows(60), batch_size=30)
    assert network[1].num_batches_tracked == 0
    assert own.heads[0].linear.training


def test_a_trainer_that_has_trained_is_copied_and_not_pickled():
    X, y = rows(60)
    own = pickle.loads(pickle.dumps(trainer_of(small()))).fit(X, y)
    with pytest.raises(SettingsError, match="pickle: got a trainer that has trained, expected its"):
        pickle.dumps(own)
    copied, before = copy.deepcopy(own), digest(own.model)
    copied.fit(X, y)
    assert digest(own.model) == before != digest(copied.model)


def test_what_cannot_be_copied_to_be_measured_is_named(monkeypatch):
    monkeypatch.setattr(trainer, "usable_cores", lambda: 2)
    X, y = rows(60)
    network = nn.Sequential(Keeping(12, 8), nn.Linear(8, 3))
    own = LocalTrainer(network, classes=3).fit(X, y, batch_size=30)
    with pytest.raises(SettingsError, match="workers: auto cannot copy block 1; give a number: "):
        own.fit(X, y, batch_size=30)


def test_a_parameter_with_a_hook_is_refused_for_processes():
    modules = nn.Linear(12, 3)
    modules.weight.register_hook(torch.neg)
    parts = {"modules": modules, "head": nn.Identity(), "loss": trainer.LocalLoss("predsim")}
    with pytest.raises(SettingsError, match="a parameter of block 1 has a hook, which is not sent"):
        block.Block(number=1, below=None, above=None, **parts).__getstate__()
