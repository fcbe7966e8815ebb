"""Deferred signals: their handlers run after the block."""

import signal
import threading

import pytest

from tapas.signals import defer_signals


@pytest.fixture(autouse=True)
def _default_ctrl_c_handler():
    """A test run in the background ignores SIGINT; restore Python's handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_handler_runs_after_the_block_and_not_inside_it(number):
    order = []
    before = signal.signal(number, lambda *_: order.append("handler"))
    try:
        with defer_signals():
            signal.raise_signal(number)
            order.append("block")
        assert order == ["block", "handler"]
        signal.raise_signal(number)
        assert order == ["block", "handler", "handler"]
    finally:
        signal.signal(number, before)


def test_ctrl_c_is_raised_once_the_block_is_done():
    done = []

    def interrupted():
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == [True]


def test_a_signal_is_not_lost_when_the_block_raises():
    def failing():
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("a bad file")

    with pytest.raises(KeyboardInterrupt) as caught:
        failing()
    assert isinstance(caught.value.__context__, ValueError)


def test_a_signal_without_a_handler_is_left_alone():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with defer_signals():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_do_not_touch_the_handlers():
    found = []

    def read():
        with defer_signals():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
