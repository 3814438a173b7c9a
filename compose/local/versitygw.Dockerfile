# The S3 server versitygw, built through the Go module proxy by whoever builds this, as the file `versitygw` beside it
# (tests/compose/engine.py), for machines that reach no image registry: takes the arguments of the published image.
ARG BASE
FROM ${BASE}
COPY versitygw /usr/local/bin/
EXPOSE 7070
ENTRYPOINT ["versitygw"]
