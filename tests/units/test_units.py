"""The table of the kinds of units: each record is consistent, and all that asks it agrees."""

import math
from typing import get_args

import numpy as np
import pytest
from backends import backend_of
from densechains import make_chain
from minibatches import place
from unitkinds import INPUT_UNITS, KINDS, LOG_SUMS, MEANS, RBM_UNITS, SLOPES, STATES, UNITS

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.finetuning.network import Network
from syncpretrain.kernels import native
from syncpretrain.kernels.activations import activate, means, times_derivative
from syncpretrain.kernels.backprop import cross_entropy
from syncpretrain.kernels.contrastive_divergence import draw_noise, sample
from syncpretrain.models.layer import DenseLayer
from syncpretrain.models.likelihood import free_energy
from syncpretrain.settings import settings_from
from syncpretrain.settings.fields import Units
from syncpretrain.units.kinds import kind_of

compiled = pytest.mark.skipif(not native.available(), reason="the compiled kernels are not in use")
X = np.linspace(-4, 4, 402)  # without 0, the kink of a rectified unit


class TestRecords:
    def test_every_kind_is_defined_for_the_tests(self):
        assert set(MEANS) == set(KINDS)
        assert set(SLOPES) == set(UNITS)
        assert set(STATES) == set(LOG_SUMS) == set(RBM_UNITS)

    def test_an_unknown_kind_is_refused_with_those_there_are(self):
        with pytest.raises(ValueError, match=r"got units 'cubic'; expected one of bernoulli, gau"):
            kind_of("cubic")

    @pytest.mark.parametrize("name", KINDS)
    def test_a_record_is_whole(self, name):
        kind = kind_of(name)
        assert kind.name == name
        assert kind.lower < kind.upper
        of_states = [kind.noise, kind.sample, kind.log_sum]
        assert all(of_states) or not any(of_states)
        assert kind.sample or not (kind.energy or kind.is_binary)
        assert (name in UNITS) != kind.is_exclusive
        if kind.is_input:
            assert kind.energy, "the visible units of an RBM"
            assert not kind.is_bounded or kind.is_unit_interval, "what is checked of examples"

    @pytest.mark.parametrize("name", UNITS)
    def test_the_layer_above_can_reproduce_the_means(self, name):
        kind, above = kind_of(name), kind_of(kind_of(name).above)
        assert above.lower <= kind.lower < kind.upper <= above.upper
        assert above.bias_of
        assert above.energy or not kind.sample, "in an RBM as well"

    @pytest.mark.parametrize("name", UNITS)
    def test_means_are_in_range_and_rise(self, name):
        kind, a = kind_of(name), X.copy()
        assert activate(a, name) is a
        np.testing.assert_allclose(a, MEANS[name](X), rtol=1e-12)
        assert kind.lower <= a.min() <= a.max() <= kind.upper
        assert (np.diff(a) >= 0).all()
        ends = activate(np.array([-1e4, 1e4]), name)
        for end, limit in zip(ends, (kind.lower, kind.upper), strict=True):
            assert end == pytest.approx(limit) if math.isfinite(limit) else abs(end) >= 1e4

    @pytest.mark.parametrize("name", UNITS)
    def test_derivatives_by_finite_differences(self, name):
        above, below = activate(X + 1e-6, name), activate(X - 1e-6, name)
        slope, a = np.ones_like(X), activate(X.copy(), name)
        kept = a.copy()
        times_derivative(slope, a, name)
        np.testing.assert_array_equal(a, kept)
        np.testing.assert_allclose(slope, (above - below) / 2e-6, atol=1e-8)
        np.testing.assert_allclose(slope, SLOPES[name](a), rtol=1e-12)
        slopes = [np.ones_like(X), np.ones_like(X)]
        for found, means_there in zip(slopes, (above, below), strict=True):
            times_derivative(found, means_there, name)
        curvature = kind_of(name).curvature
        expected = 0 if curvature is None else curvature(np, a) * slope
        np.testing.assert_allclose((slopes[0] - slopes[1]) / 2e-6, expected, atol=1e-8)

    @pytest.mark.parametrize("name", [n for n in UNITS if kind_of(n).bias_of])
    def test_a_bias_is_the_input_of_its_mean(self, name):
        mean = MEANS[name](X)
        bias = kind_of(name).bias_of(np, mean)
        inside = np.abs(bias - X) < 1e-9
        assert inside.sum() > 200
        assert np.isfinite(kind_of(name).bias_of(np, MEANS[name](np.array([-40, 40.0])))).all()

    @pytest.mark.parametrize("name", RBM_UNITS)
    def test_states_are_drawn_as_defined(self, name):
        kind, draws = kind_of(name), np.random.default_rng(7)
        x = np.float32(np.tile([-6, -1.5, -0.2, 0, 0.3, 1, 7], (50_000, 1)))
        noise = draw_noise(draws, name, out=np.empty_like(x))
        expected = STATES[name](np.float64(x), np.float64(noise))
        mean, out = x.copy(), np.empty_like(x)
        assert sample(mean, name, noise, out=out) is out
        np.testing.assert_allclose(mean, MEANS[name](np.float64(x)), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
        assert set(np.unique(out)) == {0, 1} or not kind.is_binary
        if kind.noise == "uniform":
            many = (np.arange(100_000) + 0.5) / 100_000
        else:
            many = np.random.default_rng(8).standard_normal(400_000)
        integrated = STATES[name](np.float64(x[:1]), many[:, None]).mean(axis=0)
        error_bar = out.std(axis=0) / np.sqrt(len(out))
        away = np.abs(out.mean(axis=0, dtype=np.float64) - integrated)
        assert (away < 5 * error_bar + 2e-5).all()

    def test_a_binary_unit_fires_if_the_draw_is_below_its_probability(self):
        x = np.float32([-1e30, 0, 0, 1e30])
        u = np.float32([0, 0.5, 0.4999, 1 - 2**-24])
        out = np.empty_like(x)
        sample(x, "bernoulli", u, out=out)
        assert out.tolist() == [0, 0, 1, 1]  # never at probability 0, always at 1
        assert x.tolist() == [0, 0.5, 0.5, 1]

    @pytest.mark.parametrize("name", RBM_UNITS)
    def test_log_sums_by_enumeration_or_integration(self, name):
        expected, tolerance = LOG_SUMS[name]
        x, b = np.linspace(-9, 9, 50), 0.7
        found = kind_of(name).log_sum(np, x, np.full(50, b))
        np.testing.assert_allclose(found, expected(x, b), atol=tolerance)

    @pytest.mark.parametrize("name", [n for n in KINDS if n not in UNITS])
    def test_what_a_kind_lacks_is_refused(self, name):
        one = np.ones((1, 1), dtype=np.float32)
        with pytest.raises(ValueError, match="expected units whose derivative"):
            times_derivative(one, one.copy(), name)

    @pytest.mark.parametrize("name", sorted(set(KINDS) - set(RBM_UNITS)))
    def test_units_without_states_are_not_drawn(self, name):
        one = np.ones((1, 1), dtype=np.float32)
        with pytest.raises(ValueError, match="expected units that have states"):
            draw_noise(np.random.default_rng(0), name, out=one)
        with pytest.raises(ValueError, match="expected units that have states"):
            sample(one, name, one.copy(), out=one.copy())
        layer = DenseLayer(one, one[0], one[0], None, hidden_units=name)
        with pytest.raises(DataError, match=f"layer: got bernoulli and {name} units, which have"):
            free_energy(layer, one)

    @pytest.mark.parametrize("name", KINDS)
    def test_a_cross_entropy_is_the_loss_of_those_that_have_it(self, name):
        half = np.full((1, 2), 0.5)
        if kind_of(name).loss == "cross-entropy":
            assert cross_entropy(half, half, name) > 0
        else:
            with pytest.raises(ValueError, match="expected units whose loss is the cross-entropy"):
                cross_entropy(half, half, name)


class TestSettings:
    def test_the_choices_are_the_table(self):
        assert get_args(Units) == UNITS

    @pytest.mark.parametrize("name", UNITS)
    @pytest.mark.parametrize("model", ["rbm", "autoencoder"])
    def test_hidden_units(self, name, model):
        if model == "rbm" and name not in RBM_UNITS:
            with pytest.raises(SettingsError, match=f"hidden_units: got {name} with model rbm"):
                settings_from((4, 3), hidden_units=name, model=model)
            return
        found = settings_from((4, 3, 2), hidden_units=name, model=model).pretrain
        assert found.visible_units_of(2) == kind_of(name).above
        assert found.learning_rate == (kind_of(name).learning_rate,) * 2
        assert found.learning_rate[0] <= (0.1 if kind_of(name).is_bounded else 0.001)

    @pytest.mark.parametrize("name", UNITS)
    def test_visible_units(self, name):
        if name in INPUT_UNITS:
            assert settings_from((4, 3), visible_units=name).pretrain.visible_units == name
        else:
            expected = " or ".join(INPUT_UNITS)
            with pytest.raises(SettingsError, match=f"units: got {name}, expected {expected}"):
                settings_from((4, 3), visible_units=name)

    @pytest.mark.parametrize("name", RBM_UNITS)
    def test_a_sparsity_needs_units_that_can_be_off(self, name):
        given = {"hidden_units": name, "sparsity_cost": 0.1}
        if kind_of(name).lower == 0:
            assert settings_from((4, 3), **given)
        else:
            with pytest.raises(SettingsError, match=f"got a cost for {name} hidden units"):
                settings_from((4, 3), **given)

    @pytest.mark.parametrize("name", INPUT_UNITS)
    def test_a_cross_entropy_needs_its_units(self, name):
        given = {"visible_units": name, "model": "autoencoder", "loss": "cross-entropy"}
        if kind_of(name).loss == "cross-entropy":
            assert settings_from((4, 3), **given)
        else:
            with pytest.raises(SettingsError, match=f"loss: got cross-entropy with {name} visible"):
                settings_from((4, 3), **given)


class TestForms:
    """What the C extension and the CUDA source say of themselves."""

    @compiled
    def test_the_extension_numbers_kinds_of_the_table(self):
        numbers = native.extension.UNITS
        assert sorted(numbers.values()) == list(range(len(numbers)))
        assert set(numbers) <= set(UNITS)
        assert set(native.extension.DRAWN) <= {n for n in numbers if kind_of(n).noise == "uniform"}

    @compiled
    @pytest.mark.parametrize("name", UNITS)
    def test_a_kind_without_a_compiled_form_is_computed_as_written(self, name, monkeypatch):
        x = np.float32(np.random.default_rng(3).random((6, 5)))
        target, chain = x[:, :3].copy(), make_chain((name, name), (5, 4, 3), np.float32)
        network = Network(chain, loss="squared", batch_size=6)
        place(network, x, target)
        assert network.program().is_compiled == (name in native.extension.UNITS)
        monkeypatch.delitem(native.extension.UNITS, name, raising=False)
        assert not network.program().is_compiled
        found = means(x.copy(), x[0].copy(), name)
        np.testing.assert_allclose(found, MEANS[name](x + x[0]), rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("name", UNITS)
    def test_a_kind_without_a_form_on_the_device_is_computed_as_written(self, name, monkeypatch):
        double = backend_of("double", monkeypatch)
        numbers = double._kernels.source.units
        assert set(numbers) <= set(UNITS)
        assert sorted(numbers.values()) == list(range(len(numbers)))
        monkeypatch.delitem(numbers, name, raising=False)
        rng = np.random.default_rng(3)
        x, delta = (rng.normal(size=(6, 5)).astype(np.float32) for _ in range(2))
        found, by = double.asarray(x.copy()), double.asarray(delta.copy())
        means(found, double.zeros(5), name)
        a = MEANS[name](np.float64(x))
        np.testing.assert_allclose(double.tohost(found), a, rtol=1e-5, atol=1e-6)
        times_derivative(by, found, name)
        np.testing.assert_allclose(double.tohost(by), delta * SLOPES[name](a), rtol=1e-5, atol=1e-6)
