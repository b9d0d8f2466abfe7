"""What happens to the other engines' figures if one engine has died."""

from pathlib import Path

from measure_gpu import Measured


def test_a_died_engine_is_reported_with_its_output(tmp_path: Path) -> None:
    engine = Measured("--no-such-option", tmp_path, passes=1)
    try:
        assert not engine.wait_until_ready(float("inf"))
        found = engine.measure(budget_s=1.0)
    finally:
        engine.stop()
    assert found["rows"] == []
    assert found["error"] == "it wrote nothing"
    assert "usage: measured_engine.py" in found["log"]
