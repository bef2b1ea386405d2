"""``syncpretrain doctor``."""

from __future__ import annotations

import json

import click

from syncpretrain.cli.options import json_option

__all__ = ["command"]

MARKS = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Check this machine, in a few seconds; status 1 if training would go wrong.

    \b
    Examples:
      syncpretrain doctor
      syncpretrain doctor --json
    """
    from dataclasses import asdict

    from syncpretrain.planning.doctor import diagnose

    findings = diagnose()
    if as_json:
        click.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    for finding in () if as_json else findings:
        click.echo(f"{MARKS[finding.status]}  {finding.topic}: {finding.found}")
        if finding.advice:
            click.echo(f"         {finding.advice}")
    if any(finding.status == "problem" for finding in findings):
        raise click.exceptions.Exit(1)
