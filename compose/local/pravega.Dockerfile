# A standalone Pravega from Maven Central's jars, which whoever builds this brings as `jars` (tests/compose/engine.py), for
# machines that reach no image registry: takes the variables of the published image that compose/ uses.
ARG BASE
FROM ${BASE}
RUN apt-get update -q >/dev/null \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openjdk-17-jre-headless procps >/dev/null \
    && rm -rf /var/lib/apt/lists/*
COPY jars /opt/jars
COPY pravega-start /usr/local/bin/
RUN install --directory --owner nobody --group nogroup /opt/pravega/config \
    && touch /opt/pravega/config/standalone-config.properties
USER nobody
WORKDIR /opt/pravega
EXPOSE 9090 12345
ENTRYPOINT ["pravega-start"]
