# The share coordinator as an image: slim, without a compiler, not run as root.
#
#   docker build -t share-coordinator .
#   docker run --rm -p 9095:9095 -p 9096:9096 -v share-coordinator:/data share-coordinator \
#       serve --listen 0.0.0.0:9095 --http 0.0.0.0:9096 --advertise HOST:9095
#
# The root file system may be read-only; /data holds the journal.

ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
RUN python3 -m venv /opt/share-coordinator
COPY pyproject.toml README.md ./
COPY protocol protocol
COPY coordinator coordinator
RUN /opt/share-coordinator/bin/pip install --no-cache-dir .

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/share-coordinator /opt/share-coordinator
RUN useradd --system --uid 10001 --no-create-home coordinator \
    && mkdir /data \
    && chown coordinator /data
ENV PATH=/opt/share-coordinator/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SHARE_COORDINATOR_DATA_DIR=/data
USER coordinator
WORKDIR /data
VOLUME /data
EXPOSE 9095 9096
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9096/livez', timeout=2)"]
ENTRYPOINT ["share-coordinator"]
CMD ["serve"]
