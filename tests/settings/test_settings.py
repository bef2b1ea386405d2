"""Settings: what is refused and how it is said, one value for all layers, TOML there and back."""

import re
import subprocess
import sys
from typing import Annotated, get_args
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import syncpretrain.settings as package
from syncpretrain.errors import SettingsError
from syncpretrain.settings import read_settings, replaced, settings_from, write_settings
from syncpretrain.settings.fields import LEARNING, Count, Fraction, Frozen, Setting, settings_of

ASYNC_SETTINGS = {"push_every": 2, "fetch_every": 4, "async_rate": "constant", "servers": 2}
ASYNC_SETTINGS |= {"max_staleness": 3, "simulate_staleness": None, "trim_replicas": True}
ASYNC_SETTINGS |= {"delay_compensation": 0.0}
LAYERS = (64, 32, 8)


def others(section, *, without=()):
    """Return a value that is not the default for every setting of a section."""
    usual = {int: 3, float: 0.5, str: "x"}
    return {
        name: not own.default if own.kind is bool else usual.get(own.kind) or get_args(own.kind)[-1]
        for name, own in settings_of(section).items()
        if name not in without
    }


def refused(message):
    return pytest.raises(SettingsError, match=f"^{re.escape(message)}")


class TestMomentum:
    def test_one_number_holds_for_all_epochs(self):
        assert [package.MomentumSchedule("0.9").at(epoch) for epoch in (1, 5, 500)] == [0.9] * 3

    def test_a_stage_ends_after_its_epochs(self):
        schedule = package.MomentumSchedule("0.5:5,0.7:1,0.9")
        assert [schedule.at(epoch) for epoch in (1, 5, 6, 7, 100)] == [0.5, 0.5, 0.7, 0.9, 0.9]

    @pytest.mark.parametrize(
        "text", ["", "x", "0.5:5", "0.5,0.9", "0.5:0,0.9", "0.5:-1,0.9", "1", "-0.1", "nan", "inf"]
    )
    def test_other_texts_are_refused(self, text):
        with pytest.raises(SettingsError, match=r"^momentum: got"):
            package.MomentumSchedule(text)


def test_settings_may_be_made_first_by_several_threads():
    """msgspec 0.22 crashes where two threads are the first to make some of a class at once."""
    code = """
from threading import Barrier, Thread
from syncpretrain.settings import settings_from
start = Barrier(4)
def work():
    start.wait(30)
    settings_from((8, 4))
threads = [Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(30)
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class TestLayers:
    def test_one_value_stands_for_all_layers(self):
        pretrain = settings_from(LAYERS, epochs=3, learning_rate=(0.1, 0.2)).pretrain
        assert (pretrain.epochs, pretrain.learning_rate) == ((3, 3), (0.1, 0.2))
        assert pretrain.refresh_epochs == (1, 1)

    def test_none_takes_the_default(self):
        assert settings_from(LAYERS, epochs=None, momentum=None) == settings_from(LAYERS)

    def test_numpys_numbers_will_do(self):
        found = settings_from(np.array(LAYERS), epochs=np.int64(3), learning_rate=np.float32(0.5))
        assert found == settings_from(LAYERS, epochs=3, learning_rate=0.5)


class TestOneLayer:
    def test_it_has_its_own_values_and_those_of_the_stack(self):
        stack = settings_from(LAYERS, l1=[0.1, 0.2], momentum=["0.5", "0.3:2,0.9"], patience=7)
        first, second = map(stack.pretrain.of_layer, (1, 2))
        assert (first.l1, second.l1) == (0.1, 0.2)
        assert [own.momentum.at(3) for own in (first, second)] == [0.5, 0.9]
        assert first.patience == second.patience == 7

    def test_only_the_input_is_sampled(self):
        stack = settings_from(LAYERS, sample_visible=True).pretrain
        assert [stack.of_layer(n).sample_visible for n in (1, 2)] == [True, False]

    def test_noise_and_loss_suit_the_units_below(self):
        options = {"model": "denoising", "visible_units": "gaussian", "corruption": "gaussian:0.5"}
        layers = map(settings_from(LAYERS, **options).pretrain.of_layer, (1, 2))
        found = [(own.corruption, own.visible_units, own.loss) for own in layers]
        squared, entropy = ("gaussian", "squared"), ("bernoulli", "cross-entropy")
        assert found == [(("gaussian", 0.5), *squared), (("gaussian", 0.5), *entropy)]

    def test_a_name_that_is_no_setting(self):
        with pytest.raises(AttributeError, match="weight_decoy"):
            settings_from(LAYERS).pretrain.of_layer(1).weight_decoy  # noqa: B018 - it is read


class Declared(Frozen, kw_only=True):
    plain: Annotated[Count | None, LEARNING(metavar="K"), "Some units."] = None
    layered: Annotated[tuple[Fraction, ...], LEARNING(each=0.5)]
    derived: bool = False


def test_an_annotation_says_all_of_a_setting():
    assert settings_of(Declared) == {
        "plain": Setting("Learning", metavar="K", text="Some units.", kind=int),
        "layered": Setting("Learning", each=0.5, kind=float, default=0.5),
    }


class TestDefaults:
    @pytest.mark.parametrize(
        ("model", "corruption", "contraction"),
        [
            ("rbm", "none", 0.0),
            ("autoencoder", "none", 0.0),
            ("denoising", "masking:0.25", 0.0),
            ("contractive", "none", 0.1),
        ],
    )
    def test_by_model(self, model, corruption, contraction):
        found = settings_from(LAYERS, model=model).pretrain
        assert found.corruption == (corruption,) * 2
        assert found.contraction == (contraction,) * 2

    def test_what_is_given_goes_before_the_models_default(self):
        found = settings_from(LAYERS, model="denoising", corruption="none").pretrain
        assert found.corruption == ("none", "none")

    @pytest.mark.parametrize(
        ("visible", "hidden", "rates"),
        [
            ("bernoulli", "bernoulli", (0.1, 0.1)),
            ("gaussian", "bernoulli", (0.001, 0.1)),
            ("bernoulli", ("bernoulli", "gaussian"), (0.1, 0.001)),
            ("bernoulli", ("relu", "bernoulli"), (0.001, 0.001)),
            ("gaussian", "relu", (0.001, 0.001)),
        ],
    )
    def test_units_without_a_bound_learn_slowly_above_and_below(self, visible, hidden, rates):
        found = settings_from(LAYERS, visible_units=visible, hidden_units=hidden).pretrain
        assert found.learning_rate == rates
        own = settings_from(LAYERS, visible_units=visible, hidden_units=hidden, learning_rate=0.3)
        assert own.pretrain.learning_rate == (0.3, 0.3)

    def test_visible_units_follow_from_the_layer_below(self):
        found = settings_from((9, 8, 7, 6), hidden_units=["relu", "gaussian", "bernoulli"])
        kinds = [found.pretrain.visible_units_of(layer) for layer in (1, 2, 3)]
        assert kinds == ["bernoulli", "gaussian", "gaussian"]

    @pytest.mark.parametrize(
        "given",
        [
            {"early_stopping": "pseudo-likelihood"},
            {"early_stopping": "pseudo-likelihood", "hidden_units": ("bernoulli", "relu")},
            {"early_stopping": "free-energy-gap", "visible_units": "gaussian"},
            {"early_stopping": "free-energy-gap", "pace": "free", "finish": "first-layer"},
            {"early_stopping": "validation-error", "model": "contractive"},
            {"hidden_units": ["gaussian", "relu"], "sparsity_cost": [0, 0.1]},
            {"model": "autoencoder", "loss": "cross-entropy", "tied": False},
        ],
    )
    def test_what_is_just_permitted(self, given):
        found = settings_from(LAYERS, **given).pretrain
        assert all(getattr(found, n) in (v, tuple(np.atleast_1d(v))) for n, v in given.items())


PSEUDO, GAP = ({"early_stopping": name} for name in ("pseudo-likelihood", "free-energy-gap"))
OTHER_UNITS = "early_stopping: got pseudo-likelihood with visible units that are not bernoulli"
LINEAR_CODE = {"hidden_units": ["bernoulli", "gaussian"], "sparsity_cost": [0, 0.1]}
TUNED_MOMENTUM = {"finetune": {"momentum": 0.9}}
SQUARED_CLASSES = {"objective": "classification", "loss": "squared"}
NUMBERS = {"objective": "regression", "loss": "cross-entropy"}
BY_TIMING = "early_stopping: got a metric with finish first-layer in lockstep"


class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"epochs": "x"}, "epochs: got 'x', expected a whole number"),
            ({"learning_rate": 0}, "learning_rate: got 0, expected a number above 0"),
            ({"schedule": "x"}, "schedule: got 'x', expected synchronized or greedy or rounds"),
            ({"workers": "x"}, "workers: got 'x', expected a whole number"),
            ({"seed": 2**63}, f"seed: got {2**63}, expected a number below 2"),
            ({"momentum": 2}, "momentum: got 2, expected at least 0 and below 1"),
            ({"epochz": 3}, "epochz: there is no such setting in [pretrain]; did you mean epochs?"),
            ({"foo": 3}, "foo: there is no such setting in [pretrain], expected one of layers"),
            ({"lr": 3}, "lr: there is no such setting in [pretrain]; did you mean learning_rate?"),
            ({"data": {"name": 3}}, "name: got 3, expected text"),
            ({"model": "x"}, "model: got 'x', expected rbm or autoencoder or denoising or contr"),
            ({"visible_units": "x"}, "visible_units: got 'x', expected bernoulli or gaussian"),
            ({"visible_units": ["gaussian"]}, "visible_units: got ['gaussian'], expected"),
            ({"hidden_units": [["relu"]]}, "hidden_units: got ['relu'], expected"),
            ({"hidden_units": []}, "hidden_units: got 0 values, expected one for all"),
            ({"momentum": ["0.9"] * 3}, "momentum: got 3 values, expected one for all"),
            ({"momentum": ["0.9", "x"]}, "momentum: got 'x', expected a number, or stages"),
            ({"l1": -1}, "l1: got -1, expected a number of at least 0"),
            ({"cd_steps": 1001}, "cd_steps: got 1001, expected a whole number of at most 1000"),
            ({"persistent": 3}, "persistent: got 3, expected"),
            ({"sparsity_target": 1}, "sparsity_target: got 1, expected a number below 1"),
            ({"sparsity_cost": np.inf}, "sparsity_cost: got inf, expected a finite number"),
            ({"hidden_dropout": 1}, "hidden_dropout: got 1, expected a number below 1"),
            ({"tied": "x"}, "tied: got 'x', expected"),
            ({"patience": 0}, "patience: got 0, expected a whole number of at least 1"),
            ({"visible_bias": "x"}, "visible_bias: got 'x', expected zero or log-odds"),
            ({"corruption": 0.25}, "corruption: got 0.25, expected text"),
            *(
                ({"model": "denoising", "corruption": text}, f"corruption: got {text!r}, expected")
                for text in (
                    *("", "x", "masking", "masking:", "masking:x", "masking:0", "masking:1"),
                    *("masking:nan", "none:0.1", "salt-and-pepper:-1", "gaussian:inf"),
                    "gaussian:0",
                )
            ),
            (LINEAR_CODE, "sparsity_cost: got a cost for gaussian hidden units"),
            ({"early_stopping": "x"}, "early_stopping: got 'x', expected none or"),
            (PSEUDO | {"visible_units": "gaussian"}, OTHER_UNITS),
            (PSEUDO | {"hidden_units": ["relu", "bernoulli"]}, OTHER_UNITS),
            (GAP | {"finish": "first-layer"}, BY_TIMING),
            (GAP | {"finish": "first-layer", "schedule": "rounds"}, BY_TIMING),
            (GAP | {"model": "denoising"}, "early_stopping: got free-energy-gap with model deno"),
            ({"finetune": {"objective": "x"}}, "finetune_objective: got 'x', expected none or"),
            ({"finetune": {"learning_rate": np.inf}}, "finetune_learning_rate: got inf, expected"),
            ({"finetune": {"weight_decay": np.inf}}, "finetune_weight_decay: got inf, expected"),
            (TUNED_MOMENTUM, "finetune_momentum: got momentum with optimizer adam"),
            ({"finetune": SQUARED_CLASSES}, "finetune_loss: got squared for classes"),
            ({"finetune": NUMBERS}, "finetune_loss: got cross-entropy for numbers"),
            ({"layers": ()}, "layers: got nothing, expected two numbers or more"),
            ({"layers": (64, 10**30)}, f"layers: got {10**30} units, expected at most"),
            ({"layers": 64}, "layers: got 64, expected a list"),
            ({"layers": (64, "x")}, "layers: got 'x', expected a whole number"),
        ],
    )
    def test_a_wrong_value_is_named(self, given, message):
        with refused(message):
            settings_from(**{"layers": LAYERS, **given})

    @pytest.mark.parametrize(
        ("model", "name", "value", "got"),
        [
            ("autoencoder", "corruption", ["none", "masking:0.5"], "masking:0.5"),
            ("denoising", "contraction", (0, 0.2), "0.2"),
            ("autoencoder", "persistent", (False, True), "True"),
            ("contractive", "sparsity_cost", 0.5, "0.5"),
            ("autoencoder", "hidden_dropout", 0.5, "0.5"),
            ("denoising", "cd_steps", (1, 3), "3"),
            ("autoencoder", "sparsity_target", 0.2, "0.2"),
        ],
    )
    def test_what_a_model_ignores_is_refused(self, model, name, value, got):
        with refused(f"{name}: got {got} with model {model}, which ignores it"):
            settings_from(LAYERS, model=model, **{name: value})

    def test_a_setting_without_a_default_is_asked_for(self):
        with refused("layers: got nothing, expected a value"):
            package.checked({}, package.PretrainSettings)

    def test_settings_of_one_section_are_named_without_it(self):
        with pytest.raises(SettingsError, match=r"^batch_size: got 0, expected a whole number of"):
            package.checked({"batch_size": 0}, package.FinetuneSettings)


TRAINING = {"epochs": (4, 5), "refresh_epochs": (0, 2), "learning_rate": (0.25, 1e-7)}
TRAINING |= {"batch_size": 7, "momentum": ("0.5:5,0.9", "0"), "weight_decay": (0.0, 1e-5)}
CHAINS = {"persistent": (True, False), "chains": (40, 0), "chain_start": ("data", "noise")}
CHAINS |= {"centred": (False, True), "seed": 2**63 - 1, "precision": "bfloat16"}
WORKERS = {"schedule": "synchronized", "pace": "free", "finish": "first-layer"}
WORKERS |= {"runtime": "serial", "workers": 3, "blas_threads": 2}


class TestFiles:
    @given(
        depth=st.integers(1, 3),
        seed=st.integers(0, 2**63 - 1),
        workers=st.none() | st.integers(1, 64),
        rate=st.floats(1e-6, 10),
        objective=st.sampled_from(["none", "reconstruction"]),
    )
    def test_what_is_written_is_read(self, tmp_path_factory, depth, seed, workers, rate, objective):
        path = tmp_path_factory.mktemp("settings") / "config.toml"
        settings = settings_from(
            [9] * (depth + 1),
            seed=seed,
            workers=workers,
            learning_rate=rate,
            data={"name": "päth/to x.npy", "validation": 0.25},
            finetune={"objective": objective, "learning_rate": rate},
        )
        write_settings(settings, path)
        assert read_settings(path) == settings

    def test_they_are_written_whole_or_not_at_all(self, tmp_path, monkeypatch):
        """Half a config.toml, left by a killed process or machine, could not be resumed."""
        path = tmp_path / "config.toml"
        path.write_text("before")
        monkeypatch.setattr("os.fsync", Mock(side_effect=OSError("disk error")))
        with pytest.raises(OSError, match="disk error"):
            write_settings(settings_from([9, 4]), path)
        assert path.read_text() == "before"

    @pytest.mark.parametrize(
        "pretrain",
        [
            TRAINING | CHAINS | WORKERS,
            {"replicas": (2, 1), "shards": (4, 0), "split": "units"},
            {"sample_input": (False, True)},
        ],
    )
    def test_every_setting_is_read_back(self, tmp_path, pretrain):
        data = others(package.DataSettings) | {"task": "classification"}
        finetune = others(
            package.FinetuneSettings, without={*ASYNC_SETTINGS, "schedule", "runtime"}
        )
        finetune |= {"objective": "classification", "optimizer": "sgd"}
        finetune |= {"products": "blas", "split": "examples"}
        settings = settings_from(LAYERS, data=data, finetune=finetune, **pretrain)
        write_settings(settings, tmp_path / "a")
        found = read_settings(tmp_path / "a")
        assert found == settings
        given = {"data": data, "pretrain": pretrain, "finetune": finetune}
        for section, values in given.items():
            own = getattr(found, section)
            assert {name: getattr(own, name) for name in values} == values

    @pytest.mark.parametrize("own", [{"runtime": "serial", "simulate_staleness": 5}, {}])
    def test_the_settings_of_asynchronous_training_are_read_back(self, tmp_path, own):
        others = {"delay_compensation": 0.5} if own else ASYNC_SETTINGS
        every = {"schedule": "async", "runtime": "processes", **others, **own}
        plain = {"optimizer": "sgd", "objective": "classification"}
        settings = settings_from(LAYERS, momentum="0", finetune=plain | every, **every)
        write_settings(settings, tmp_path / "a")
        found = read_settings(tmp_path / "a")
        assert found == settings
        for name, value in every.items():
            assert getattr(found.pretrain, name) == getattr(found.finetune, name) == value

    def test_a_file_by_hand_may_leave_settings_out(self, tmp_path):
        path = tmp_path / "mine.toml"
        path.write_text("[pretrain]\nlayers = [64, 32, 8]\nepochs = 3\nmomentum = 0.9\n")
        assert read_settings(path) == settings_from(LAYERS, epochs=3, momentum=0.9)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (b"[pretrain\n", "these settings are no TOML"),
            (b"\xff\xfe\x00", "these settings are no TOML"),
            (b"x = " + b"[" * 5000, "these settings are no TOML"),
            (b"", "layers: got nothing"),
            (b"pretrain = 3\n", "layers: got nothing"),
            (b"[pretrain]\nlayers = 64\n", "layers: got 64, expected a list"),
            (b"[pretrain]\nlayers = [64, 8]\nseed = 'a'\n", "seed: got 'a', expected a whole"),
            (b"[pretrain]\nlayers = [64, 8]\nfoo = 1\n", "foo: there is no such setting in [pretr"),
            (b"[other]\n[pretrain]\nlayers = [64, 8]\n", "other: there is no such setting"),
            (b"finetune = 3\n[pretrain]\nlayers = [64, 8]\n", "finetune: got 3, expected a table"),
        ],
    )
    def test_a_damaged_file_is_named(self, tmp_path, text, message):
        path = tmp_path / "config.toml"
        path.write_bytes(text)
        with refused(f"{path}: {message}"):
            read_settings(path)

    def test_a_missing_file_is_named(self, tmp_path):
        path = tmp_path / "config.toml"
        with pytest.raises(SettingsError, match="cannot read these settings: No such file"):
            read_settings(path)
        with pytest.raises(SettingsError, match=r"directory; expected a file, such as config.toml"):
            read_settings(tmp_path)


class TestReplaced:
    def test_a_section_and_the_whole(self):
        settings = settings_from(LAYERS, epochs=3)
        pretrain = replaced(settings.pretrain, seed=7, epochs=[1, 2])
        assert (pretrain.seed, pretrain.epochs) == (7, (1, 2))
        assert replaced(settings, pretrain=pretrain) == settings_from(LAYERS, epochs=[1, 2], seed=7)
        assert replaced(settings) == settings
        assert settings == settings_from(LAYERS, epochs=3)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"runtime": "bogus"}, "runtime: got 'bogus', expected threads or processes or serial"),
            ({"workers": 0}, "workers: got 0, expected a whole number of at least 1"),
            ({"workers": "2"}, "workers: got '2', expected a whole number"),
            ({"seed": -1}, "seed: got -1"),
            ({"seed": 2**63}, "seed: got"),
            ({"backend": "torch"}, "backend: got 'torch'"),
            ({"epochs": [1]}, "epochs: got 1 values, expected one for all layers or 2"),
            ({"foo": 1}, "foo: there is no such setting, expected one of layers, "),
        ],
    )
    def test_each_value_is_checked(self, changes, message):
        with refused(message):
            replaced(settings_from(LAYERS).pretrain, **changes)


class TestElsewhere:
    def test_a_run_goes_on_with_others(self):
        settings = settings_from(LAYERS)
        found = package.moved_elsewhere(settings, runtime="serial", workers=2, backend="numpy")
        assert found == settings_from(LAYERS, runtime="serial", workers=2, backend="numpy")
        assert package.moved_elsewhere(settings) == settings

    @pytest.mark.parametrize(
        ("elsewhere", "message"),
        [
            ({"runtime": "bogus"}, "runtime: got 'bogus', expected threads"),
            ({"runtime": None}, "runtime: got None, expected "),
            ({"backend": 3}, "backend: got 3, expected text"),
            ({"epochs": [9, 9]}, "epochs: got a value for a run that goes on, which decides it"),
            ({"foo": 1}, "foo: got a value for a run that goes on"),
        ],
    )
    def test_only_what_it_may_and_checked(self, elsewhere, message):
        with refused(message):
            package.moved_elsewhere(settings_from(LAYERS), **elsewhere)
