"""What is released: archives with fixed bytes, a Debian package that dpkg reads, a bill of materials, and the version of glibc.

Runs the program that makes them on a shell script in place of the binary, and reads real programs of this machine.
"""

import hashlib
import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
from contextlib import redirect_stderr
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "deploy" / "packages"
sys.path.insert(0, str(PACKAGES))
import archives  # noqa: E402
import bill  # noqa: E402
import debian  # noqa: E402
import glibc  # noqa: E402

EPOCH = 1_700_000_000
RELEASE = {
    "bin/magray": archives.File(b"program", is_program=True),
    "share/man/man1/magray.1": archives.File(b"page"),
    "share/doc/magray/CHANGELOG.md": archives.File(b"changes"),
    "share/zsh/site-functions/_magray": archives.File(b"zsh"),
    "lib/systemd/system/magray.service": archives.File((ROOT / "deploy/systemd/magray.service").read_bytes()),
}


def run(*words):
    return subprocess.run(words, capture_output=True, text=True)


def loaded(program):
    """A program as a module."""
    loader = importlib.machinery.SourceFileLoader(program.name, str(program))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(program.name, loader))
    loader.exec_module(module)
    return module


class Archives(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_the_same_files_give_the_same_bytes(self):
        first = archives.tarball(self.folder / "a", "magray-1", RELEASE, EPOCH).read_bytes()
        other = archives.tarball(self.folder / "b", "magray-1", dict(reversed(RELEASE.items())), EPOCH).read_bytes()
        self.assertEqual(first, other)
        with tarfile.open(self.folder / "a") as tar:
            self.assertEqual(tar.getmember("magray-1/bin/magray").mode, 0o755)
            self.assertEqual({member.uid for member in tar}, {0})

    @unittest.skipUnless(shutil.which("dpkg-deb"), "there is no dpkg-deb")
    def test_dpkg_reads_the_package(self):
        path = debian.package(self.folder, "0.1.0", "amd64", "2.28", RELEASE, EPOCH)
        told = run("dpkg-deb", "--info", path)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("Depends: libc6 (>= 2.28)", told.stdout)
        self.assertEqual(run("dpkg-deb", "--extract", path, self.folder / "root").returncode, 0)
        root = self.folder / "root"
        self.assertTrue(os.access(root / "usr/bin/magray", os.X_OK))
        unit = (root / "usr/lib/systemd/system/magray.service").read_text()
        self.assertIn("ExecStart=/usr/bin/magray --config /etc/magray/magray.toml serve", unit)
        self.assertTrue((root / "usr/share/man/man1/magray.1.gz").exists())
        self.assertTrue((root / "etc/magray/magray.toml").exists())

    @unittest.skipUnless(shutil.which("dpkg-deb"), "there is no dpkg-deb")
    def test_its_scripts_are_scripts_and_its_sums_are_right(self):
        path = debian.package(self.folder, "0.1.0", "amd64", "2.28", RELEASE, EPOCH)
        run("dpkg-deb", "--control", path, self.folder / "control")
        run("dpkg-deb", "--extract", path, self.folder / "root")
        for script in ("postinst", "prerm", "postrm"):
            self.assertEqual(run("sh", "-n", self.folder / "control" / script).returncode, 0)
            self.assertTrue(os.access(self.folder / "control" / script, os.X_OK))
        sums = (self.folder / "control" / "md5sums").read_text().splitlines()
        self.assertGreater(len(sums), 4)
        for line in sums:
            sum_, place = line.split("  ")
            self.assertEqual(hashlib.md5((self.folder / "root" / place).read_bytes()).hexdigest(), sum_)


class Versions(unittest.TestCase):
    def test_versions_are_compared_by_numbers(self):
        self.assertLess(glibc.parts("2.4"), glibc.parts("2.28"))

    @unittest.skipUnless(shutil.which("objdump") and Path("/bin/ls").exists(), "there is no objdump, or no /bin/ls")
    def test_objdump_finds_the_same(self):
        program = Path("/bin/ls").resolve()
        text = run("objdump", "-T", program).stdout
        said = {word.strip("()").removeprefix("GLIBC_") for word in text.split() if word.strip("()").startswith("GLIBC_")}
        self.assertTrue(said)
        self.assertEqual(glibc.newest(program.read_bytes()), max(said, key=glibc.parts))

    def test_what_is_no_program_is_refused(self):
        with self.assertRaises(ValueError):
            glibc.newest(b"#!/bin/sh\n")


class Bill(unittest.TestCase):
    METADATA = {
        "workspace_members": ["m"],
        "packages": [
            {"id": "m", "name": "magray", "version": "1.0.0", "license": "MIT OR Apache-2.0"},
            {"id": "a", "name": "a", "version": "2.0.0", "license": "MIT/Apache-2.0", "repository": "https://example.com/a"},
            {"id": "t", "name": "t", "version": "3.0.0"},
        ],
        "resolve": {
            "nodes": [
                {"id": "m", "deps": [{"pkg": "a", "dep_kinds": [{"kind": None}]}, {"pkg": "t", "dep_kinds": [{"kind": "dev"}]}]},
                {"id": "a", "deps": []},
                {"id": "t", "deps": []},
            ]
        },
    }

    def test_only_what_is_linked_is_listed(self):
        made = bill.document(self.METADATA, "magray", EPOCH)
        self.assertEqual([part["purl"] for part in made["components"]], ["pkg:cargo/a@2.0.0"])
        self.assertEqual(made["components"][0]["licenses"], [{"expression": "MIT OR Apache-2.0"}])
        self.assertEqual(made["metadata"]["timestamp"], "2023-11-14T22:13:20Z")
        self.assertEqual(made, bill.document(self.METADATA, "magray", EPOCH))

    def test_every_reference_is_of_a_component(self):
        made = json.loads(json.dumps(bill.document(self.METADATA, "magray", EPOCH)))
        known = {made["metadata"]["component"]["bom-ref"], *(part["bom-ref"] for part in made["components"])}
        self.assertEqual({one["ref"] for one in made["dependencies"]}, known)


class Program(unittest.TestCase):
    def test_a_binary_is_found_from_the_folder_of_the_caller(self):
        make = loaded(PACKAGES / "make")
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "magray")
            script.write_text("#!/bin/sh\necho magray 1.2.3\n")
            script.chmod(0o755)
            self.assertEqual(make.said(Path(os.path.relpath(script)), "--version"), "magray 1.2.3\n")


@unittest.skipUnless(shutil.which("sleep"), "there is no sleep")
class Systems(unittest.TestCase):
    def test_a_machine_that_does_not_come_up_is_ended(self):
        systems, machines = loaded(Path(__file__).parent / "systems"), []

        def begun(*_, **options):
            machines.append(subprocess.Popen(["sleep", "1000"], **options))
            return machines[-1]

        def give_up(_):
            sys.exit("systems: the system did not do it in time")

        with tempfile.TemporaryDirectory() as folder:
            root, package = Path(folder, "root"), Path(folder, "a.deb")
            (root / "srv").mkdir(parents=True)
            package.touch()
            stubs = {"Popen": begun, "TimeoutExpired": subprocess.TimeoutExpired, "DEVNULL": subprocess.DEVNULL}
            with mock.patch.multiple(systems, until=give_up, subprocess=types.SimpleNamespace(**stubs)):
                with self.assertRaisesRegex(SystemExit, "in time"):
                    systems.of_package(root, package)
        self.assertEqual(machines[0].poll(), -signal.SIGTERM)

    def test_a_machine_that_does_not_power_off_is_ended(self):
        systems = loaded(Path(__file__).parent / "systems")
        for ignored, codes in (("", (-signal.SIGTERM, -signal.SIGKILL)), ("trap '' TERM;", (-signal.SIGKILL,))):
            machine = subprocess.Popen(["sh", "-c", f"{ignored} echo up; exec sleep 1000"], stdout=subprocess.PIPE)
            self.assertEqual(machine.stdout.readline(), b"up\n")
            with mock.patch.multiple(systems, ENDS_WITHIN_S=0.1), redirect_stderr(io.StringIO()):
                systems.end(machine, ["true"])
            self.assertIn(machine.poll(), codes)
            machine.stdout.close()


class Unit(unittest.TestCase):
    def test_it_runs_only_programs_that_the_smallest_system_has(self):
        unit = debian.unit(RELEASE["lib/systemd/system/magray.service"].content).decode()
        run = [line.split("=", 1)[1].split()[0] for line in unit.splitlines() if line.startswith("Exec")]
        self.assertEqual(set(run), {"/usr/bin/magray", "/bin/sh"})

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    def test_systemd_finds_the_unit_hardened(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "magray.service"
            path.write_bytes(debian.unit(RELEASE["lib/systemd/system/magray.service"].content))
            told = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=40", path)
            if "unrecognized option" in told.stderr:
                self.skipTest("this systemd-analyze does not judge files")
            self.assertEqual(told.returncode, 0, told.stdout + told.stderr)


if __name__ == "__main__":
    unittest.main()
