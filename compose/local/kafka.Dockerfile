# Apache Kafka from Maven Central's jars, which whoever builds this brings as `jars` (tests/compose/engine.py), for machines
# that reach no image registry: takes the variables of the published image that compose/ uses.
ARG BASE
FROM ${BASE}
RUN apt-get update -q >/dev/null \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openjdk-17-jre-headless procps >/dev/null \
    && rm -rf /var/lib/apt/lists/*
COPY jars /opt/jars
COPY kafka-start /usr/local/bin/
RUN install --directory --owner nobody --group nogroup /var/lib/kafka/data
USER nobody
VOLUME /var/lib/kafka/data
EXPOSE 9092
ENTRYPOINT ["kafka-start"]
