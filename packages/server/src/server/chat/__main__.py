"""`python -m server.chat`: talk to a running server in the terminal."""

from __future__ import annotations

from server.terminal import main

if __name__ == "__main__":
    main()
