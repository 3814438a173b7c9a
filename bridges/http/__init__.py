"""HTTP listeners, and what every HTTP interface of a node shares: logins, bodies, errors, memory and long lists."""
