"""The rules: the alert file is made of them, and a node measures each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bridges.console.problems import measuring, nodes, watch
from bridges.console.problems.rules import BY_NAME, RULES, Rule, alerts_file

MONITORING = Path(__file__).parents[4] / "compose" / "monitoring"


def test_the_alert_file_is_made_of_the_rules() -> None:
    assert (MONITORING / "alerts.yml").read_text() == alerts_file()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_node_measures_every_rule(rule: Rule) -> None:
    source = "".join(Path(str(one.__file__)).read_text() for one in (measuring, nodes, watch))
    assert f'"{rule.name}"' in source


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_an_alert_and_the_console_say_the_same_sentence(rule: Rule) -> None:
    labels = dict.fromkeys(re.findall(r"{(\w+)}", rule.sentence), "x")
    seen = rule.tell("x", 1.0, labels)
    assert "{" not in seen
    template = re.sub(r"{{ \$(labels\.\w+|value \| \w+) }}", "~", rule.alert)
    assert "{" not in template
    assert re.fullmatch(re.escape(template).replace(r"\~", ".+"), seen), json.dumps([template, seen])
    assert rule.remedy.endswith(".")
    assert rule.expr.count("{threshold}") >= 1


def test_amounts_are_told_in_their_units() -> None:
    behind = BY_NAME["GroupFallsBehind"]
    assert "is 2 h behind" in behind.tell("n", 7_250, {"group": "g"})
    assert "is 90 s behind" in behind.tell("n", 90, {"group": "g"})
    assert "late by 0.3 s" in BY_NAME["Stalls"].tell("n", 0.3, {})
    assert BY_NAME["ObjectStorageFails"].tell("n", 0.25, {}).startswith("25% of the requests")
