//! Compiled kernels on disk, safe against other processes, half-written files and full disks.
//! Never an error: what cannot be read is compiled again, what cannot be written is compiled next time.

use super::arch::Arch;
use super::compile::{KernelSpec, options};
use super::sources;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The start of every file, and the version of what follows.
const MAGIC: [u8; 8] = *b"magraycu";
const LAYOUT: u32 = 1;
/// Magic, layout, major and minor version of the compiler, length, checksum.
const HEADER_BYTES: usize = 8 + 4 + 4 + 4 + 8 + 32;
/// More than all kernels that a few models need, for several GPUs and some versions of this program.
const FILES_MAX: usize = 256;
/// A larger file is not one of ours.
pub(super) const CUBIN_BYTES_MAX: u64 = 64 << 20;
/// An unfinished file this old was left behind by a process that died.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub struct CubinCache {
    folder: PathBuf,
    files_max: usize,
}

/// Names a cubin by everything that goes into it, but for the version of the compiler: a machine that lost its compiler
/// still finds what it compiled before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CubinKey(String);

impl CubinKey {
    /// The name of a kernel's cubin for an architecture.
    pub fn of(spec: &KernelSpec, arch: Arch) -> Self {
        let mut hasher = Sha256::new();
        // Each part with its length, so that no two lists of parts make the same bytes.
        let mut add = |part: &str| {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        };
        add(spec.file);
        add(spec.entry);
        let source = sources::kernel(spec.file).unwrap_or_default();
        add(source);
        for (name, text) in sources::headers_of(source) {
            add(name);
            add(text);
        }
        for option in options(spec, arch) {
            add(&option);
        }
        Self(hex(&hasher.finalize()))
    }

    /// The name: 64 digits.
    pub(super) fn name(&self) -> &str {
        &self.0
    }
}

impl CubinCache {
    /// A cache in this folder, which is made when it is first written to.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), files_max: FILES_MAX }
    }

    /// With another bound of files.
    #[must_use]
    pub fn with_files_max(mut self, files: usize) -> Self {
        self.files_max = files;
        self
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the folder where it is missing, for its owner only: what is written here runs on the GPU.
    pub fn create_folder(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.folder)
    }

    /// The cubin, if a whole one is there.
    pub fn get(&self, key: &CubinKey) -> Option<Vec<u8>> {
        let path = self.path(key);
        let file = File::open(&path).ok()?;
        if file.metadata().ok()?.len() > CUBIN_BYTES_MAX {
            return None;
        }
        let cubin = checked(fs::read(&path).ok()?)?;
        // The oldest files are evicted; in a read-only folder none is.
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(cubin)
    }

    /// Stores a cubin. A concurrent reader sees the old file or the new one, whole. A failure is for the log only.
    pub fn put(&self, key: &CubinKey, cubin: &[u8], compiler: (u32, u32)) -> io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        self.create_folder()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.folder.join(format!("{}.{}.{number}.part", key.0, std::process::id()));
        let written =
            write(&unfinished, &header(cubin, compiler), cubin).and_then(|()| fs::rename(&unfinished, self.path(key)));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        self.tidy_up();
        written
    }

    fn path(&self, key: &CubinKey) -> PathBuf {
        self.folder.join(format!("{}.cubin", key.0))
    }

    /// Removes the oldest beyond the limit, and what dead processes left. Touches no other file.
    fn tidy_up(&self) {
        let now = SystemTime::now();
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else { continue };
            let is_ours = name
                .split('.')
                .next()
                .is_some_and(|stem| stem.len() == 64 && stem.bytes().all(|byte| byte.is_ascii_hexdigit()));
            if is_ours && name.ends_with(".cubin") {
                kept.push((modified, entry.path()));
            } else if is_ours
                && name.ends_with(".part")
                && now.duration_since(modified).is_ok_and(|age| age > ABANDONED_AFTER)
            {
                let _ = fs::remove_file(entry.path());
            }
        }
        kept.sort();
        let surplus = kept.len().saturating_sub(self.files_max);
        for (_, path) in kept.into_iter().take(surplus) {
            // Another process may have been faster.
            let _ = fs::remove_file(path);
        }
    }
}

fn header(cubin: &[u8], compiler: (u32, u32)) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend(MAGIC);
    bytes.extend(LAYOUT.to_le_bytes());
    bytes.extend(compiler.0.to_le_bytes());
    bytes.extend(compiler.1.to_le_bytes());
    bytes.extend((cubin.len() as u64).to_le_bytes());
    bytes.extend(Sha256::digest(cubin));
    debug_assert_eq!(bytes.len(), HEADER_BYTES);
    bytes
}

/// The cubin in a file's bytes, if they are one of ours and whole.
fn checked(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let head = bytes.get(..HEADER_BYTES)?;
    let compiler = (number(head, 12)?, number(head, 16)?);
    // Made anew from the content, the header must come out the same: magic, layout, length and checksum at once.
    if header(&bytes[HEADER_BYTES..], compiler) != head {
        return None;
    }
    bytes.drain(..HEADER_BYTES);
    Some(bytes)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn write(path: &Path, header: &[u8], cubin: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(header)?;
    // Not forced to the disk: a file that a power cut emptied fails its checksum.
    file.write_all(cubin)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> CubinKey {
        CubinKey(format!("{number:064x}"))
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn what_was_put_is_found_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(dir.path().join("deep/er"));
        assert_eq!(cache.get(&key(1)), None);
        cache.put(&key(1), b"cubin", (13, 0)).unwrap();
        cache.put(&key(2), b"", (13, 0)).unwrap();
        assert_eq!(cache.get(&key(1)).as_deref(), Some(&b"cubin"[..]));
        assert_eq!(cache.get(&key(2)).as_deref(), Some(&b""[..]));
        assert_eq!(files(cache.folder()), 2);
    }

    #[test]
    fn truncated_foreign_and_damaged_files_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(dir.path());
        cache.put(&key(1), b"a cubin", (12, 9)).unwrap();
        let path = cache.path(&key(1));
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(cache.get(&key(1)), None, "{length} bytes");
        }
        for at in (0..whole.len()).filter(|at| !(12..20).contains(at)) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.get(&key(1)), None, "byte {at}");
        }
        fs::write(&path, b"\x7fELF and so on, longer than the header of a file of the cache is").unwrap();
        assert_eq!(cache.get(&key(1)), None);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(cache.get(&key(1)), None);
        assert!(cache.put(&key(1), b"a cubin", (12, 9)).is_err());
        assert_eq!(files(dir.path()), 1, "an unfinished file was left");
    }

    #[test]
    fn writers_and_readers_at_once_see_whole_files_only() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(dir.path());
        let texts: Vec<Vec<u8>> = (0..4u8).map(|writer| vec![writer; 10_000 + usize::from(writer)]).collect();
        std::thread::scope(|scope| {
            for text in &texts {
                scope.spawn(|| (0..50).for_each(|_| cache.put(&key(7), text, (13, 0)).unwrap()));
            }
            scope.spawn(|| {
                for _ in 0..200 {
                    if let Some(found) = cache.get(&key(7)) {
                        assert!(texts.contains(&found));
                    }
                }
            });
        });
        assert!(texts.contains(&cache.get(&key(7)).unwrap()));
        assert_eq!(files(dir.path()), 1);
    }

    #[test]
    fn a_folder_that_takes_no_files_costs_only_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"x").unwrap();
        let cache = CubinCache::new(file.join("below"));
        assert!(cache.put(&key(1), b"cubin", (13, 0)).is_err());
        assert_eq!(cache.get(&key(1)), None);
    }

    #[test]
    fn a_read_only_folder_still_gives_what_it_has() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(dir.path());
        cache.put(&key(1), b"cubin", (13, 0)).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o500)).unwrap();
        // The superuser may write everywhere, so only the reading is certain.
        let _ = cache.put(&key(2), b"other", (13, 0));
        assert_eq!(cache.get(&key(1)).as_deref(), Some(&b"cubin"[..]));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn the_oldest_go_first_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        const MOST: usize = 8;
        let cache = CubinCache::new(dir.path()).with_files_max(MOST);
        fs::write(dir.path().join("notes.txt"), b"mine").unwrap();
        let abandoned = dir.path().join(format!("{}.1.2.part", key(9).0));
        fs::write(&abandoned, b"half").unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(100_000);
        File::options().append(true).open(&abandoned).unwrap().set_modified(long_ago).unwrap();
        for number in 0..MOST {
            cache.put(&key(number), b"cubin", (13, 0)).unwrap();
            let age = Duration::from_secs(10_000 - number as u64);
            let file = File::options().append(true).open(cache.path(&key(number))).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        assert!(cache.get(&key(0)).is_some(), "reading makes it young");
        cache.put(&key(MOST), b"cubin", (13, 0)).unwrap();
        assert!(cache.get(&key(0)).is_some() && cache.get(&key(1)).is_none() && cache.get(&key(2)).is_some());
        assert_eq!(files(dir.path()), MOST + 1);
        assert!(!abandoned.exists());
    }

    #[test]
    fn all_that_goes_into_a_cubin_is_in_its_name() {
        let spec = KernelSpec::new("a.cu", "a").define("HEAD", 32);
        let arch = Arch::of((9, 0));
        let names = [
            CubinKey::of(&spec, arch),
            CubinKey::of(&spec, Arch::of((8, 0))),
            CubinKey::of(&KernelSpec::new("a.cu", "a").define("HEAD", 64), arch),
            CubinKey::of(&KernelSpec::new("a.cu", "b").define("HEAD", 32), arch),
            CubinKey::of(&KernelSpec::new("b.cu", "a").define("HEAD", 32), arch),
        ];
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name));
        }
        assert_eq!(names[0], CubinKey::of(&spec.clone(), arch));
    }
}
