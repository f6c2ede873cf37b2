"""What every request passes before its route: identity, hosts, keys."""
