# peagle with vLLM for NVIDIA GPUs; the nodes need driver 580 or newer. From the repository's root:
#
#   docker build -f deployments/images/gpu.Dockerfile -t peagle:0.2.0-gpu .
#
# deployments/images/README.md describes the build arguments.
# The base brings the CUDA compiler, since FlashInfer compiles kernels on the node. Its CUDA is the one that torch is built for.
ARG BASE_IMAGE=docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04

FROM ${BASE_IMAGE} AS build
ARG APT_MIRROR
RUN --mount=type=bind,source=deployments/images,target=/images /images/packages.sh python3.12 python3.12-venv
WORKDIR /src
COPY pyproject.toml .constraints-gpu.txt README.md LICENSE ./
COPY platform platform
ARG UV_DEFAULT_INDEX
ARG UV_INDEX
ARG UV_INDEX_STRATEGY
ARG UV_FIND_LINKS
ARG TORCH_BACKEND
RUN --mount=type=bind,source=deployments/images,target=/images \
    --mount=type=cache,target=/uv-cache,id=peagle-uv \
    /images/environment.sh gpu python3.12 .constraints-gpu.txt

FROM ${BASE_IMAGE}
ARG APT_MIRROR
# gcc, g++, python3.12-dev: Triton and FlashInfer compile with them. ibverbs: NCCL reaches other nodes over RDMA.
RUN --mount=type=bind,source=deployments/images,target=/images \
    /images/packages.sh python3.12 python3.12-dev gcc g++ libibverbs1 ibverbs-providers && /images/user.sh
COPY --from=build /srv/peagle /srv/peagle
COPY deployments/*.yaml /srv/peagle/deployments/
COPY deployments/embedded /srv/peagle/deployments/embedded
# USER: torch asks for the user's name, and an arbitrary user id has none in /etc/passwd.
ENV PATH=/srv/peagle/venv/bin:$PATH HOME=/var/cache/peagle USER=peagle XDG_CACHE_HOME=/var/cache/peagle \
    PYTHONUNBUFFERED=1 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt
# The release that the image is tagged with; the build stops if the package has another version.
ARG VERSION=0.2.0
RUN test "$(peagle version)" = "${VERSION}"
ARG BASE_IMAGE
ARG SOURCE
ARG REVISION
LABEL org.opencontainers.image.title=peagle \
      org.opencontainers.image.description="Serves large language models with vLLM and P-EAGLE on Ray Serve, on NVIDIA GPUs" \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.source=${SOURCE} \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.base.name=${BASE_IMAGE}
WORKDIR /srv/peagle
USER 10001:10001
EXPOSE 8000
# Kubernetes has probes of its own. The start period covers the download of a large model.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60m CMD ["python", "/srv/peagle/healthcheck.py"]
CMD ["peagle", "serve", "deployments/gpt-oss-20b.yaml", "--host", "0.0.0.0"]
