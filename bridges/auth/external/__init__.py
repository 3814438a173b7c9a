"""Users whom somebody else has authenticated: a server of logins (OAuth), or a Kerberos realm."""
