"""Stands in for a module that kafka-python's fixtures import and its distribution lacks: becomes test/service.py.

Its broker always runs already, so there is nothing to start, stop or show.
"""


class ExternalService:
    """A broker that somebody else has started at ``host``:``port``."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def stop(self) -> None:
        """Nothing to stop."""

    def dump_logs(self) -> None:
        """Its log is not here."""


class SpawnedService:
    """A broker that the fixtures would start themselves: there is none."""

    def __init__(self, *_: object) -> None:
        raise RuntimeError("the suite is run against a broker that runs already (KAFKA_URI)")
