"""A log that follows from its inputs, and logs that do not."""

from tests.support.mesh_log import LR, NOON, RUN, Log

from oven_core.protocol.events import Event
from oven_runs.log.replay import replay


def a_run(end: bool = True) -> list[Event]:
    log = Log.running("amy", "bob", alone=(LR,))
    log.propose("amy", 0.5, confidence=0.9)
    log.tick(3)
    log.receipt(log.last)
    log.propose("bob", 900)
    log.propose("bob", 2.0, "grad.clip")
    log.tick(3)
    if end:
        log.end()
    return log.events


def test_a_log_replays_equal_also_from_its_export() -> None:
    for events in (a_run(), [Event.from_line(entry.line()) for entry in a_run()]):
        report = replay(events, RUN)
        assert report.same and report.finished and report.first is None
        assert (report.events, report.decisions, report.adopted, report.equal) == (len(events), 3, 1, 6)
        assert report.by_kind["vote"] == 3 and report.counters["refused.bounds"] == 1


def test_the_first_difference_is_shown_with_both_texts() -> None:
    events = a_run()
    index = next(n for n, entry in enumerate(events) if ".decision." in entry.subject)
    forged = events[index].data.replace(b'"verdict":"adopted"', b'"verdict":"rejected"')
    events[index] = Event.read(events[index].seq, events[index].subject, forged, NOON)
    report = replay(events, RUN)
    assert not report.same and report.different == [events[index].subject]
    assert report.first is not None and report.first.logged == forged.decode()
    assert report.first.computed is not None and '"adopted"' in report.first.computed


def test_an_uncomputed_decision_is_unexpected() -> None:
    events = a_run()
    forged = next(entry.data for entry in events if ".decision." in entry.subject)
    extra = Event.read(events[-1].seq + 1, f"oven.{RUN}.decision.x-00", forged, NOON)
    report = replay([*events, extra], RUN)
    assert report.unexpected == [extra.subject]
    assert report.first is not None and report.first.computed is None


def test_malformed_messages_on_the_meshs_subjects_are_only_counted() -> None:
    events = a_run()
    acknowledgement = Event.read(events[-1].seq + 1, f"oven.{RUN}.decision.x", b'{"stream":"OVEN","seq":7}', NOON)
    report = replay([*events, acknowledgement], RUN)
    assert report.same and report.counters["malformed.decision"] == 1


def test_a_decision_that_is_not_logged_is_missing() -> None:
    events = a_run()
    gone = next(entry for entry in events if ".decision." in entry.subject)
    for cut in (events, a_run(end=False)):
        report = replay([entry for entry in cut if entry.seq != gone.seq], RUN)
        assert report.missing == [gone.subject] and not report.same


def test_at_the_end_of_an_unfinished_log_a_decision_is_pending() -> None:
    events = a_run(end=False)
    last = max(n for n, entry in enumerate(events) if ".decision." in entry.subject)
    report = replay(events[:last], RUN)
    assert report.same and report.pending == [events[last].subject]
