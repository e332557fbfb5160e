"""Images and containers without an engine: buildah with a store of its own, processes in a chroot on this network."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from package_access import RELEASE, Mounts
from paths import ROOT, tool
from timings import timed

BASE = f"debian:{RELEASE}-slim"


class Store:
    """A folder with images, and the base image in it, bootstrapped here under the tag that the Dockerfiles name."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.mounts = Mounts(work)
        (work / "tmp").mkdir(exist_ok=True)
        self._command = [
            tool("buildah"),
            *("--root", str(work / "store"), "--runroot", str(work / "run"), "--storage-driver", "overlay"),
        ]
        if self("images", "--quiet", "--filter", f"reference={BASE}").strip() == "":
            self._bootstrap()

    def __call__(self, *arguments: str, **options: Any) -> str:
        """buildah's standard output.

        Raises:
            AssertionError: it failed.
        """
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, env=self._environment, **options
        )
        assert done.returncode == 0, (
            f"buildah {' '.join(arguments)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout

    @property
    def _environment(self) -> dict[str, str]:
        """TMPDIR is where the caches of `RUN --mount=type=cache` lie."""
        return {**os.environ, "TMPDIR": str(self.work / "tmp"), "BUILDAH_ISOLATION": "chroot"}

    def build(self, dockerfile: Path, tag: str) -> str:
        """Build an image from the repository's root, with this machine's access to packages mounted."""
        with timed(f"build of {dockerfile.name}"), (self.work / f"{tag}.log").open("w") as log:
            done = subprocess.run(
                [
                    *(*self._command, "build", "--layers", "--format", "docker", "--network", "host", "--pull-never"),
                    *(*self.mounts.options, "--tag", tag, "--file", str(dockerfile), str(ROOT)),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        assert done.returncode == 0, (
            f"{dockerfile.name} did not build:\n{(self.work / f'{tag}.log').read_text()[-4000:]}"
        )
        return tag

    def inspect(self, image: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("inspect", "--type", "image", image))
        return found

    @contextmanager
    def container(self, image: str) -> Iterator[Container]:
        name = self("from", "--pull-never", image).strip()
        try:
            yield Container(self, name, image)
        finally:
            self("rm", name)

    def _bootstrap(self) -> None:
        root = self.work / "base"
        shutil.rmtree(root, ignore_errors=True)
        with timed("bootstrap of the base image"):
            subprocess.run(
                [tool("debootstrap"), "--variant=minbase", RELEASE, str(root)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            self.mounts.make_targets(root)
            (root / "etc/apt/sources.list").chmod(0o644)
            archive = self.work / "base.tar"
            with tarfile.open(archive, "w") as tar:
                tar.add(root, arcname=".")
            shutil.rmtree(root)
            scratch = self("from", "scratch").strip()
            self("add", scratch, str(archive), "/")
            self("commit", "--format", "docker", "--rm", scratch, BASE)
            archive.unlink()


class Container:
    """A root file system made from an image, and what the image says is to run in it."""

    def __init__(self, store: Store, name: str, image: str) -> None:
        self.store = store
        self.name = name
        self.config: dict[str, Any] = store.inspect(image)["Docker"]["config"]
        self.root = Path(store("mount", name).strip())

    def command(
        self, arguments: Sequence[str], volumes: Mapping[Path, str], environment: Mapping[str, str]
    ) -> list[str]:
        """The line that runs `arguments` here as the image's user."""
        options = [f"--volume={source}:{target}" for source, target in volumes.items()]
        options += [f"--env={name}={value}" for name, value in environment.items()]
        return [
            *(*self.store._command, "run", "--network", "host", *options, *self.store.mounts.options),
            *(self.name, "--", *arguments),
        ]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(arguments, {}, {}), capture_output=True, text=True, env=self.store._environment
        )

    @contextmanager
    def started(
        self,
        log: Path,
        command: Sequence[str] | None = None,
        volumes: Mapping[Path, str] = {},
        environment: Mapping[str, str] = {},
        memory: Path | None = None,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The image's entry point with `command`, or its own, for as long as the block.

        Args:
            memory: the file that a process writes itself to, to be under a limit.
        """
        arguments = [*self.config["Entrypoint"], *(self.config["Cmd"] if command is None else command)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(arguments, volumes, environment),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.store._environment,
                start_new_session=True,
                preexec_fn=None if memory is None else lambda: memory.write_text(str(os.getpid())),
            )
            try:
                yield process
            finally:
                _end(process)

    def volume(self, folder: Path) -> Path:
        """A new folder that belongs to the image's user, as a named volume would."""
        folder.mkdir()
        user, group = self.config["User"].split(":")
        os.chown(folder, int(user), int(group))
        for above in folder.parents:  # pytest's own folders are root's alone
            if above.name.startswith("pytest-"):
                above.chmod(0o755)
        return folder

    def health_check(self, old: str, new: str) -> list[str]:
        """The image's own, with one word another: the port, which here is not the container's."""
        return [word.replace(old, new) for word in self.config["Healthcheck"]["Test"]]

    def healthy(self, check: Sequence[str]) -> bool:
        """What a health check, run here, says."""
        assert check[0] == "CMD"
        return self.run(*check[1:]).returncode == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            continue
