"""Local names of Kerberos principals: Kafka's rules (sasl.kerberos.principal.to.local.rules)."""

from __future__ import annotations

import pytest

from bridges.auth.external.kerberos import KerberosError, LocalNames


@pytest.mark.parametrize(
    ("rules", "principal", "name"),
    [
        ("DEFAULT", "alice@HOME", "alice"),
        ("DEFAULT", "kafka/host.home@HOME", "kafka"),
        ("RULE:[1:$1@$0](.*@OTHER)s/@.*//,DEFAULT", "bob@OTHER", "bob"),
        ("RULE:[1:$1@$0](.*@OTHER)s/@.*//,DEFAULT", "bob@HOME", "bob"),
        ("RULE:[2:$1](admin)s/admin/root/ , DEFAULT", "admin/host@HOME", "root"),
        ("RULE:[2:$1;$2](.*;batch)s/;batch$//", "etl/batch@HOME", "etl"),
        ("RULE:[1:$1]s/a/b/g", "banana@HOME", "bbnbnb"),
        ("RULE:[1:$1]s/a/b/", "banana@HOME", "bbnana"),
        ("RULE:[1:$1]s/(.)(.*)/$2$1/", "alice@HOME", "licea"),
        ("RULE:[1:$1]/L", "Alice@HOME", "alice"),
        ("RULE:[1:$1](A.*)s/A/a//U", "Alice@HOME", "ALICE"),
    ],
)
def test_the_first_rule_that_applies_names_a_principal(rules: str, principal: str, name: str) -> None:
    assert LocalNames.parse(rules).find(principal, "HOME") == name


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "alice@OTHER"),
        ("RULE:[2:$1]", "alice@HOME"),
        ("RULE:[1:$1@$0],DEFAULT", "alice@HOME"),  # a name with @ is none, and later rules are not asked
        ("RULE:[1:$1](bob)", "alice@HOME"),
        ("DEFAULT", "alice"),
        ("DEFAULT", "a/b/c@HOME"),
        ("DEFAULT", "/b@HOME"),
        ("DEFAULT", r"alice\@HOME@HOME"),
        (r"RULE:[2:$1]", r"alice\/x@HOME"),
        ("DEFAULT", ""),
    ],
)
def test_a_principal_without_a_local_name_is_refused(rules: str, principal: str) -> None:
    with pytest.raises(KerberosError, match=r"no rule of auth\.kerberos_rules gives"):
        LocalNames.parse(rules).find(principal, "HOME")


@pytest.mark.parametrize(
    "rules",
    [
        "",
        "default",
        "DEFAULT,",
        "RULE:",
        "RULE:[1]",
        "RULE:[1:$2]",
        "RULE:[1:$1](()",
        "RULE:[1:$1]s/a/$1/",
        "RULE:[1:$1]x",
    ],
)
def test_wrong_rules_are_refused_when_they_are_set(rules: str) -> None:
    with pytest.raises(ValueError, match=r"rule|part|pattern|group"):
        LocalNames.parse(rules)
