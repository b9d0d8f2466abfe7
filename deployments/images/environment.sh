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

# The read-only image cannot write bytecode later. That of the CPU engine follows below.
if [ "$engine" = gpu ]; then export UV_COMPILE_BYTECODE=1; fi

# In this folder uv finds the overrides and exclusions of pyproject.toml.
$uv venv --python "$python" /srv/peagle/venv
$uv pip install --python /srv/peagle/venv/bin/python --constraint "$constraints" \
    ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} ".[$engine,kubernetes]"

# Written here, where the package index is at hand. It lists the Python packages; scanners such as syft find Debian's.
$uv tool run --from "cyclonedx-bom==$cyclonedx_version" cyclonedx-py environment --output-reproducible \
    --output-file /srv/peagle/sbom.cdx.json /srv/peagle/venv/bin/python

cd /srv/peagle/venv/lib/python3.*/site-packages
# Tests of the packages themselves, the compiler of protocol buffers, Ray's interface for Java, translations.
rm -rf torch/test torch/bin/*test* torch/bin/*Test torch/bin/protoc* numba/tests pyarrow/tests numpy/_core/tests \
    ray/jars pycountry/locales

if [ "$engine" = cpu ]; then
    # Debug information is three quarters of these libraries.
    strip --strip-debug vllm/_C*.so
    # Bytecode of what a server loads is 300 MB less than that of all packages: Ray's own processes, which have to be up
    # within 30 seconds, and what the imports below write. The GPU engine cannot be imported without a driver.
    /srv/peagle/venv/bin/python -m compileall -q ray/_private ray/autoscaler ray/dashboard
    /srv/peagle/venv/bin/python -c "import kubernetes.aio.client, peagle.cli.main, peagle.serve.app, \
peagle.serve.launch.run, peagle.serve.replica.server, torch._inductor.compile_fx, torch._inductor.codegen.cpp, \
vllm.entrypoints.openai.api_server, vllm.model_executor.models.llama, vllm.v1.engine.core, vllm.v1.worker.cpu_worker"
fi

rm -f /srv/peagle/venv/.lock
cp "$images/healthcheck.py" /srv/peagle/
# Amazon SageMaker runs the image with the command `serve`.
install --mode 0755 "$images/sagemaker.sh" /srv/peagle/venv/bin/serve
