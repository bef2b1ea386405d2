"""Code blocks of the documents, and the timelines in them as the schedule plays them."""

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import scheduleplay

from syncpretrain.schedule.kinds import LayerPlan
from syncpretrain.schedule.schedule import Command, Schedule, Train

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.rst", ROOT / "CONTRIBUTING.rst", *sorted((ROOT / "docs").glob("*.rst"))]
DIRECTIVE = re.compile(r"( *)\.\. code-block:: (\w+)")
MARK = re.compile(r" *\.\. (timeline|not run|output)(?:: (.+))?")
PACES = scheduleplay.KNOWN | {"lockstep": scheduleplay.lockstep, "free": scheduleplay.free}
COLUMN = 6


@dataclass(frozen=True)
class Block:
    """One code block.

    ``marks`` are the comments above it: ``not run: REASON``, ``timeline: SETTINGS`` (it must be
    what the schedule plays) and ``output`` (what the Python block before it prints).
    """

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str]

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, in their order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found, marks = [], {}
    for i, line in enumerate(lines):
        if mark := MARK.fullmatch(line):
            marks[mark[1]] = mark[2] or ""
        elif directive := DIRECTIVE.fullmatch(line):
            text = _indented(lines[i + 1 :], len(directive[1]))
            found.append(Block(page, i + 1, directive[2], text, marks))
            marks = {}
        elif line.strip():
            marks = {}
    return found


def _indented(lines: Sequence[str], margin: int) -> str:
    """Return the lines that are indented more than the margin, up to the first that is not."""
    kept: list[str] = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= margin:
            break
        kept.append(line)
    return dedent("\n".join(kept)).strip("\n")


def command_lines(block: Block) -> list[str]:
    """Return the commands of a shell block: continued lines joined, without comments."""
    joined = block.text.replace("\\\n", " ")
    lines = [re.sub(r"\s# .*", "", line) for line in joined.splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip()]


def tabled(page: Path) -> list[str]:
    """Return what the first column of a page's tables names as code."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^``([^`]+)``  +\S", text, re.MULTILINE)


def timeline(text: str) -> str:
    """Draw the run of ``schedule=rounds epochs=2,2,2,2 ticks=1,2,1,1``: a column is a tick.

    ``schedule`` is lockstep, free, greedy or rounds; ``epochs``, ``refresh`` and ``ticks``, how
    long an epoch lasts, have one value a layer; ``slots`` is how many layers train at a time.
    """
    given = dict(part.split("=") for part in text.split())
    epochs = _numbers(given["epochs"])
    depth = len(epochs)
    refresh = _numbers(given.get("refresh", ",".join("0" * depth)))
    ticks = _numbers(given.get("ticks", ",".join("1" * depth)))
    plans = [LayerPlan(n, r) for n, r in zip(epochs, refresh, strict=True)]
    pace = PACES[given["schedule"]](plans, drain=given.get("finish", "drain") == "drain")
    schedule = Schedule(plans, pace, slots=int(given.get("slots", depth)))
    return _drawn(_played(schedule, ticks), depth)


def _numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def _played(schedule: Schedule, ticks: Sequence[int]) -> list[tuple[int, int, Train]]:
    """Return the begin and the end of every epoch."""
    running: list[tuple[int, int]] = []
    epochs = []

    def begin(commands: Sequence[Command], now: int) -> None:
        for command in commands:
            if isinstance(command, Train):
                end = now + ticks[command.layer - 1]
                heapq.heappush(running, (end, command.layer))
                epochs.append((now, end, command))

    begin(schedule.begin(), 0)
    while running:
        now, layer = heapq.heappop(running)
        ended = [layer]
        while running and running[0][0] == now:
            ended.append(heapq.heappop(running)[1])
        for layer in ended:
            begin(schedule.finished(layer), now)
    return epochs


def _drawn(epochs: Sequence[tuple[int, int, Train]], depth: int) -> str:
    last = max(end for _, end, _ in epochs)
    rows = ["time ->   " + "".join(f"{tick:<{COLUMN}}" for tick in range(1, last + 1))]
    for layer in range(1, depth + 1):
        row = f"layer {layer}".ljust(10)
        own = [x for x in epochs if x[2].layer == layer]
        for begin, end, command in own:
            cell = f"{command.epoch}({command.reads})"
            row = row.ljust(10 + COLUMN * begin) + cell.ljust(COLUMN * (end - begin) - 2, "-")
        assert all(first[1] <= second[0] for first, second in pairwise(own))
        rows.append(row)
    return "\n".join(row.rstrip() for row in rows)
