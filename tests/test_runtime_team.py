"""The team of one layer: every shard once, phases in order, members that come and go."""

import threading
from contextlib import closing

import numpy as np
import pytest

from syncpretrain.runtime import team as module
from syncpretrain.runtime.team import Team

WAIT = 20.0


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("shards", [1, 2, 7])
def test_every_shard_of_every_phase_is_worked_once_and_in_order(most, shards):
    done = np.zeros((4, shards), dtype=int)
    early = []

    def phase(number):
        def work(shard):
            if number and (done[number - 1] != step + 1).any():
                early.append((number, shard))
            done[number, shard] += 1

        return work

    phases = [phase(number) for number in range(4)]
    with closing(Team(most, "test-team")) as team:
        for step in range(200):
            team.run(phases, shards, most)
            assert (done == step + 1).all()
    assert not early, "a phase began before the one below it was done"


def test_members_are_threads_of_their_own_and_gone_at_the_end():
    where = [set() for _ in range(3)]
    together = threading.Barrier(3)

    def phase(shard):
        where[shard].add(threading.current_thread().name)
        together.wait(WAIT)

    with closing(Team(3, "test-team")) as team:
        for _ in range(5):
            team.run([phase], 3, 3)
        assert where[0] == {threading.current_thread().name}
        assert where[1:] == [{"test-team-2"}, {"test-team-3"}]
    assert not [t for t in threading.enumerate() if t.name.startswith("test-team")]


def test_members_come_and_go():
    rng = np.random.default_rng(0)
    with closing(Team(4, "test-team")) as team:
        for members in rng.integers(1, 5, size=500):
            names: set[str] = set()

            def phase(shard):
                names.add(threading.current_thread().name)  # noqa: B023

            team.run([phase, phase], 4, int(members))
            assert len(names) == members


def test_no_more_members_than_shards_or_than_there_are():
    names = set()
    with closing(Team(2, "test-team")) as team:
        team.run([lambda shard: names.add(threading.current_thread().name)], 1, 2)
        assert len(names) == 1
        team.run([lambda shard: names.add(threading.current_thread().name)], 9, 9)
        assert len(names) == 2


def test_a_team_that_was_never_needed_has_no_threads():
    before = threading.active_count()
    with closing(Team(4, "test-team")) as team:
        team.run([lambda shard: None], 8, 1)
        assert threading.active_count() == before


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("where", [0, 2])
def test_a_failure_of_any_member_is_raised_and_ends_the_team(culprit, where):
    worked = []

    def phase(number):
        def work(shard):
            worked.append((number, shard))
            if (number, shard) == (where, culprit):
                raise ZeroDivisionError("in a shard")

        return work

    phases = [phase(number) for number in range(4)]
    with closing(Team(3, "test-team")) as team:
        with pytest.raises(ZeroDivisionError, match="in a shard"):
            team.run(phases, 3, 3)
        assert max(number for number, _ in worked) <= where
        with pytest.raises(ZeroDivisionError):
            team.run(phases, 3, 3)
    assert not [t for t in threading.enumerate() if t.name.startswith("test-team")]


def test_a_member_that_lingered_in_vain_is_woken_again(monkeypatch):
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(module, "SPIN_SECONDS", 0.0)
    counts = [0, 0]

    def phase(shard):
        counts[shard] += 1

    with closing(Team(2, "test-team")) as team:
        for _ in range(300):
            team.run([phase, phase], 2, 2)
    assert counts == [600, 600]


def test_what_overflows_in_a_member_is_no_warning():
    def phase(shard):
        np.exp(np.full(3, 1e3, dtype=np.float32))

    with closing(Team(2, "test-team")) as team, np.errstate(over="ignore"):
        team.run([phase], 2, 2)
