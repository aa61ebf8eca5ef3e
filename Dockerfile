# The share coordinator as an image: slim, without a compiler, not run as root.
#
#   docker build -t share-coordinator .
#   docker run --rm -p 9095:9095 -p 9096:9096 -v share-coordinator:/data share-coordinator \
#       serve --listen 0.0.0.0:9095 --listen-plaintext-allowed true --http 0.0.0.0:9096 --advertise HOST:9095
#
# Targets: serve (the default), recovery (the jobs on the state log), spark (the same, on Spark).
# The root file system may be read-only; /data holds the journal.

ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS environment
# A compiler for the compiled way of plain writes. With BUILD_PACKAGES= both are left out, and writes take longer.
ARG BUILD_PACKAGES="gcc libc6-dev"
RUN test -z "${BUILD_PACKAGES}" \
    || { apt-get update && apt-get -o Acquire::Retries=3 install -y --no-install-recommends ${BUILD_PACKAGES}; }
RUN python3 -m venv /opt/share-coordinator
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY coordinator coordinator
RUN /opt/share-coordinator/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM environment AS build-serve
RUN /opt/share-coordinator/bin/pip install --no-cache-dir "$(echo /wheel/*.whl)[kafka]"

FROM ${PYTHON_IMAGE} AS base
RUN useradd --system --uid 10001 --no-create-home coordinator && install -d -o coordinator /data
ENV PATH=/opt/share-coordinator/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SHARE_COORDINATOR_DATA_DIR=/data
USER 10001
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM
ENTRYPOINT ["share-coordinator"]

FROM base AS serve
EXPOSE 9095 9096
# It asks at the port that the environment names, with TLS if that does; flags it cannot see. Whose certificate it
# is does not matter here. Where http.ssl.client.auth=required, give it a check of your own: it has no certificate.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python3", "-c", "\
import os, ssl, urllib.request as request; \
port = os.environ.get('SHARE_COORDINATOR_HTTP', ':9096').rpartition(':')[2]; \
scheme = 'https' if os.environ.get('SHARE_COORDINATOR_HTTP_SSL_CERTIFICATE_LOCATION') else 'http'; \
anybody = ssl._create_unverified_context(); \
request.urlopen(f'{scheme}://127.0.0.1:{port}/livez', timeout=3, context=anybody)"]
CMD ["serve"]
COPY --from=build-serve /opt/share-coordinator /opt/share-coordinator

FROM build-serve AS build-recovery
RUN /opt/share-coordinator/bin/pip install --no-cache-dir "$(echo /wheel/*.whl)[kafka,recovery]"

FROM base AS recovery
CMD ["recovery", "--help"]
COPY --from=build-recovery /opt/share-coordinator /opt/share-coordinator

FROM build-recovery AS build-spark
RUN /opt/share-coordinator/bin/pip install --no-cache-dir "$(echo /wheel/*.whl)[kafka,spark]"

FROM base AS spark
USER root
RUN apt-get update \
    && apt-get -o Acquire::Retries=3 install -y --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
USER 10001
CMD ["recovery", "--help"]
COPY --from=build-spark /opt/share-coordinator /opt/share-coordinator

# What is built without --target.
FROM serve
