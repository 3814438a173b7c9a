"""A directory laid out like a Kafka distribution (`bin/kafka-topics.sh`, `libs/`), made from the broker's jars.

Test suites written for the distribution call its scripts; these start the same Java classes.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.kafka_broker import TOOLS, install_jars

COMMANDS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "org.apache.kafka.tools.ConfigCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-run-class.sh": "",  # the class is its first argument
}


def _script(libraries: Path, name: str) -> str:
    options = f"{' '.join(SHORT_LIVED_JAVA)} -Xmx256m -Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return f'#!/bin/sh\nexec java {options} -cp "${{CLASSPATH:+$CLASSPATH:}}{libraries}/*" {name} "$@"\n'


def install_distribution(tools: Path = TOOLS) -> Path:
    """Return a directory fit for KAFKA_PATH. Raises ServerFailed when the jars cannot be had."""
    jars = install_jars(tools)
    home = tools / f"dist-{jars.name.removeprefix('jars-')}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    link = home / "libs"
    if not link.is_symlink():
        link.symlink_to(jars)
    for command, name in COMMANDS.items():
        script = home / "bin" / command
        script.write_text(_script(jars, name))
        script.chmod(0o755)
    return home
