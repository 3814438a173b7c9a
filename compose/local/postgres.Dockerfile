# PostgreSQL from Debian's packages, for machines that reach no image registry: takes the variables of the published image
# that compose/ uses.
ARG BASE
FROM ${BASE}
RUN apt-get update -q >/dev/null \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql-15 >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/15 \
    && install --directory --owner postgres --group postgres --mode 700 /var/lib/postgresql/data
COPY postgres-start /usr/local/bin/
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
USER postgres
VOLUME /var/lib/postgresql/data
EXPOSE 5432
# What `stop` sends: connections are ended, and the data left in order.
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-start"]
