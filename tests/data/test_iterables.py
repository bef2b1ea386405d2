"""Examples that an iterable gives, for streamed runs."""

import numpy as np
import pytest
from largerdata import LAYERS, ROWS, STREAM, Blocking, example_rows

from syncpretrain import Minibatches, pretrain
from syncpretrain.data.order import PassOrder
from syncpretrain.errors import DataError, SettingsError, WorkerError


def in_order(X: np.ndarray):
    """Return a function that gives the passes of a run on X in memory."""

    def one_pass(number):
        order = PassOrder(len(X), 32, seed=STREAM["seed"], number=number)
        return (X[order.minibatch(step)] for step in range(-(-len(X) // 32)))

    return one_pass


class Pairs:
    """Like a DataLoader: each iter() begins a pass over examples and labels."""

    def __init__(self, X, size):
        self.arrays = [X[i : i + size] for i in range(0, len(X), size)]

    def __iter__(self):
        return iter([[x, np.zeros(len(x))] for x in self.arrays])


SOME = Pairs(example_rows("float32"), 10)
IN_PROCESSES = "runtime: got processes with an iterable as X"
BY_EPOCHS = "X: got Pairs with handoff epoch, expected an array"
UNKNOWN_UNITS = "visible_units: got auto with an iterable, "


def flawed(number, place, item):
    """Return passes of three arrays, one of which is another thing, or an error that is raised."""
    good = np.full((20, LAYERS[0]), 0.5)

    def one_pass(now):
        for i in range(3):
            found = item if (now, i) == (number, place) else good
            if isinstance(found, Exception):
                raise found
            yield found

    return one_pass


class TestIterable:
    def test_it_trains_like_the_same_rows_in_memory(self):
        X = example_rows("uint8")
        expected = pretrain(X, **STREAM).parameters_sha256
        for n_examples in (None, ROWS):
            source = Minibatches(in_order(X), n_examples=n_examples)
            for workers in (1, 3):
                assert pretrain(source, workers=workers, **STREAM).parameters_sha256 == expected

    @pytest.mark.parametrize("size", [1, 31, 500, ROWS])
    def test_the_sizes_of_its_arrays_do_not_count(self, size):
        X = example_rows("float32")
        options = {**STREAM, "visible_units": "gaussian", "visible_bias": "log-odds"}
        options |= {"learning_rate": 0.01, "validation": X[:50], "delay": 0.5}
        found = pretrain(Pairs(X, size), **options).parameters_sha256
        assert found == pretrain(Pairs(X, 32), **options).parameters_sha256

    def test_what_is_beyond_the_examples_of_a_pass_is_not_asked_for(self):
        def endless(number):
            draws = np.random.default_rng(number)
            while True:
                yield draws.random((10, LAYERS[0]))

        events = []
        pretrain(Minibatches(endless, n_examples=95), observers=[events.append], **STREAM)
        assert events[0].examples == 95

    def test_an_iterator_will_do_where_one_pass_is_enough(self):
        X = example_rows("float32", 100)
        options = {**STREAM, "epochs": 1}
        once = Minibatches(iter([X[:70], X[70:]]), n_examples=100)
        again = Minibatches(Pairs(X, 32), n_examples=100)
        found = pretrain(once, **options).parameters_sha256
        assert found == pretrain(again, **options).parameters_sha256

    @pytest.mark.parametrize(
        ("options", "n_examples", "passes"),
        [
            ({}, 40, "for 2 passes;"),
            ({"epochs": 1}, None, "for 2 passes, one of them for lack of n_examples;"),
            ({"epochs": 1, "delay": 0.5}, 40, "for 2 passes;"),
            ({"epochs": 1, "visible_bias": "log-odds"}, 40, "for 2 passes;"),
            ({"visible_units": "gaussian"}, 40, "for 3 passes;"),
        ],
    )
    def test_one_that_cannot_begin_anew_is_refused(self, options, n_examples, passes):
        read = []
        source = Minibatches((read.append(1) for _ in range(9)), n_examples=n_examples)
        words = f"^X: got generator, which can be read once, {passes}"
        with pytest.raises(DataError, match=words) as end:
            pretrain(source, **{**STREAM, **options})
        assert not read
        measures = {"visible_bias", "visible_units"} & options.keys()
        told = "or 1 epoch a layer with delay=0 and n_examples, which need one pass only"
        assert (told in str(end.value)) is not bool(measures), "standardization reads it once more"

    @pytest.mark.parametrize(
        ("item", "message"),
        [
            (np.ones((3, 7)), r"got shape \(3, 7\), expected \(any number, 30\)"),
            (np.ones(30), r"got shape \(30,\), expected"),
            (np.full((2, 30), np.nan), "got nan at row 0, column 0"),
            (np.full((2, 30), 2.0), "got 2 at row 0, column 0"),
            (np.ones((0, 30)), "got no values"),
            ("text", "got values of type"),
        ],
    )
    def test_what_cannot_be_trained_on_is_named(self, item, message):
        place = "X: array 2 of pass {}, for minibatch 2 of layer 1: "
        options = {**STREAM, "batch_size": 16}
        with pytest.raises(DataError, match=place.format(1) + message):
            pretrain(flawed(1, 1, item), **options)
        with pytest.raises(WorkerError, match=place.format(2) + message) as end:
            pretrain(Minibatches(flawed(2, 1, item), n_examples=60), **options)
        assert end.value.stack is not None

    @pytest.mark.parametrize("runtime", ["serial", "threads"])
    @pytest.mark.parametrize(("after", "place"), [(0, "array 1"), (1, "array 2"), (2, "array 3")])
    def test_what_it_raises_is_told_with_its_place(self, runtime, after, place):
        lost = ConnectionError("no route to host")
        source = Minibatches(flawed(2, after, lost), n_examples=60)
        options = {**STREAM, "batch_size": 16, "runtime": runtime}
        message = f"X: {place} of pass 2.*: the iterable raised ConnectionError: no route to host"
        with pytest.raises(WorkerError, match=message) as end:
            pretrain(source, **options)
        assert end.value.__cause__ is lost
        assert end.value.stack is not None

    @pytest.mark.parametrize("after", [0, 1])
    def test_so_is_what_it_raises_before_training(self, after):
        lost = ConnectionError("no route to host")
        message = rf"^X: array {after + 1} of pass 1, for minibatch {after + 1} of layer 1: the"
        with pytest.raises(DataError, match=message) as end:
            pretrain(flawed(1, after, lost), **{**STREAM, "batch_size": 16})
        assert end.value.__cause__ is lost

    def test_so_is_what_its_function_raises(self):
        def no_pass(number):
            raise FileNotFoundError("x.bin")

        message = "X: array 1 of pass 1, for minibatch 1 of layer 1: .*FileNotFoundError: x.bin"
        with pytest.raises(DataError, match=message):
            pretrain(no_pass, **STREAM)

    def test_a_pass_that_ends_early_is_named(self):
        X = example_rows("float32", 80)
        short = Minibatches(lambda n: [X] if n == 1 else [X[:70]])
        message = "X: pass 2 ended after 70 examples, in minibatch 3 of layer 1, expected 80"
        with pytest.raises(WorkerError, match=message):
            pretrain(short, **STREAM)

    @pytest.mark.parametrize(
        ("X", "options", "error", "message"),
        [
            (lambda n: [], {}, DataError, "X: got no array in the first pass"),
            (lambda n: 5, {}, DataError, "X: got int for pass 1, expected an iterable of arrays"),
            (range(3), {}, DataError, "X: array 1 of pass 1, .*: got shape"),
            ("text", {}, DataError, "X: got values of type"),
            (5, {}, DataError, r"X: got shape \(\)"),
            (
                SOME,
                {"handoff": "epoch"},
                DataError,
                BY_EPOCHS,
            ),
            (
                lambda n: [np.ones((5, 30))],
                {},
                SettingsError,
                "batch_size: got 32, expected at most 5",
            ),
            (
                SOME,
                {"runtime": "processes"},
                SettingsError,
                IN_PROCESSES,
            ),
            (lambda n: [], {"visible_units": "auto"}, SettingsError, UNKNOWN_UNITS),
            (Minibatches(SOME), {"visible_units": "auto"}, SettingsError, UNKNOWN_UNITS),
        ],
    )
    def test_what_cannot_be_trained_on_as_it_is_asked_is_refused(self, X, options, error, message):
        with pytest.raises(error, match=f"^{message}"):
            pretrain(X, **{**STREAM, **options})

    @pytest.mark.parametrize(
        ("source", "n", "message"),
        [
            (5, None, "X: got int, expected an iterable of arrays, or a function"),
            (lambda: [], None, "X: got .*, expected a function of the number of the pass"),
            (lambda a, b: [], None, "X: got .*, expected a function of the number of the pass"),
            *(
                (Pairs, n, f"n_examples: got {n!r}, expected a whole number")
                for n in (1.5, "a", True, 0, -1)
            ),
        ],
    )
    def test_wrong_arguments_are_refused(self, source, n, message):
        with pytest.raises(DataError, match=f"^{message}"):
            Minibatches(source, n_examples=n)


class TestBlocking(Blocking):
    """An iterable that waits for something, such as a socket, when the run is to stop."""
