#!/bin/sh
# Make /srv/peagle from the repository in the working folder: environment.sh ENGINE PYTHON CONSTRAINTS
set -eu
engine=$1 python=$2 constraints=$3
uv_version=0.13.9 cyclonedx_version=7.5.0
images=$(dirname "$0")

# pip and uv would otherwise each bring their own certificates.
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
export UV_FIND_LINKS="${UV_FIND_LINKS:-$images/local}" UV_CACHE_DIR=/uv-cache UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never

# uv comes from the package index, so that the build needs no second image.
"$python" -m venv /uv
/uv/bin/python -m pip install --quiet --disable-pip-version-check --find-links "$UV_FIND_LINKS" \
    ${UV_DEFAULT_INDEX:+--index-url "$UV_DEFAULT_INDEX"} "uv==$uv_version"
uv=/uv/bin/uv

# In this folder uv finds the overrides and exclusions of pyproject.toml.
$uv venv --python "$python" /srv/peagle/venv
$uv pip install --python /srv/peagle/venv/bin/python --compile-bytecode --constraint "$constraints" \
    ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} ".[$engine,kubernetes]"

# Written here, where the package index is at hand. It lists the Python packages; scanners such as syft find Debian's.
$uv tool run --from "cyclonedx-bom==$cyclonedx_version" cyclonedx-py environment --output-reproducible \
    --output-file /srv/peagle/sbom.cdx.json /srv/peagle/venv/bin/python

cd /srv/peagle/venv/lib/python3.*/site-packages
# Tests of the packages themselves, and the compiler of protocol buffers.
rm -rf torch/test torch/bin/*test* torch/bin/*Test torch/bin/protoc* pandas/tests numba/tests pyarrow/tests numpy/_core/tests
# Ray's interface for Java.
rm -rf ray/jars
# Debug information, three quarters of vLLM's libraries for CPU.
if [ "$engine" = cpu ]; then strip --strip-debug vllm/_C*.so; fi

cp "$images/healthcheck.py" /srv/peagle/
