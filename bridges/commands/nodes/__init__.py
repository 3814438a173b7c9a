"""Commands for nodes: state, activity, problems."""
