import signal
import threading

import pytest

from syncpretrain.errors import RunInterrupted
from syncpretrain.parallel.signals import interrupted_by_ending, stop_on_signals

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def restored():
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below nohup
    before = [signal.getsignal(signum) for signum in SIGNALS]
    usual = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]
    assert before == usual, "another test left a handler"
    yield
    after = [signal.getsignal(signum) for signum in SIGNALS]
    for signum, handler in zip(SIGNALS, [*before[:2], former], strict=True):
        signal.signal(signum, handler)
    assert after == before


@pytest.mark.parametrize("signum", SIGNALS[:2])
def test_the_first_signal_is_a_request(signum):
    with stop_on_signals() as request:
        assert not request()
        assert request.signum is None
        signal.raise_signal(signum)
        assert request()
        assert request.signum == signum


def test_the_second_one_acts_as_before():
    with stop_on_signals() as request:
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert request.signum == signal.SIGTERM


def test_a_closing_terminal_may_send_its_signal_twice():
    try:
        with stop_on_signals() as request:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
            assert request.signum == signal.SIGHUP
        signal.raise_signal(signal.SIGHUP)  # would end the program
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_between_requests_a_closing_terminal_interrupts_once():
    with interrupted_by_ending():
        with pytest.raises(RunInterrupted) as caught:
            signal.raise_signal(signal.SIGHUP)
        with stop_on_signals() as request:
            signal.raise_signal(signal.SIGHUP)
            assert not request()
    assert caught.value.signum == signal.SIGHUP


def test_handlers_are_restored_after_a_failure():
    with pytest.raises(KeyError), stop_on_signals():
        raise KeyError


def test_a_handler_of_the_callers_own_stays():
    seen = []
    signal.signal(signal.SIGTERM, lambda signum, frame: seen.append(signum))
    try:
        with stop_on_signals() as request:
            signal.raise_signal(signal.SIGTERM)
            assert not request()
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_nested_the_inner_one_leaves_the_signals_to_the_outer():
    with stop_on_signals() as outer, stop_on_signals() as inner:
        signal.raise_signal(signal.SIGINT)
        assert outer()
        assert not inner()


def test_outside_the_main_thread_nothing_is_installed():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def elsewhere():
        with stop_on_signals() as request:
            seen.append((signal.getsignal(signal.SIGINT), request()))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(20)
    assert seen == [(before, False)]
