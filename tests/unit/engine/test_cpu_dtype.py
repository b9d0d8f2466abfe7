"""The default dtype on a CPU, by the flags that Linux reports."""

from pathlib import Path

import pytest

from peagle.engine.cpu_dtype import cpu_dtype


@pytest.mark.parametrize(
    ("line", "dtype"),
    [
        ("flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 amx_tile", "bfloat16"),
        ("flags\t\t: fpu avx512f amx_bf16", "bfloat16"),
        ("flags\t\t: fpu sse2 fma avx2 f16c", "float32"),
        ("flags\t\t: fpu avx512f avx512_vnni", "float32"),
        ("Features\t: fp asimd bf16 i8mm", "bfloat16"),
        ("Features\t: fp asimd", "float32"),
        ("processor\t: 0", "float32"),
    ],
)
def test_bfloat16_is_for_cpus_that_have_instructions_for_it(tmp_path: Path, line: str, dtype: str) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: any\n{line}\n")
    assert cpu_dtype(path) == dtype


def test_without_linux_word_it_is_float32(tmp_path: Path) -> None:
    assert cpu_dtype(tmp_path / "none") == "float32"
