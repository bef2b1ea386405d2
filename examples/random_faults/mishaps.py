"""What can befall a run between two commands, and where the next one must go on."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from random_faults.command import Command, Ended
from random_faults.folder import RunFolder, cut_line, flip_bit, truncate
from random_faults.surprise import check
from syncpretrain.kernels.native import available

if TYPE_CHECKING:
    from random_faults.story import Story

__all__ = ["Mishaps", "Standing"]


@dataclass(frozen=True)
class Standing:
    """Where a run can go on: its good checkpoints, and the lines of its log so far."""

    lines: int
    pretrained: bool
    cut: int
    tuned: int

    def check(self, run: RunFolder) -> None:
        """Check that the command that came next went on from there."""
        after = run.progress(skip=self.lines)
        if after.starts:
            check(not self.pretrained, "it pretrains again")
            told = f"it went on at {after.starts[0]} epochs, its checkpoint has {self.cut}"
            check(after.starts[0] == self.cut, told)
        if after.tunings and after.tunings[0] and not after.starts:
            told = f"it fine-tunes from epoch {after.tunings[0]}, its checkpoint is at {self.tuned}"
            check(after.tunings[0] == max(1, self.tuned), told)


class Mishaps:
    """Mishaps of one story, by name."""

    def __init__(self, story: Story) -> None:
        self.story, self.run, self.chance = story, story.run, story.draw.chance
        self.strays: set[str] = set()
        self.kept: set[Path] = set()  # folders of last resort that were told of
        self.damaged: set[tuple[Path, int]] = set()  # as written then; it may be written again

    def standing(self) -> Standing:
        """Return where the next command must go on."""
        good = [path for path in self.run.saved() if self._is_good(path)]
        pretrained = self.run.checkpoints / "pretrained.safetensors"

        def newest(stem: str) -> int:
            found = [int(x.stem.split("-")[1]) for x in good if x.name.startswith(stem)]
            return max(found, default=0)

        has_pretrained = pretrained.is_file() and self._is_good(pretrained)
        tuned = newest("finetune") if has_pretrained else 0
        return Standing(len(self.run.lines()), has_pretrained, newest("pretrain"), tuned)

    def _is_good(self, path: Path) -> bool:
        return (path, path.stat().st_mtime_ns) not in self.damaged

    def apply(self, kind: str) -> None:
        """Let one happen; check what it leads to at once."""
        act = {
            "flipped bit": lambda: self._damage(flip_bit),
            "truncated checkpoint": lambda: self._damage(truncate),
            "stray file": self._stray,
            "stale temporary file": self._stale,
            "two resumes at once": self._two,
            "changed row": lambda: self._change("X"),
            "changed label": lambda: self._change("y"),
            "other kernels": self._other_kernels,
            "other kernels, --inexact": self._accepted_kernels,
            "half a line": self._half_line,
        }[kind]
        status = act()
        if status is not None:
            self.story.seen.append((kind, status))

    def resume_beside(self, command: Command) -> None:
        """Resume a run that is at work, and stands still meanwhile."""
        command.signal(signal.SIGSTOP)
        try:
            if self.run.is_begun:
                second = self._resume()
                check(second.status == 2, f"a second resume: {second.status} {second.err}")
                told = f"is at work in process {command.pid}"
                check(told in second.err or "is finished" in second.err, second.err)
                self.story.seen.append(("a second resume", "2"))
        finally:
            command.signal(signal.SIGCONT)

    def _resume(self, *options: str, **environment: str) -> Ended:
        """Resume, expecting a refusal."""
        arguments = ["train", "--resume", str(self.run.path), "--json", *options]
        return Command(arguments, self.story.environment | environment).end()

    def _damage(self, damage: object) -> str | None:
        pretrained = self.run.checkpoints / "pretrained.safetensors"
        path = self.run.newest()
        if pretrained.is_file() and self.chance.random() < 0.3:
            path = pretrained
        if path is None or not callable(damage):
            return None
        damage(path, self.chance)
        self.damaged.add((path, path.stat().st_mtime_ns))
        return "-"

    def _stray(self) -> str | None:
        if not self.run.checkpoints.is_dir():
            return None
        self.strays.add("notes.txt")
        (self.run.checkpoints / "notes.txt").write_text("mine")
        return "-"

    def _stale(self) -> str | None:
        """Leave what a writer without nameless files leaves when it is killed."""
        places = [self.run.path / "metrics.json", self.run.model, self.run.path / "trace.json"]
        if self.run.checkpoints.is_dir():
            places += [self.run.checkpoints / "pretrain-00000099.safetensors"] * 3
        path = self.chance.choice(places)
        path.with_name(f".{path.name}.{self.chance.randbytes(8).hex()}").write_bytes(b"half")
        return "-"

    def _two(self) -> str:
        before = self.standing()
        commands = [self.story.start(), self.story.start()]
        ended = [command.end() for command in commands]
        for one in ended:
            self.story.note(one)
        statuses = sorted(one.status for one in ended)
        told = [one.err for one in ended]
        check(statuses == [0, 2], f"two resumes at once: {statuses}: {told}")
        refusal = next(one.err for one in ended if one.status == 2)
        check("is at work in" in refusal or "is finished" in refusal, refusal)
        before.check(self.run)
        return "0, 2"

    def _change(self, name: str) -> str:
        """Change one value of the data, which must be refused; put it back."""
        content = self.story.data.read_bytes()
        with np.load(self.story.data) as opened:
            arrays = dict(opened)
        place = tuple(self.chance.randrange(size) for size in arrays[name].shape)
        arrays[name][place] = 1 - arrays[name][place] if name == "X" else arrays[name][place] + 1
        np.savez(self.story.data, **arrays)
        before = self.run.snapshot()
        ended = self._resume()
        self.story.data.write_bytes(content)
        check(ended.status == 2 and "its data was" in ended.err, f"{name} changed: {ended}")
        check(self.run.snapshot() == before, f"{name} changed: a refused resume touched the folder")
        return "2"

    def _other_kernels(self) -> str | None:
        if not available():
            return None
        before = self.run.snapshot()
        ended = self._resume(SYNCPRETRAIN_KERNELS="numpy")
        check(ended.status == 2 and "its kernels was" in ended.err, f"other kernels: {ended}")
        check(self.run.snapshot() == before, "other kernels: a refused resume touched the folder")
        return "2"

    def _accepted_kernels(self) -> str | None:
        if not available():
            return None
        before = self.standing()
        ended = self._resume("--inexact", SYNCPRETRAIN_KERNELS="numpy")
        self.story.note(ended)
        check(ended.status == 0 and "last bits differ" in ended.err, f"--inexact: {ended}")
        before.check(self.run)
        self.story.is_exact = False
        return "0"

    def _half_line(self) -> str | None:
        if not self.run.lines():
            return None
        cut_line(self.run.events, self.chance)
        return "-"
