from itertools import product

import numpy as np
import pytest

from syncpretrain.errors import SettingsError
from syncpretrain.rng import Purpose, generator


def words(seed: int, purpose: Purpose, **address: int) -> tuple[int, ...]:
    return tuple(generator(seed, purpose, **address).integers(2**63, size=4).tolist())


def test_a_draw_is_a_function_of_its_address_alone():
    address = {"layer": 3, "epoch": 5, "step": 7}
    expected = generator(11, Purpose.HIDDEN, **address).random(1000)
    np.random.default_rng(0).random(17)  # whatever else is drawn
    other = generator(11, Purpose.HIDDEN, layer=3, epoch=5, step=8)
    other.random(999)
    np.testing.assert_array_equal(generator(11, Purpose.HIDDEN, **address).random(1000), expected)


def test_no_two_addresses_share_their_numbers():
    addresses = product(
        (0, 1, 2**62), Purpose, (0, 1, 2, 255, 256, 1024), (0, 1, 2), (0, 1, 2, 600)
    )
    seen = [
        words(seed, purpose, layer=layer, epoch=epoch, step=step)
        for seed, purpose, layer, epoch, step in addresses
    ]
    assert len(set(seen)) == len(seen)


def test_streams_of_neighbouring_steps_do_not_overlap():
    # A step that began one block into its neighbour's stream would share all but 4 numbers.
    first = generator(0, Purpose.HIDDEN, layer=1, epoch=1, step=0).integers(2**63, size=5000)
    second = generator(0, Purpose.HIDDEN, layer=1, epoch=1, step=1).integers(2**63, size=5000)
    assert not np.intersect1d(first, second).size


@pytest.mark.parametrize("purpose", [Purpose.HIDDEN, Purpose.VISIBLE])
def test_draws_are_uniform(purpose):
    draws = np.concatenate(
        [
            generator(1, purpose, layer=1, epoch=epoch, step=step).random(100, dtype=np.float32)
            for epoch in range(20)
            for step in range(100)
        ]
    )
    n = len(draws)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    chi_squared = ((counts - n / 20) ** 2 / (n / 20)).sum()
    assert chi_squared < 19 + 5 * np.sqrt(2 * 19)


def test_successive_steps_are_uncorrelated():
    first, second = (
        generator(2, Purpose.HIDDEN, layer=1, epoch=1, step=step).random(100_000) for step in (0, 1)
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(100_000)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, None, "0"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(SettingsError, match=r"^seed: got .* expected a whole number from 0 up to"):
        generator(seed, Purpose.SAMPLE)
