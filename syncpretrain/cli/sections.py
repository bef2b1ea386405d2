"""A command whose help has its options in sections."""

from __future__ import annotations

import click

from syncpretrain.cli.help_texts import OUTPUT, SECTIONS

__all__ = ["SectionedCommand"]

FIRST_COLUMN = 26  # longer options have a line of their own
HOMES = {name: section for section, texts in SECTIONS.items() for name in texts}


class SectionedCommand(click.Command):
    """A command whose help lists its options section by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that has options of this command."""
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None:
                rows[HOMES.get(param.name or "", OUTPUT)].append(row)
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records, col_max=FIRST_COLUMN)
