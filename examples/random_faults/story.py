"""One draw played to its end: a run, its faults, its resumptions, and what must hold."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import numpy as np

from random_faults.command import Command, Ended
from random_faults.disk import LimitedFiles, SmallDisk
from random_faults.draws import ROWS, WIDTH, Draw, Live, Moment
from random_faults.folder import RunFolder, sha_of
from random_faults.mishaps import Mishaps
from random_faults.oracle import check_replay, record, undisturbed
from random_faults.surprise import Surprise, check

__all__ = ["Story"]

KILLED = {"kill parent": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
STOPPED = {signal.SIGTERM: {143, -15}, signal.SIGINT: {130, -2}}
LOST = "lacks the last"  # events that were never written


class Story:
    """A draw at work in a folder of its own; ``seen`` are faults and the statuses that came."""

    def __init__(self, draw: Draw, folder: Path, *, mounts: bool) -> None:
        self.draw, self.folder, self.mounts = draw, folder, mounts
        self.seen: list[tuple[str, str]] = []
        self.data = folder / "data.npz"
        generator = np.random.default_rng(draw.seed)
        x = (generator.random((ROWS, WIDTH)) < 0.3).astype(np.float32)
        np.savez(self.data, X=x, y=generator.integers(0, 3, ROWS))
        (folder / "tmp").mkdir()
        self.environment = {"TMPDIR": str(folder / "tmp")}
        self.settings = draw.settings(str(self.data))
        self.is_exact = True  # false once other kernels were accepted
        self.is_tidy = False  # true once a command came to its own end
        self.has_record = True  # false once events were lost and told
        self.expected: str | None = None

    def play(self) -> None:
        """Run, disturb, resume until done; raise Surprise if something does not hold."""
        if self.draw.is_replay:
            self.expected = record(self.settings, self.folder / "recorded")
        elif not self.draw.is_free:
            self.expected = undisturbed(self.settings, self.folder / "whole")
        on_disk = [fault for fault in self.draw.faults if fault.kind.startswith("disk")]
        if on_disk and self.mounts:
            with SmallDisk(self.folder / "disk") as disk:
                self._play(RunFolder(disk.folder / "run"), disk)
        else:
            self._play(RunFolder(self.folder / "run"), None)

    def _play(self, run: RunFolder, disk: SmallDisk | None) -> None:
        self.run, self.disk = run, disk
        self.mishaps = Mishaps(self)
        for fault in self.draw.faults:
            if run.is_complete:
                break
            self._disturbed(fault)
            for kind in fault.between:
                if run.is_begun and not run.is_complete:
                    self.mishaps.apply(kind)
        if not run.is_complete:
            ended = self.resume()
            check(ended.status == 0, f"undisturbed, it ended with {ended.status}: {ended.err}")
        self._check_end()

    def start(self) -> Command:
        """Begin the run, or resume it."""
        if self.run.is_begun:
            arguments = ["--resume", str(self.run.path)]
        else:  # killed before it could be resumed
            left = sorted(path.name for path in self.run.path.glob("*"))
            known = {"run.lock", "run.json"}
            unknown = [x for x in left if x not in known and x[0] != "."]
            check(not unknown, f"it cannot be resumed: {unknown}")
            for path in self.run.path.glob("*"):
                path.unlink()
            settings = ["--data", str(self.data), *self.draw.options()]
            if self.draw.is_replay:
                settings = ["--replay", str(self.folder / "recorded")]
            arguments = [*settings, "--out", str(self.run.path)]
        return Command(["train", *arguments, "--json"], self.environment)

    def resume(self) -> Ended:
        """Go on without a fault; check where it goes on."""
        before = self.mishaps.standing()
        ended = self.start().end()
        self.note(ended)
        if ended.status == 0:
            before.check(self.run)
        return ended

    def note(self, ended: Ended) -> None:
        """Check what holds at the end of every command."""
        self.run.check_model()
        self.has_record &= LOST not in ended.err
        for named in re.findall(r"learned so far is in (\S+?)(?:;|$)", ended.err, re.MULTILINE):
            sha_of(Path(named))
        kept = [path for path in (self.folder / "tmp").iterdir() if path.is_dir()]
        for path in kept:
            check(str(path) in ended.err or path in self.mishaps.kept, f"{path} is not told")
        self.mishaps.kept.update(kept)
        check(ended.status not in (75, -6, -11), f"status {ended.status}: {ended.err}")
        if ended.status != 2:  # killed once it was complete, it deletes nothing
            self.is_tidy = ended.status == 0
        if ended.status == 0:
            printed = json.loads(ended.out)["parameters_sha256"]
            check(printed == self.run.report()["parameters_sha256"], f"it printed {printed}")

    def _disturbed(self, fault: Live) -> None:
        """Start or resume the run with one fault."""
        room = self.disk or LimitedFiles()
        kind = fault.kind
        if kind.startswith("disk") and self.disk is None:
            kind = kind.replace("disk full", "file limit")
        if kind.startswith("file"):
            room = LimitedFiles()
        before = self.mishaps.standing()
        if kind == "disk full at start":
            room.fill(fault.room)
        command = self.start()
        if kind == "file limit at start":
            room.fill(fault.room, command)
        has_struck = self._wait(command, fault.moment)
        kind = self._strike(kind, fault, command, room) if has_struck else kind
        ended = command.end()
        if kind.startswith(("disk", "file")):
            room.free()
        self.note(ended)
        name = kind if has_struck or kind.endswith("at start") else "over before"
        self.seen.append((name, str(ended.status)))
        self._check_status(kind, ended, before.lines)
        if ended.status == -signal.SIGKILL:
            self._check_cadence(before.lines)
        if self.run.is_begun:
            before.check(self.run)

    def _strike(
        self, kind: str, fault: Live, command: Command, room: SmallDisk | LimitedFiles
    ) -> str:
        """Do what the fault is at its moment; return what it was."""
        if kind == "kill child":
            children = command.children()
            if not children:
                kind = "kill parent"
            else:
                victim = self.draw.chance.choice(children)
                Command.kill_all([victim])
        if kind in KILLED:
            command.signal(KILLED[kind])
        elif kind == "kill group":
            command.kill()
        elif kind.endswith("later"):
            room.fill(fault.room, command)
        elif kind == "resume beside it":
            self.mishaps.resume_beside(command)
        if fault.is_freed and kind.startswith(("disk", "file")):
            time.sleep(0.05)
            room.free(command)
        return kind

    def _wait(self, command: Command, moment: Moment) -> bool:
        """Wait for the moment of a fault; return False if the command ends before."""
        run, begun = self.run, len(self.run.lines())
        saved = {path.name for path in run.saved()}
        model = run.model.stat().st_mtime_ns if run.model.exists() else 0
        expected = self._expected_lines()
        lines = begun + 1 + int(moment.share * max(1, expected))

        def has_come() -> bool:
            if moment.kind == "time":
                return time.monotonic() - command.started >= moment.share
            if moment.kind == "checkpoint":
                return bool({path.name for path in run.saved()} - saved)
            if moment.kind == "model":
                return run.model.exists() and run.model.stat().st_mtime_ns != model
            return len(run.lines()) >= lines

        if not command.wait_until(has_come):
            return False
        time.sleep(moment.delay)
        return True

    def _expected_lines(self) -> int:
        """Return how many events are still to come, about."""
        done = self.run.progress()
        epochs = self.draw.pretrain["epochs"]
        left = 0 if done.is_pretrained else sum(epochs) - sum(done.done)
        return 4 + 2 * left + int(self.draw.finetune.get("epochs", 0)) - done.tuned

    def _check_status(self, kind: str, ended: Ended, lines: int) -> None:
        """Check that the status is documented for what happened."""
        status, told = ended.status, f"{kind}: status {ended.status}: {ended.err}"
        if status == 0:
            check(self.run.is_complete, f"{told}; no metrics")
            return
        if kind in ("kill parent", "kill group"):
            check(status == -9, told)
        elif kind in KILLED:
            self._check_stopped(KILLED[kind], ended, lines)
        elif kind == "kill child":
            check(status == 1, told)
            check(re.search(r"layer \d+ failed .*process \d+ was killed by SIGKILL", told), told)
            check(self.run.model.is_file(), f"no model; {told}")
        elif kind.startswith(("disk", "file")):
            self._check_full(ended, told)
        else:
            raise Surprise(told)

    def _check_stopped(self, signum: signal.Signals, ended: Ended, lines: int) -> None:
        """Check the status after a signal, and what it tells once training had started."""
        told = f"{signum.name}: status {ended.status}: {ended.err}"
        check(ended.status in STOPPED[signum], told)
        if self.run.is_complete:  # it came while the interpreter ended
            return
        check(ended.status > 0, told)
        progress = self.run.progress(lines)
        if progress.starts or progress.tunings:
            check("What was learned so far is in" in ended.message, told)
            check(self.run.model.is_file(), f"no model; {told}")

    def _check_full(self, ended: Ended, told: str) -> None:
        """Check the refusal, or where a complete run's files are."""
        check(ended.status in (1, 2), told)
        check(re.search("No space left on device|File too large", ended.message), told)
        if ended.status == 2 and not self.run.is_begun and self.run.path.is_dir():
            left = [path.name for path in self.run.path.iterdir() if path.name != "run.lock"]
            check(not left, f"a refused run leaves {left}; {told}")
        found = re.search(r"could not be written is in (\S+);", ended.message)
        model = Path(found[1]) / "model.safetensors" if found else None
        if model is not None and model.is_file() and self.expected and self.is_exact:
            check(sha_of(model) == self.expected, f"other parameters in {model}; {told}")

    def _check_cadence(self, lines: int) -> None:
        """Check that a killed run has lost no more epochs than lie between two checkpoints."""
        every = self.draw.run["checkpoint_every"]
        # A complete run has lost nothing, and has deleted its checkpoints.
        if every.isdigit() and not self.run.is_complete:
            lost = self.run.unsaved(lines)
            check(lost <= int(every), f"{lost} epochs are lost, with a checkpoint every {every}")

    def _check_end(self) -> None:
        """Check bits, files and the replay of a complete run."""
        run = self.run
        found = run.report()["parameters_sha256"]
        check(sha_of(run.model) == found, "the model is not that of the metrics")
        if self.is_tidy:
            check(not run.temporaries(), f"temporary files are left: {run.temporaries()}")
        if self.is_tidy and run.checkpoints.exists():
            left = {path.name for path in run.checkpoints.iterdir()}
            check(left and left <= self.mishaps.strays, f"left in checkpoints/: {left}")
        if not self.is_exact:
            return
        if self.expected is not None:
            check(found == self.expected, f"other parameters: {found} and {self.expected}")
        if self.has_record and self.settings.pretrain.handoff == "epoch":
            check_replay(run, self.folder / "again", found)
