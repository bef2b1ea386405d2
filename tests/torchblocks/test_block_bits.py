"""The bits of a network that is trained block by block, in every runtime and after every end."""

import os
import pickle
import signal
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="blocks of PyTorch need it")

from _links import Link  # noqa: E402
from localranks import local_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torchnets import convolutional, digest, digest_of, perceptron, rows  # noqa: E402

from syncpretrain.data.order import PassOrder  # noqa: E402
from syncpretrain.errors import CheckpointError, RunInterrupted  # noqa: E402
from syncpretrain.events import EpochFinished, Notice  # noqa: E402
from syncpretrain.models.layer import ModuleLayer  # noqa: E402
from syncpretrain.settings.sections import settings_from  # noqa: E402
from syncpretrain.torch import LocalTrainer  # noqa: E402
from syncpretrain.torch import trainer as trainer_module  # noqa: E402
from syncpretrain.torch.learner import ModuleLearner  # noqa: E402
from syncpretrain.torch.trainer import BlockPretraining  # noqa: E402

PLACES = [("threads", 2), ("threads", 3), ("threads", 4), ("processes", 1), ("processes", 3)]


def trained(network, *, runtime="serial", workers=1, data=None, epochs=3, fit=None, **settings):
    shape = (1, 8, 8) if network is convolutional else (12,)
    X, y = data or rows(90, shape)
    validation = None if data is not None else (X[:20], y[:20])
    own = {"classes": 3, "loss": "predsim", "seed": 5} | settings
    trainer = LocalTrainer(network(), runtime=runtime, workers=workers, **own)
    fit = {"epochs": epochs, "batch_size": 32, "validation": validation} | (fit or {})
    return trainer.fit(X, y, **fit)


def adam(parameters):
    return torch.optim.Adam(parameters, 0.003)


def by_steps(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def interrupting(layer, epoch):
    def stop(event):
        if isinstance(event, EpochFinished) and (event.layer, event.epoch) == (layer, epoch):
            os.kill(os.getpid(), signal.SIGINT)

    return stop


def stopped(network, fit, *, at=(1, 2), **settings):
    """Train until a layer has finished an epoch; what is needed to go on is kept by ``resume``."""
    with pytest.raises(RunInterrupted):
        trained(network, fit=fit, observers=[interrupting(*at)], **settings)


class Average(nn.Linear):
    """A block with a buffer that its state has not."""

    def __init__(self):
        super().__init__(12, 8)
        self.register_buffer("mean", torch.zeros(8), persistent=False)

    def forward(self, x):
        h = super().forward(x)
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h - self.mean


def averaging():
    torch.manual_seed(3)
    return nn.Sequential(Average(), nn.Linear(8, 3))


RUNS = [(network, *place) for network, place in product([perceptron, convolutional], PLACES)]
RUNS.append((averaging, "processes", 2))


@pytest.mark.parametrize(("network", "runtime", "workers"), RUNS)
def test_a_runtime_and_a_number_of_workers_change_no_bit(network, runtime, workers):
    whole = trained(network)
    other = trained(network, runtime=runtime, workers=workers)
    assert digest_of(other) == digest_of(whole)
    for found, wanted in zip(other.history.layers, whole.history.layers, strict=True):
        assert (found.train, found.validation) == (wanted.train, wanted.validation)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("network", [perceptron, convolutional])
def test_ranks_change_no_bit(network, ranks):
    whole = trained(network)
    with local_ranks(ranks, Link(bandwidth=2e7, latency=1e-3)) as others:
        other = trained(network, runtime="mpi", workers="auto")
    layers = [ended.value for told in others.told for ended in told]
    assert digest_of(other) == digest_of(whole)
    assert len(layers) == ranks - 1
    for name, array in whole_arrays(whole).items():
        np.testing.assert_array_equal(layers[-1][0].named[name], array)


def deep():
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(8)))


@pytest.mark.parametrize(
    ("runtime", "workers", "waiting"),
    [("serial", 1, 1), ("threads", 2, 1), ("threads", 3, 2), ("processes", 2, 2)],
)
def test_large_outputs_of_many_blocks_wait_one_at_a_time(runtime, workers, waiting, monkeypatch):
    rings = []

    class Noted(BlockPretraining):
        def _stream_size(self, steps):
            rings.append(super()._stream_size(steps).ring)
            return super()._stream_size(steps)

    whole = trained(deep, epochs=2)
    monkeypatch.setattr(trainer_module, "BlockPretraining", Noted)
    monkeypatch.setattr(trainer_module, "RING_BYTES", 1)
    other = trained(deep, epochs=2, runtime=runtime, workers=workers)
    assert rings == [waiting]
    assert digest_of(other) == digest_of(whole)


def whole_arrays(trainer):
    """Return the float32 arrays of the first block, as other ranks are told them."""
    state = trainer.model[0].state_dict()
    return {f"block.0.{name}": own.numpy().reshape(-1) for name, own in state.items()}


OPTIMIZERS = [
    adam,
    lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    lambda p: torch.optim.RMSprop(p, 0.001),
    lambda p: torch.optim.AdamW(p, 0.002, amsgrad=True),
]
SCHEDULERS = [None, by_steps, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9)]


def any_settings(seed):
    """Return a network and settings that follow from a seed."""
    draws = np.random.default_rng(seed)
    settings = {
        "loss": str(draws.choice(["predsim", "cross-entropy", "reconstruction"])),
        "seed": int(seed),
        "optimizer": OPTIMIZERS[draws.integers(4)],
        "scheduler": SCHEDULERS[draws.integers(3)],
        "scheduler_every": str(draws.choice(["epoch", "minibatch"])),
        "clip": [None, 1.0][draws.integers(2)],
        "noise": [0.0, 0.3][draws.integers(2)],
        "precision": [None, torch.bfloat16][draws.integers(2)],
        "accumulate": int(draws.integers(1, 4)),
        "epochs": int(draws.integers(1, 4)),
        "fit": {"batch_size": int(draws.choice([7, 16, 25, 33, 50, 64, 90]))},
    }
    return [perceptron, convolutional][draws.integers(2)], settings


@pytest.mark.parametrize("seed", range(60))
def test_any_settings_have_the_same_bits(seed):
    network, settings = any_settings(seed)
    workers = 1 + seed % 4
    whole = digest_of(trained(network, **settings))
    assert digest_of(trained(network, runtime="threads", workers=workers, **settings)) == whole
    if workers == 4:
        with local_ranks(workers):
            assert digest_of(trained(network, runtime="mpi", **settings)) == whole


def by_hand(blocks, heads, X, y, *, epochs, size, seed, accumulate=1):
    """Train block after block in plain PyTorch, each on what was recorded of the one below."""
    order = [PassOrder(len(X), size, seed=seed, number=n + 1).rows() for n in range(epochs)]
    stream = [
        (torch.from_numpy(X[part]), torch.from_numpy(y[part]))
        for numbers in order
        for part in np.split(numbers, range(size, len(X), size))
    ]
    steps = -(-len(X) // size)
    for block, head in zip(blocks, heads, strict=True):
        optimizer = adam([*block.parameters(), *head.parameters()])
        handed = []
        for first in range(0, len(stream), steps):
            for begin in range(first, first + steps, accumulate):
                part = stream[begin : min(begin + accumulate, first + steps)]
                optimizer.zero_grad()
                for x, target in part:
                    h = block(x)
                    (functional.cross_entropy(head(h), target) / len(part)).backward()
                    handed.append((h.detach(), target))
                optimizer.step()
        stream = handed


@pytest.mark.parametrize("accumulate", [1, 2, 3, 9])
def test_gradients_and_steps_are_those_of_plain_pytorch(accumulate):
    X, y = rows(150)
    torch.manual_seed(0)
    heads = [nn.Linear(16, 3), nn.Linear(16, 3), nn.Identity()]
    torch.manual_seed(1)
    blocks = [
        nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU()),
        nn.Sequential(nn.Linear(16, 16), nn.Tanh()),
        nn.Linear(16, 3),
    ]
    own = nn.Sequential(*blocks)
    states = [{n: t.clone() for n, t in m.state_dict().items()} for m in (own, *heads)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        by_hand(blocks, heads, X, y, epochs=2, size=32, seed=5, accumulate=accumulate)
    finally:
        torch.set_num_threads(threads)
    expected = digest(own, *heads)
    for module, state in zip((own, *heads), states, strict=True):
        module.load_state_dict(state)
    assert digest(own, *heads) != expected
    given = {"loss": "cross-entropy", "optimizer": adam, "accumulate": accumulate}
    given |= {"heads": lambda number, below, above: heads[number - 1]}
    fit = {"batch_size": 32, "validation": None}
    places = {"runtime": "threads", "workers": 2}
    trained(lambda: own, data=(X, y), epochs=2, fit=fit, **places, **given)
    assert digest(own, *heads) == expected


def test_a_call_leaves_pytorch_as_it_was():
    threads, (X, y) = torch.get_num_threads(), rows(90)
    for runtime, workers in (("serial", 1), ("threads", 2)):
        network = perceptron()
        state = torch.get_rng_state()
        LocalTrainer(network, classes=3, runtime=runtime, workers=workers).fit(X, y)
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


PAIRS = [
    (("threads", 3), ("serial", 1)),
    (("serial", 1), ("threads", 2)),
    (("processes", 2), ("threads", 4)),
    (("threads", 2), ("processes", 3)),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_stopped_run_goes_on_with_other_workers(first, second, tmp_path):
    own = {"optimizer": adam, "scheduler": by_steps, "epochs": 6, "clip": 2.0, "accumulate": 2}
    whole, fit = trained(perceptron, **own), {"resume": tmp_path}
    stopped(perceptron, fit, at=(2, 2), runtime=first[0], workers=first[1], **own)
    assert list(tmp_path.iterdir())
    rest = trained(perceptron, runtime=second[0], workers=second[1], fit=fit, **own)
    assert digest_of(rest) == digest_of(whole)
    assert [c.train for c in rest.history.layers] == [c.train for c in whole.history.layers]
    assert not list(tmp_path.iterdir())


def multi_step(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5)


MULTI_STEP = {"optimizer": adam, "scheduler": multi_step}


@pytest.mark.parametrize(("runtime", "workers"), [("threads", 2), ("processes", 2)])
def test_a_second_call_has_the_same_bits(runtime, workers):
    whole, other = (
        trained(perceptron, **MULTI_STEP, runtime=name, workers=n).fit(*rows(90), epochs=2)
        for name, n in (("serial", 1), (runtime, workers))
    )
    assert digest_of(other) == digest_of(whole)


@pytest.mark.parametrize(("runtime", "workers"), [("threads", 2), ("processes", 2)])
def test_a_stopped_call_leaves_its_optimizers(runtime, workers):
    network = perceptron()
    own = {"classes": 3, "optimizer": adam, "runtime": runtime, "workers": workers}
    trainer = LocalTrainer(network, observers=[interrupting(1, 2)], **own)
    with pytest.raises(RunInterrupted):
        trainer.fit(*rows(90), epochs=40, batch_size=32)
    state = trainer._blocks[0].optimizer.state_dict()["state"].values()
    assert state, "the next call goes on with it"
    assert all(own["step"] >= 6 for own in state), "two epochs of three minibatches"


@pytest.mark.parametrize("bytes_left", [0, 5, 100, 20_000, -3])
def test_a_torn_state_is_refused_before_training(tmp_path, bytes_left):
    own = {"epochs": 6, "fit": {"resume": tmp_path}}
    stopped(perceptron, **own)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:bytes_left])
    seen = []
    with pytest.raises(CheckpointError, match=r"cannot be read as a .*; delete the file to"):
        trained(perceptron, observers=[seen.append], **own)
    assert not seen
    path.unlink()
    assert digest_of(trained(perceptron, **own)) == digest_of(trained(perceptron, epochs=6))


class Spectral(nn.Module):
    """A block with complex parameters and real outputs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 8, dtype=torch.complex64))
        self.register_buffer("mean", torch.zeros(8, dtype=torch.complex64))

    def forward(self, x):
        h = x.to(torch.complex64) @ self.weight
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return (h - self.mean).abs()


def spectral():
    torch.manual_seed(3)
    return nn.Sequential(Spectral(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("network", "own"),
    [(averaging, {}), (perceptron, MULTI_STEP), (spectral, {"optimizer": adam, "clip": 1.0})],
    ids=["buffers", "a schedule by the numbers of epochs", "complex parameters"],
)
def test_threads_and_a_resume_have_the_same_bits(network, own, tmp_path):
    own = own | {"epochs": 6}
    whole, fit = digest_of(trained(network, **own)), {"resume": tmp_path}
    assert digest_of(trained(network, runtime="threads", workers=2, **own)) == whole
    stopped(network, fit, at=(2, 2), **own)
    assert digest_of(trained(network, fit=fit, **own)) == whole


@pytest.mark.parametrize("is_given", [False, True])
def test_a_state_of_other_validation_examples_is_refused(tmp_path, is_given):
    X, y = rows(90)
    first = (X[20:40], y[20:40]) if is_given else None
    fit = {"resume": tmp_path, "validation": first}
    stopped(perceptron, fit, epochs=6)
    with pytest.raises(CheckpointError, match="of another call, in which validation was another"):
        trained(perceptron, fit=fit | {"validation": (X[:20], y[:20])}, epochs=6)


def narrower():
    return nn.Sequential(*perceptron()[:4], nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 3))


OTHERS = [
    ({"network": lambda: perceptron()[:6]}, "block 3 was Shaken, Linear, ReLU, and not none;"),
    ({"network": lambda: perceptron()[:5]}, "block 2 was Linear, ReLU, and not Linear;"),
    (
        {"network": narrower},
        r"block 2 was Linear\(in_features=16, out_features=16.*, and not Linear\(.*_features=9, b",
    ),
    (
        {"network": lambda: perceptron(drop=0.3)},
        r"block 1 was Dropout\(p=0.2, inplace=False\), and not Dropout\(p=0.3",
    ),
    ({"loss": "cross-entropy"}, "the loss of block 1 was predsim, and not cross-entropy; give"),
    ({"loss": "reconstruction"}, "the loss of block 1 was predsim, and not reconstruction; give"),
    ({"optimizer": lambda p: torch.optim.AdamW(p, 0.001)}, "optimizer of block 1 was Adam, and"),
    ({"clip": 1.0}, "the clip of block 1 was None, and not 1.0"),
    ({"accumulate": 2}, "the accumulate of block 1 was 1, and not 2"),
    ({"epochs": 5}, r"epochs was \[\d"),
    ({"data": (rows(90)[0], rows(90)[1][::-1])}, "X, y or weight was another"),
]


def test_a_state_of_another_call_is_refused_in_short_words(tmp_path):
    own = {"network": perceptron, "epochs": 6, "fit": {"resume": tmp_path, "validation": None}}
    stopped(**own)
    for other, words in OTHERS:
        with pytest.raises(CheckpointError, match=f"is of another call, in which .*{words}") as e:
            trained(**own | other)
        assert len(str(e.value)) < 350
        assert "\n" not in str(e.value)
    assert digest_of(trained(**own)) == digest_of(trained(perceptron, epochs=6))


class Smooth:
    """A loss without a name of its own."""

    def __call__(self, h, y):
        return functional.cross_entropy(h, y, label_smoothing=0.1)


def test_a_loss_that_another_process_has_elsewhere_goes_on(tmp_path):
    own = {"epochs": 6, "heads": lambda _, below, above: nn.Linear(above[0], 3)}
    own["fit"] = {"resume": tmp_path}
    stopped(perceptron, loss=Smooth(), **own)
    other = Smooth()  # at another address
    first, second = (digest_of(trained(perceptron, loss=other, **own)) for _ in range(2))
    assert first == second


KILLED = """
import os, sys
from torchnets import perceptron, rows
from syncpretrain.events import EpochFinished
from syncpretrain.pretraining import call
from syncpretrain.torch import LocalTrainer
call.SAVE_SECONDS = 0.0

def die(event):
    if isinstance(event, EpochFinished) and (event.layer, event.epoch) == (3, 3):
        os.kill(os.getpid(), 9)

X, y = rows(90)
own = {"runtime": sys.argv[2], "workers": 2, "observers": [die], "seed": 5}
trainer = LocalTrainer(perceptron(), classes=3, loss="predsim", **own)
trainer.fit(X, y, epochs=6, batch_size=32, validation=(X[:20], y[:20]), resume=sys.argv[1])
"""


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_a_killed_run_goes_on_to_the_same_bits(runtime, tmp_path):
    path = os.pathsep.join(filter(None, sys.path))
    died = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), runtime],
        env={**os.environ, "PYTHONPATH": path},
        timeout=100,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir())
    rest = trained(perceptron, runtime="threads", workers=3, epochs=6, fit={"resume": tmp_path})
    assert digest_of(rest) == digest_of(trained(perceptron, epochs=6))


@pytest.mark.parametrize("examples", [90, 600])  # of 600 a state is kept within an epoch
def test_a_killed_process_of_a_block_is_replaced(examples):
    killed, notices = [], []

    def kill(event):
        if isinstance(event, Notice):
            notices.append(event.message)
        if isinstance(event, EpochFinished) and event.layer == 2 and not killed:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
            killed.append(int(children.split()[1]))
            os.kill(killed[0], signal.SIGKILL)

    other = trained(
        perceptron,
        runtime="processes",
        workers=2,
        epochs=12,
        data=rows(examples),
        observers=[kill],
        fit={"max_restarts": 2},
    )
    assert killed
    assert any("a new process goes on" in message for message in notices)
    assert digest_of(other) == digest_of(trained(perceptron, epochs=12, data=rows(examples)))


def test_a_copy_of_a_block_in_training_has_arrays_alone():
    """Tensors would go through a descriptor of their process, which ends with it."""
    own = trained(perceptron)._blocks[0]
    settings = settings_from([12, 16], handoff="minibatch").pretrain.of_layer(1)
    live = ModuleLearner(1, own, settings).current()
    copied = pickle.loads(pickle.dumps(live))
    assert type(copied) is ModuleLayer
    for name, array in live.arrays():
        np.testing.assert_array_equal(copied.named[name], array)


def loaded(runtime, workers, *, observers=(), others=0, **fit):
    X, y = (torch.from_numpy(x) for x in rows(90))
    loader = DataLoader(TensorDataset(X, y), batch_size=32, shuffle=True, num_workers=others)
    own = {"classes": 3, "runtime": runtime, "workers": workers, "observers": observers}
    return LocalTrainer(perceptron(), **own).fit(loader, epochs=4, validation=(X, y), **fit)


def test_a_data_loader_has_the_same_order_in_every_runtime_and_after_a_resume(tmp_path):
    whole = loaded("serial", 1)
    torch.manual_seed(77)
    assert digest_of(loaded("threads", 2)) == digest_of(whole)
    assert digest_of(loaded("processes", 2)) == digest_of(whole)
    with pytest.raises(RunInterrupted):
        loaded("threads", 3, observers=[interrupting(1, 2)], resume=tmp_path)
    assert digest_of(loaded("threads", 2, resume=tmp_path)) == digest_of(whole)


def test_a_data_loader_may_have_processes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on forks, and on more of them than cores
        assert digest_of(loaded("threads", 2, others=1)) == digest_of(loaded("serial", 1))
