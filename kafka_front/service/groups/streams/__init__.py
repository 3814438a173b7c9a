"""Streams groups (KIP-1071): the coordinator assigns the tasks of a Kafka Streams application, and creates its internal
topics.

``topology`` decides the tasks and the internal topics of an application, ``assignor`` who gets which task,
``coordinator`` and ``group`` when. The steps from one assignment to the next are those of consumer groups
(:mod:`kafka_front.service.groups.heartbeats`): a task is a partition there, and its topic is a role and a subtopology.
"""
