"""Requests of admin tools: topics, configuration, ACLs, users, quotas, the cluster."""
