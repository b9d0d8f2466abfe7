# peagle with vLLM for CPU and the embedded model. From the repository's root:
#
#   docker build -f deployments/images/cpu.Dockerfile -t peagle:0.2.0-cpu .
#
# deployments/images/README.md describes the build arguments.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG APT_MIRROR
# binutils: strips vLLM's libraries. libnuma: vLLM loads it.
RUN --mount=type=bind,source=deployments/images,target=/images /images/packages.sh binutils libnuma1
WORKDIR /src
COPY pyproject.toml .constraints.txt README.md LICENSE ./
COPY platform platform
ARG UV_DEFAULT_INDEX
ARG UV_INDEX
ARG UV_INDEX_STRATEGY
ARG UV_FIND_LINKS
ARG TORCH_BACKEND=cpu
RUN --mount=type=bind,source=deployments/images,target=/images \
    --mount=type=cache,target=/uv-cache,id=peagle-uv \
    /images/environment.sh cpu python3.11 .constraints.txt

FROM ${BASE_IMAGE}
ARG APT_MIRROR
# g++: torch.compile writes its kernels in C++. libnuma: vLLM binds its threads with it.
RUN --mount=type=bind,source=deployments/images,target=/images /images/packages.sh g++ libnuma1 && /images/user.sh
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
      org.opencontainers.image.description="Serves large language models with vLLM and P-EAGLE on Ray Serve, on CPUs" \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.source=${SOURCE} \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.base.name=${BASE_IMAGE}
WORKDIR /srv/peagle
USER 10001:10001
EXPOSE 8000
# Kubernetes has probes of its own. The start period covers compiling on a slow machine.
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m CMD ["python", "/srv/peagle/healthcheck.py"]
CMD ["peagle", "serve", "deployments/embedded.yaml", "--host", "0.0.0.0"]
