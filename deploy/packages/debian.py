"""A Debian package of a release: what it needs, where its files go, and what happens when it comes and goes.

Starts no server: that is for whoever installs it, after a look at /etc/magray/magray.toml.
"""

import hashlib

import archives

CONTROL = """\
Package: magray
Version: {version}
Architecture: {architecture}
Maintainer: magray developers <magray@localhost>
Installed-Size: {kilobytes}
Depends: libc6 (>= {glibc})
Recommends: systemd
Section: science
Priority: optional
Description: embeddings, reranking, chat and vector search from one binary
 It uses an NVIDIA GPU where there is one, gives its memory back when idle, and
 answers from the CPU where the GPU is missing, full, hot or broken. The GPU's
 driver comes from the machine; no toolkit is needed.
"""
SETTINGS = """\
# Settings of the service: see `magray config`, and /usr/share/doc/magray. Keys belong into /etc/magray/keys.
[model]
name = "all-MiniLM-L6-v2"
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: magray

Files: *
Copyright: magray developers
License: MIT or Apache-2.0
Comment: The texts are in LICENSE-MIT and LICENSE-APACHE beside this file; what is linked into the program is listed
 with its licences in the bill of materials of the release.
"""
# `$1` is what the package system does.
POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # One that runs goes on as the new version.
    systemctl try-restart magray.service
fi
"""
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now magray.service
fi
"""
POSTRM = """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    # Models, collections and what was measured of devices.
    rm -rf /var/lib/magray /var/lib/private/magray /var/cache/magray /var/cache/private/magray /etc/magray
fi
"""


def package(into, version, architecture, glibc, release, epoch):
    files = installed(release)
    content = archives.tarred(files, epoch, before="./")
    kilobytes = sum(len(file.content) for file in files.values()) // 1024 + 1
    control = {
        "control": archives.File(CONTROL.format(version=version, architecture=architecture, glibc=glibc, kilobytes=kilobytes).encode()),
        "conffiles": archives.File(b"/etc/magray/magray.toml\n"),
        "md5sums": archives.File("".join(f"{hashlib.md5(file.content).hexdigest()}  {place}\n" for place, file in sorted(files.items()) if not place.startswith("etc/")).encode()),
        "postinst": archives.File(POSTINST.encode(), is_program=True),
        "prerm": archives.File(PRERM.encode(), is_program=True),
        "postrm": archives.File(POSTRM.encode(), is_program=True),
    }
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", archives.gzipped(archives.tarred(control, epoch, before="./"))),
        ("data.tar.gz", archives.gzipped(content)),
    ]
    path = into / f"magray_{version}_{architecture}.deb"
    path.write_bytes(archives.ar(members, epoch))
    return path


def installed(release):
    """The files of a release where Debian has them."""
    files = {}
    for place, file in release.items():
        if place.startswith("share/man/"):
            files[f"usr/{place}.gz"] = archives.File(archives.gzipped(file.content))
        elif place == "share/doc/magray/CHANGELOG.md":
            files["usr/share/doc/magray/changelog.gz"] = archives.File(archives.gzipped(file.content))
        elif place == "share/zsh/site-functions/_magray":
            files["usr/share/zsh/vendor-completions/_magray"] = file
        elif place == "lib/systemd/system/magray.service":
            files[f"usr/{place}"] = archives.File(unit(file.content))
        else:
            files[f"usr/{place}"] = file
    files["etc/magray/magray.toml"] = archives.File(SETTINGS.encode())
    files["usr/share/doc/magray/copyright"] = archives.File(COPYRIGHT.encode())
    return files


def unit(content):
    """The unit, with the place of the program in packages."""
    assert content.count(b"/usr/local/bin/magray") == 1, "the unit starts the program once"
    lines = content.split(b"\n")
    start = next(at for at, line in enumerate(lines) if line == b"[Unit]")
    return b"\n".join(lines[start:]).replace(b"/usr/local/bin/magray", b"/usr/bin/magray")
