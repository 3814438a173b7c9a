# Prometheus from Debian's packages, for machines that reach no image registry: it takes the options of the published one.
ARG BASE
FROM ${BASE}
RUN apt-get update -q >/dev/null \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends prometheus >/dev/null \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner nobody --group nogroup /prometheus
USER nobody
EXPOSE 9090
ENTRYPOINT ["prometheus"]
