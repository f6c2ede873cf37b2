"""Log lines, phases of start-up, and the line of statistics."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from engine.observability.logging import REDACTED, LineFormatter, current_request_id, setup
from engine.observability.startup import StartupPhases
from engine.observability.stats import StatsLog
from engine.types.wire import SchedulerStats


@pytest.fixture
def _root_untouched() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def format_line(formatter: LineFormatter, message: str, *args: object, **extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "engine.x", "levelname": "INFO", "msg": message, "args": args, **extra}
    )
    return formatter.format(record)


def test_line_carries_process_logger_and_request() -> None:
    formatter = LineFormatter("core")
    assert format_line(formatter, "hello %s", "you").endswith("INFO    core engine.x hello you")
    assert "core engine.x [r-1] hello" in format_line(formatter, "hello", request_id="r-1")
    token = current_request_id.set("r-2")
    try:
        assert "[r-2]" in format_line(formatter, "hello")
        assert "[r-1]" in format_line(formatter, "hello", request_id="r-1")
    finally:
        current_request_id.reset(token)


def test_secret_is_in_no_message_argument_or_traceback() -> None:
    formatter = LineFormatter("server")
    formatter.hide("sk-abcd")
    formatter.hide("sk-abcd-long")
    try:
        raise ValueError("sk-abcd-long is wrong")
    except ValueError as error:
        trace = (type(error), error, error.__traceback__)
    text = format_line(formatter, "key %s and sk-abcd-long", "sk-abcd", exc_info=trace)
    assert "sk-abcd" not in text
    assert "-long" not in text
    assert text.count(REDACTED) >= 3
    with pytest.raises(ValueError, match="cannot be hidden"):
        formatter.hide("abc")


@pytest.mark.usefixtures("_root_untouched")
def test_setup_twice_logs_once(capfd: pytest.CaptureFixture[str]) -> None:
    setup("debug", "old")
    setup("info", "new")
    logging.getLogger("engine.x").debug("quiet")
    logging.getLogger("engine.x").info("loud")
    text = capfd.readouterr().err
    assert text.count("loud") == 1
    assert " new engine.x loud" in text
    assert "quiet" not in text


def test_phases_are_passed_on_and_timed() -> None:
    times = iter([1.0, 3.0, 3.0, 10.0])
    seen: list[tuple[str, float]] = []
    phases = StartupPhases(lambda phase, fraction: seen.append((phase, fraction)), lambda: next(times))
    for report in (("load_weights", 0.0), ("load_weights", 1.0), ("warm_up", 0.0)):
        phases(*report)
    phases.finish()
    phases.finish()
    assert phases.durations_s == {"load_weights": 2.0, "warm_up": 7.0}
    assert seen == [("load_weights", 0.0), ("load_weights", 1.0), ("warm_up", 0.0)]


def test_statistics_come_once_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = iter([0.0, 4.0, 8.0, 10.0, 12.0, 100.0, 101.0])
    log = StatsLog(10.0, lambda: next(clock))
    stats = SchedulerStats(3, 1, 0.25, 100, 25, 40, 10, 1, 50, 0.01)
    with caplog.at_level(logging.INFO, "engine.observability.stats"):
        for _ in range(4):
            log.record(stats, 20)
        assert len(caplog.messages) == 1
        assert caplog.messages[0] == (
            "running 3, waiting 1, KV cache 25.0 %, computed 15.0 tokens/s, generated 6.0 tokens/s, "
            "prefix hits 25.0 %, preemptions 3"
        )
        log.restart()
        log.record(stats, 20)
        StatsLog(0.0, lambda: 1e9).record(stats, 20)
        assert len(caplog.messages) == 1
