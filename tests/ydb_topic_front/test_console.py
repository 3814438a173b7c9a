"""Whoever looks after a node sees YDB's traffic, consumers and topics as it sees Kafka's."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

import ydb

from tests.node_process import NodeProcess


def page(node: NodeProcess, path: str) -> Any:
    with urllib.request.urlopen(f"{node.console}{path}", timeout=30) as answer:
        return json.load(answer)


def test_console_tail_and_metrics_show_what_ydbs_clients_do(ydb_node: NodeProcess, topic: str) -> None:
    with ydb.Driver(endpoint=f"grpc://{ydb_node.ydb}", database="/local") as driver:
        driver.wait(timeout=30, fail_fast=True)
        driver.topic_client.create_topic(topic, consumers=[f"{topic}-c"])
        with driver.topic_client.writer(topic, producer_id="p", codec=ydb.TopicCodec.GZIP) as writer:
            item = ydb.TopicWriterMessage(b"hello", metadata_items={"__key": b"k", "colour": b"blue"})
            writer.write_with_ack([item, "again"], timeout=30)
        with driver.topic_client.reader(topic, f"{topic}-c") as reader:
            batch = reader.receive_batch(timeout=30)
            reader.commit_with_ack(batch, timeout=30)
            (group,) = [one for one in page(ydb_node, "/api/groups")["groups"] if one["group"] == f"{topic}-c"]
            assert (group["fronts"], group["members"], group["topics"]) == (["ydb"], 1, [topic])
            (position,) = page(ydb_node, f"/api/groups/{topic}-c")["positions"]
            assert position["offset"] == batch.messages[-1].offset + 1
    (shown,) = [one for one in page(ydb_node, "/api/topics")["topics"] if one["name"] == topic]
    assert shown["records"] == 2
    assert shown["traffic"]["ydb"]["records_in"] == 2
    assert shown["traffic"]["ydb"]["records_out"] >= 1
    with urllib.request.urlopen(f"{ydb_node.console}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    for label in ('kind="CreateTopic"', 'kind="WriteRequest"', f'topic="{topic}"'):
        assert any('front="ydb"' in line and label in line for line in lines), label
    command = [sys.executable, "-m", "bridges", "tail", topic, "--limit", "1", "--json", "--node", ydb_node.console]
    tail = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert tail.returncode == 0, tail.stderr
    record = json.loads(tail.stdout.splitlines()[0])
    assert "hello" in json.dumps(record), record
    assert "blue" in json.dumps(record), record
