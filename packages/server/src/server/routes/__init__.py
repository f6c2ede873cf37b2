"""One file per family of routes; a file is found by lying here and offers `ROUTES`."""
