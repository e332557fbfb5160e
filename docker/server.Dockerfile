# The server: SGLang with Descant, all of its packages in the versions of server.lock. Context: the repository's root.

# Debian 12 (Python 3.11) serves on the CPU. Any Debian or Ubuntu with Python 3.11 or later can take its place; gpu.yaml
# takes NVIDIA's CUDA 13 on Ubuntu 24.04 (Python 3.12), since SGLang compiles some of its kernels on the machine.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS system
# g++ compiles the CPU operators at the first start; Python.h is for what Triton compiles on a GPU.
# Unpinned: a stable release keeps its versions, and a pin would fail at its next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        g++ libnuma1 python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM system AS wheel
WORKDIR /src
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /build && /build/bin/pip install setuptools==84.2.1
COPY . .
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM system AS server
RUN useradd --uid 10001 --home-dir /cache --create-home --skel /dev/null --shell /usr/sbin/nologin descant
# In the image's first layers, so that new code of Descant's fetches none of this again: 11 GB.
COPY docker/server.lock /opt/descant/server.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/descant && /opt/descant/bin/pip install --no-deps -r /opt/descant/server.lock
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    /opt/descant/bin/pip install --no-deps --no-index /wheels/*.whl && /opt/descant/bin/pip check

# All that is made or fetched once lies under /cache: the demo's model, compiled operators, models from a hub.
ENV PATH=/opt/descant/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/cache \
    DESCANT_CACHE=/cache/descant
USER 10001:10001
WORKDIR /cache
VOLUME /cache
EXPOSE 30000
ENTRYPOINT ["descant"]
CMD ["serve", "--demo", "--host", "0.0.0.0", "--port", "30000"]
# The first start fetches the demo's model and compiles the operators. /health asks for no key.
HEALTHCHECK --interval=15s --timeout=10s --start-period=15m --retries=4 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:30000/health', timeout=8)"]
