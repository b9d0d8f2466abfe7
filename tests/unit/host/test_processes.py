import subprocess
import sys
import textwrap

# A child that ignores SIGTERM and whose own child outlives it, like a hanging engine.
SCRIPT = textwrap.dedent(
    """
    import subprocess, sys, time
    from peagle.host.processes import adopt_orphans, descendants, end_descendants
    adopt_orphans()
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    stubborn = ignore + "; print('up', flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn!r}])"
    child = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    child.stdout.readline()
    child.wait()
    before = len(descendants())
    forced = end_descendants(patience_s=0.5)
    print(before, forced, len(descendants()))
    """
)


def test_an_orphan_that_ignores_the_request_to_end_is_found_and_ended() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["1", "1", "0"]


def test_nothing_is_forced_where_children_end_by_themselves() -> None:
    script = textwrap.dedent(
        """
        import subprocess, sys
        from peagle.host.processes import end_descendants
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
        print(end_descendants(patience_s=10))
        """
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["0"]
