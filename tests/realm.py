"""A Kerberos realm for tests: MIT's KDC in a directory of its own, on a free port of loopback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.kit.waiting import wait_until
from tests.ports import free_port

REALM = "ANABRANCH.TEST"

_KRB5 = """
[libdefaults]
    default_realm = {realm}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {realm} = {{
        kdc = 127.0.0.1:{port}
    }}
"""
_KDC = """
[kdcdefaults]
    kdc_listen = ""
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {realm} = {{
        database_name = {directory}/principals
        key_stash_file = {directory}/stash
        acl_file = {directory}/acl
        max_life = 1h
    }}
[logging]
    kdc = FILE:{directory}/kdc.log
"""


class Realm:
    """A realm with its KDC. Programs find it by :attr:`environment`, which also keeps their tickets apart."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.directory = directory
        (directory / "krb5.conf").write_text(_KRB5.format(realm=REALM, port=port))
        (directory / "kdc.conf").write_text(_KDC.format(realm=REALM, port=port, directory=directory))
        self.environment = {
            "KRB5_CONFIG": str(directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{directory}/tickets",
        }
        self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        command = ["krb5kdc", "-n", "-r", REALM, "-P", str(directory / "kdc.pid")]
        self._kdc = subprocess.Popen(command, env={**os.environ, **self.environment})
        log = directory / "kdc.log"
        wait_until(lambda: log.exists() and "commencing operation" in log.read_text(), "the KDC serves")

    def run(self, *command: str) -> str:
        """Return what a program of Kerberos prints."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
        return done.stdout

    def keytab(self, name: str, *principals: str) -> Path:
        """Make principals, and return a new file with their keys."""
        path = self.directory / f"{name}.keytab"
        queries = [line for one in principals for line in (f"addprinc -randkey {one}", f"ktadd -k {path} {one}")]
        subprocess.run(
            ["kadmin.local", "-r", REALM],
            input="\n".join(queries),
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert path.exists()
        return path

    def close(self) -> None:
        """End the KDC."""
        self._kdc.terminate()
        self._kdc.wait(30)
