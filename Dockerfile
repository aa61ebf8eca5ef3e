# The share coordinator as an image: no compiler, no root.
#
#   docker build -t share-coordinator .
#   docker run --rm -p 127.0.0.1:9095:9095 -p 127.0.0.1:9096:9096 -v share-coordinator:/data share-coordinator \
#       serve --listen 0.0.0.0:9095 --listen-plaintext-allowed true --advertise HOST:9095
#
# Targets: serve (the default), recovery (jobs on the state log), spark (the same jobs on Spark).
# The root file system may be read-only; /data holds the journal. Dependencies are pinned with hashes in deploy/image.

# Docker's image of Python 3.12.13 on Debian trixie, for all platforms; .github/dependabot.yml keeps it current.
ARG PYTHON_IMAGE=python:3.12-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36

FROM ${PYTHON_IMAGE} AS environment
# A compiler for the compiled fast path. BUILD_PACKAGES= leaves both out; writes then cost more CPU time.
ARG BUILD_PACKAGES="gcc libc6-dev"
RUN test -z "${BUILD_PACKAGES}" \
    || { apt-get update && apt-get -o Acquire::Retries=3 install -y --no-install-recommends ${BUILD_PACKAGES}; }
RUN python3 -m venv /opt/share-coordinator
WORKDIR /source
# The image build has no git, so the version is an argument.
ARG VERSION=0.1.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION=${VERSION}
COPY deploy/image deploy/image
COPY pyproject.toml setup.py README.md LICENSE ./
COPY protocol protocol
COPY coordinator coordinator
# A page of the package is a link to it.
COPY docs/operations.md docs/operations.md
RUN /opt/share-coordinator/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM environment AS build-serve
RUN /opt/share-coordinator/bin/pip install --no-cache-dir --require-hashes -r deploy/image/serve.lock \
    && /opt/share-coordinator/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

FROM ${PYTHON_IMAGE} AS base
ARG VERSION=0.1.0.dev0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="share-coordinator" \
      org.opencontainers.image.description="A standalone share coordinator (KIP-932) for Apache Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
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
# A published port connects to the container's address, not to its loopback address.
ENV SHARE_COORDINATOR_HTTP=0.0.0.0:9096
# The check uses the port in the environment, with TLS if the environment sets a certificate; it does not see
# flags. It has no client certificate: with http.ssl.client.auth=required, replace it by your own check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python3", "-c", "\
import os, ssl, urllib.request as request; \
port = os.environ.get('SHARE_COORDINATOR_HTTP', ':9096').rpartition(':')[2]; \
scheme = 'https' if os.environ.get('SHARE_COORDINATOR_HTTP_SSL_CERTIFICATE_LOCATION') else 'http'; \
anybody = ssl._create_unverified_context(); \
request.urlopen(f'{scheme}://127.0.0.1:{port}/livez', timeout=3, context=anybody)"]
CMD ["serve"]
COPY --from=build-serve /opt/share-coordinator /opt/share-coordinator

FROM build-serve AS build-recovery
RUN /opt/share-coordinator/bin/pip install --no-cache-dir --require-hashes -r deploy/image/recovery.lock

FROM base AS recovery
CMD ["recovery", "--help"]
COPY --from=build-recovery /opt/share-coordinator /opt/share-coordinator

FROM build-recovery AS build-spark
RUN /opt/share-coordinator/bin/pip install --no-cache-dir --require-hashes -r deploy/image/spark.lock

FROM base AS spark
USER root
RUN apt-get update \
    && apt-get -o Acquire::Retries=3 install -y --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
USER 10001
CMD ["recovery", "--help"]
COPY --from=build-spark /opt/share-coordinator /opt/share-coordinator

# The default target.
FROM serve
