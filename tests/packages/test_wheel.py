"""What packs the wheel: the library for Python becomes one that a program without Python loads; what does not fit is refused.

Runs the program that packs on a small library and a shell script in place of what cargo builds.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "crates" / "magray-python"
sys.path.insert(0, str(PYTHON))
import symbols  # noqa: E402

# A library that asks the interpreter for symbols, as every module in C does.
MODULES = sorted(Path(sysconfig.get_path("platstdlib"), "lib-dynload").glob("_json*.so"))
STARTER = b"#!/bin/sh\n"
LIBRARY = """
extern char PyExc_ValueError[];
char *needed(void) { return PyExc_ValueError; }
int magray_main(void) { return 7; }
"""


def loads(library):
    """Whether a program without an interpreter starts with this library, all its symbols asked for at once."""
    loaded = os.environ | {"LD_PRELOAD": str(library), "LD_BIND_NOW": "1"}
    done = subprocess.run(["/bin/cat", "/proc/self/maps"], env=loaded, capture_output=True, text=True)
    # What is no library is ignored with a message, and the program starts without it. Python's own dlopen would not do: its
    # interpreter has the symbols.
    return done.returncode == 0 and os.path.realpath(library) in done.stdout


@unittest.skipUnless(sys.platform == "linux", "libraries are ELF on Linux")
class Symbols(unittest.TestCase):
    @unittest.skipUnless(MODULES, "the modules of this Python are inside of it")
    def test_a_library_loads_without_an_interpreter_and_with_one(self):
        with tempfile.TemporaryDirectory() as folder:
            changed, asked_for = symbols.optional(MODULES[0].read_bytes())
            self.assertGreater(asked_for, 0)
            self.assertEqual(len(changed), MODULES[0].stat().st_size)
            copy = Path(folder, MODULES[0].name)
            copy.write_bytes(changed)
            self.assertFalse(loads(MODULES[0]))
            self.assertTrue(loads(copy))
            broken = Path(folder, "broken.so")
            for content in (changed[:1000], b"no library"):
                broken.write_bytes(content)
                self.assertFalse(loads(broken))
            code = f"import sys; sys.path.insert(0, {folder!r}); import _json; print(_json.__file__, _json.encode_basestring('a'))"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            self.assertEqual(done.stdout, f'{copy} "a"\n', done.stderr)

    def test_what_is_no_library_is_refused(self):
        with self.assertRaises(ValueError):
            symbols.optional(b"#!/bin/sh\n")


@unittest.skipUnless(sys.platform == "linux" and shutil.which("cc"), "there is no C compiler")
class Pack(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "starter").write_bytes(STARTER)

    def pack(self, source, more=b"", glibc="2.28"):
        (self.folder / "library.c").write_text(source)
        library = self.folder / "library.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-nostdlib", "-o", library, self.folder / "library.c"], check=True)
        library.write_bytes(library.read_bytes() + more)
        words = ["--library", library, "--starter", self.folder / "starter", "--glibc", glibc, "--into", self.folder]
        return subprocess.run([sys.executable, PYTHON / "pack", *words], capture_output=True, text=True)

    def test_a_wheel_has_one_engine_its_starter_and_a_script(self):
        done = self.pack(LIBRARY)
        self.assertEqual(done.returncode, 0, done.stderr)
        [wheel] = self.folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            self.assertEqual(archive.read("magray/bin/magray"), STARTER)
            self.assertTrue(archive.getinfo("magray/bin/magray").external_attr >> 16 & 0o100)
            [scripts] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
            self.assertIn(b"magray = magray.program:main", archive.read(scripts))
            (self.folder / "packed.so").write_bytes(archive.read("magray/_magray.abi3.so"))
        self.assertFalse(loads(self.folder / "library.so"))
        self.assertTrue(loads(self.folder / "packed.so"))

    def test_the_program_of_a_wheel_runs_what_its_library_has(self):
        compiled = ["cc", "-D_GNU_SOURCE", "-o", self.folder / "starter", PYTHON / "program.c", "-ldl"]
        subprocess.run(compiled, check=True)
        # What this machine's own compiler makes may need its own C library.
        done = self.pack(LIBRARY, glibc="9.9")
        self.assertEqual(done.returncode, 0, done.stderr)
        [wheel] = self.folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.folder)
        program = self.folder / "magray" / "bin" / "magray"
        program.chmod(0o755)
        # As the script of an environment does it; a link to the program is followed.
        code = f"import sys; sys.path.insert(0, {str(self.folder)!r}); from magray.program import main; main()"
        (self.folder / "linked").symlink_to(program)
        for words in ([program], [self.folder / "linked"], [sys.executable, "-B", "-c", code]):
            self.assertEqual(subprocess.run(words).returncode, 7)
        (self.folder / "magray" / "_magray.abi3.so").unlink()
        done = subprocess.run([program], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("_magray.abi3.so", done.stderr)

    def test_a_library_without_the_program_is_refused(self):
        done = self.pack(LIBRARY.replace("magray_main", "another"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("built without the program", done.stderr)

    def test_a_library_of_a_newer_glibc_is_refused(self):
        done = self.pack(LIBRARY, more=b"GLIBC_2.99")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("needs glibc 2.99", done.stderr)

    def test_a_wheel_that_is_too_large_is_refused(self):
        # What is random does not get smaller.
        done = self.pack(LIBRARY, more=os.urandom(20_100_000))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("20 at most", done.stderr)


if __name__ == "__main__":
    unittest.main()
