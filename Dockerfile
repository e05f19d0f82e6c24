# The worker's image. Builds of the `command` runner happen in here too: derive an image from it that
# has the tools your builds need.
FROM python:3.11-slim-bookworm AS install

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/lastgreen
WORKDIR /src

COPY requirements.txt ./
RUN /opt/lastgreen/bin/pip install --require-hashes -r requirements.txt

COPY . ./
RUN /opt/lastgreen/bin/pip install --no-build-isolation --no-deps .


FROM python:3.11-slim-bookworm

# hadolint ignore=DL3008  # Debian keeps the newest of each only: a pin breaks at its next update.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /var/lib/lastgreen lastgreen

COPY --from=install /opt/lastgreen /opt/lastgreen
ENV PATH=/opt/lastgreen/bin:$PATH PYTHONUNBUFFERED=1

USER 10001
WORKDIR /var/lib/lastgreen
VOLUME /var/lib/lastgreen
ENTRYPOINT ["lastgreen"]
CMD ["worker"]
