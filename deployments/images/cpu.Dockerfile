# peagle with vLLM for CPU and the embedded model. From the repository's root:
#
#   docker build -f deployments/images/cpu.Dockerfile -t peagle:0.1.0-cpu .
#
# For a build that can be repeated, name the two images by digest: --build-arg BASE_IMAGE=...@sha256:...
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm
ARG UV_IMAGE=ghcr.io/astral-sh/uv:0.9

FROM ${UV_IMAGE} AS uv

FROM ${BASE_IMAGE} AS build
COPY --from=uv /uv /usr/local/bin/uv
WORKDIR /src
RUN uv venv --python python3.11 /srv/peagle/venv
COPY pyproject.toml .constraints.txt README.md LICENSE ./
COPY platform platform
# In this folder uv finds the overrides of pyproject.toml.
RUN --mount=type=cache,target=/root-cache,id=peagle-uv \
    UV_CACHE_DIR=/root-cache UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 \
    uv pip install --python /srv/peagle/venv/bin/python --torch-backend cpu --constraint .constraints.txt '.[cpu,kubernetes]'

FROM ${BASE_IMAGE}
# libnuma: vLLM places its threads by it. g++: torch.compile makes kernels of C++.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --home-dir /srv/peagle --no-create-home --shell /usr/sbin/nologin peagle \
    && install --directory --owner peagle --group peagle /var/cache/peagle
COPY --from=build --chown=10001:10001 /srv/peagle /srv/peagle
COPY --chown=10001:10001 deployments /srv/peagle/deployments
ENV PATH=/srv/peagle/venv/bin:$PATH HOME=/srv/peagle XDG_CACHE_HOME=/var/cache/peagle PYTHONUNBUFFERED=1
# The release that this image is tagged with; the build stops where the package says another.
ARG VERSION=0.1.0
RUN test "$(peagle version)" = "${VERSION}"
LABEL org.opencontainers.image.title=peagle \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.licenses=Apache-2.0
WORKDIR /srv/peagle
USER 10001:10001
EXPOSE 8000
CMD ["peagle", "serve", "deployments/embedded.yaml", "--host", "0.0.0.0"]
