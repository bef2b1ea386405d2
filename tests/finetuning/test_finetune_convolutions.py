"""Fine-tuning of stacks with convolutions on pictures of a bar, which lies or stands somewhere."""

from itertools import count

import numpy as np
import pytest
from barpictures import TEXT, bars, tuned, untrained
from randomconvolutions import convolutional_stack
from randomstacks import normal_stack
from toyclasses import epochs_of

from syncpretrain import load
from syncpretrain.errors import RunInterrupted, SettingsError

STACKS = {
    **dict.fromkeys(("examples", "filters", "hybrid"), TEXT),
    "columns": TEXT.replace("6x3", "6x3/2"),
}
WITHOUT = "finetune_split: got {} for layers without"
ON_DEVICES = "backend: got cupy with replicas or shards"
TOO_MANY = "finetune_shards: got more than the 12 examples"


def wrong(stack, X, y):
    return float((stack.predict(X) != y).mean())


class TestClassification:
    def test_learns_from_random_weights(self, tmp_path):
        (X, y), (new, expected) = bars(240), bars(seed=9)
        events = []
        options = {"epochs": 15, "learning_rate": 0.01, "observers": [events.append]}
        after = tuned(untrained(), X, y, validation=new, validation_y=expected, **options)
        assert wrong(after, new, expected) < 0.05
        errors = [event.validation_error for event in epochs_of(events)]
        assert errors[-1] == pytest.approx(wrong(after, new, expected))
        assert errors[0] > 2 * errors[-1]
        after.save(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(load(tmp_path / "model.safetensors").predict(new), expected)

    def test_the_stack_given_stays_and_the_layers_keep_their_shapes(self):
        stack = convolutional_stack(TEXT)
        before = stack.parameters_sha256
        after = tuned(stack, *bars())
        assert stack.parameters_sha256 == before
        for old, new in zip(stack.layers, after.layers, strict=True):
            assert new.shape == old.shape
            assert not np.array_equal(old.weight, new.weight)
            assert not np.array_equal(old.hidden_bias, new.hidden_bias)
            np.testing.assert_array_equal(old.visible_bias, new.visible_bias)
            assert all(a.flags.c_contiguous and a.base is None for _, a in new.parameters())
        assert after.info["finetune"][0]["split"] == "hybrid"


class TestReconstruction:
    @pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
    def test_lowers_the_error_of_the_unrolled_stack(self, loss):
        X, events = bars()[0], []
        stack = untrained(units="tanh")
        how = {"validation": X, "epochs": 15, "learning_rate": 0.01, "loss": loss}
        after = tuned(stack, X, **how, observers=[events.append])
        errors = [float(((s.reconstruct(X) - X) ** 2).sum() / len(X)) for s in (stack, after)]
        assert errors[1] < 0.5 * errors[0]
        assert epochs_of(events)[-1].validation_error == pytest.approx(errors[1], rel=1e-4)
        assert all(layer.decoder_weight is not None for layer in after.layers)


@pytest.mark.parametrize("supervised", [True, False])
@pytest.mark.parametrize("split", STACKS)
class TestWorkers:
    def given(self, split, supervised):
        X, y = bars()
        return untrained(STACKS[split]), X, y if supervised else None

    def test_any_number_of_them_gives_the_same_bits(self, split, supervised):
        given, how = self.given(split, supervised), {"shards": 4, "split": split}
        how |= {"dropout": 0.2, "input_dropout": 0.1, "weight_decay": 0.01}
        stacks = [tuned(*given, replicas=replicas, **how) for replicas in (1, 2, 4)]
        assert len({stack.parameters_sha256 for stack in stacks}) == 1

    @pytest.mark.parametrize("optimizer", [{}, {"optimizer": "sgd", "momentum": 0.9}])
    def test_a_resumed_run_gives_the_same_bits(self, split, supervised, optimizer):
        settings = {"shards": 2, "replicas": 2, "split": split, "learning_rate": 0.01}
        settings |= optimizer
        given, asked, states = self.given(split, supervised), count(1), []

        def stop():
            return next(asked) > 13  # an epoch has 10

        with pytest.raises(RunInterrupted):
            tuned(*given, stop=stop, save=lambda state, **_: states.append(state()), **settings)
        whole = tuned(*given, **settings)
        for state in states:  # after the first epoch, and in the second
            again = tuned(*given, resume=state, **settings)
            assert again.parameters_sha256 == whole.parameters_sha256
        assert len(states) == 2


@pytest.mark.parametrize(
    ("stack", "given", "message"),
    [
        (normal_stack((64, 8)), {"split": "filters"}, WITHOUT.format("filters")),
        (normal_stack((64, 8)), {"split": "hybrid"}, WITHOUT.format("hybrid")),
        (untrained(), {"backend": "cupy", "shards": 2}, ON_DEVICES),
        (untrained(), {"split": "examples", "shards": 13}, TOO_MANY),
        (untrained(), {"split": "hybrid", "shards": 13}, TOO_MANY),
    ],
)
def test_parts_that_there_cannot_be_are_refused(stack, given, message):
    with pytest.raises(SettingsError, match=f"^{message}"):
        tuned(stack, *bars(), **given)


def test_units_of_an_untrained_stack_follow_from_those_below():
    stack = untrained(visible="gaussian")
    assert [layer.visible_units for layer in stack.layers] == ["gaussian"] * 3
    assert {layer.model for layer in stack.layers} == {"autoencoder"}
