"""Reports of guarded runs, made of the logs of several processes."""

from __future__ import annotations

from pathlib import Path

from aot_capture.report import AUTOTUNE, KERNEL, MODULE, Event, log, read_report


def test_each_lookup_is_counted_once_over_processes(tmp_path: Path):
    path = tmp_path / "log"
    for event in [
        Event(True, KERNEL, "a", "A", 1),
        Event(True, KERNEL, "a", "A", 2),
        Event(False, KERNEL, "module.b", "B", 1),
        Event(True, KERNEL, "b", "B", 2),  # which the first process has compiled
        Event(True, MODULE, "c", "C", 3),
        Event(False, AUTOTUNE, "d", "D", 3),
    ]:
        log(str(path), event)
    with path.open("a") as file:
        file.write('{"hit": false, "what": "ker')  # a killed process
    report = read_report(str(path))
    assert report.processes == 3 and [event.name for event in report.misses] == ["module.b"]
    content = report.as_json()
    assert content["hits"] == {KERNEL: 1, MODULE: 1, AUTOTUNE: 0}
    assert [each["name"] for each in content["misses"] + content["measured"]] == ["module.b", "d"]


def test_a_run_without_a_log_has_no_events(tmp_path: Path):
    assert read_report(str(tmp_path / "none")).events == []
