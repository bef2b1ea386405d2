"""``python -m syncpretrain``: the command line."""

from __future__ import annotations

from syncpretrain.cli.program import main

if __name__ == "__main__":
    main(prog_name="syncpretrain")
