from pathlib import Path

from peagle.serve.warm_progress import warming_in, warming_line


def test_what_a_replica_told_last_is_found_among_other_lines(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    told = [f"(ServeReplica pid=7) INFO {warming_line(done, 40)} in 2.0 s" for done in (0, 3)]
    log.write_text("\n".join([told[0], "x" * 100_000, told[1], "(Router pid=8) INFO something else"]))
    assert warming_in(log) == "3 of 40 batches"


def test_without_such_a_line_or_a_log_there_is_nothing(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    assert warming_in(log) is None
    log.write_text("Timed steps")
    assert warming_in(log) is None
