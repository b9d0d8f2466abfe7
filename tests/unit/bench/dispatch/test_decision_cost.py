from peagle.bench.dispatch.decision_cost import time_decisions


def test_it_times_every_decision_of_a_fleet() -> None:
    times = time_decisions(replicas=20, decisions=50)
    assert (times.replicas, times.decisions) == (20, 50)
    assert 0 < times.cpu_us_p50 <= times.cpu_us_p99
    assert 0 < times.elapsed_us_p50 <= times.elapsed_us_p99
