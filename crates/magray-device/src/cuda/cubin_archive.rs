//! Compiled kernels that come with the program: one file for many GPUs, of which only what is needed is read.
//! Never hands out bytes whose hash is not the one that was written when they were compiled.

use super::cubin_cache::{CUBIN_BYTES_MAX, CubinKey};
use crate::MappedFile;
use flate2::Compression;
use flate2::read::{ZlibDecoder, ZlibEncoder};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The name of the file, beside the program.
pub const ARCHIVE_FILE: &str = "magray.cubins";
/// The beginning of every file, and the version of what follows.
const MAGIC: [u8; 8] = *b"magraycb";
const LAYOUT: u32 = 1;
/// Magic, layout, number of entries, hash of the table.
const HEADER_BYTES: usize = 8 + 4 + 4 + HASH_BYTES;
/// Name, place, packed length, length, hash.
const ENTRY_BYTES: usize = KEY_BYTES + 8 + 4 + 4 + HASH_BYTES;
const KEY_BYTES: usize = 64;
const HASH_BYTES: usize = 32;
/// More than all kernels for all GPUs.
const ENTRIES_MAX: u32 = 1 << 16;

/// Why an archive, or a kernel of it, is passed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// It cannot be read.
    #[error("'{}' cannot be read ({reason}): install magray again", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// It is not an archive of this version of magray.
    #[error("'{}' is not made for this version of magray: install both together", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Its bytes are not those that were written.
    #[error("'{}' is damaged: install magray again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// Compiled kernels in one file.
#[derive(Debug)]
pub struct CubinArchive {
    path: PathBuf,
    file: MappedFile,
    /// In the order of their names.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    key: String,
    at: u64,
    packed_bytes: u32,
    bytes: u32,
    hash: [u8; HASH_BYTES],
}

impl CubinArchive {
    /// Opens an archive and checks its table.
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        let path = path.to_owned();
        let file = MappedFile::open(&path).map_err(|error| unreadable(&path, &error))?;
        let mut head = [0; HEADER_BYTES];
        if file.len() < HEADER_BYTES {
            return Err(ArchiveError::Foreign { path });
        }
        file.read_at(0, &mut head).map_err(|error| unreadable(&path, &error))?;
        let mut fields = Fields(&head);
        let (magic, layout, count) = (fields.take::<8>(), fields.number(), fields.number());
        if magic != MAGIC || layout != LAYOUT || count > ENTRIES_MAX {
            return Err(ArchiveError::Foreign { path });
        }
        let mut table = vec![0; count as usize * ENTRY_BYTES];
        if file.len() < HEADER_BYTES + table.len() {
            return Err(ArchiveError::Damaged { path });
        }
        file.read_at(HEADER_BYTES, &mut table).map_err(|error| unreadable(&path, &error))?;
        if fields.take::<HASH_BYTES>() != hash_of(&table) {
            return Err(ArchiveError::Damaged { path });
        }
        let entries: Option<Vec<Entry>> = table.chunks_exact(ENTRY_BYTES).map(Entry::read).collect();
        let end = file.len() as u64;
        let is_inside = |entry: &Entry| {
            let inside = entry.at.checked_add(u64::from(entry.packed_bytes)).is_some_and(|last| last <= end);
            inside && u64::from(entry.bytes) <= CUBIN_BYTES_MAX
        };
        let are_right =
            |entries: &Vec<Entry>| entries.is_sorted_by(|a, b| a.key < b.key) && entries.iter().all(is_inside);
        match entries.filter(are_right) {
            Some(entries) => Ok(Self { path, file, entries }),
            None => Err(ArchiveError::Damaged { path }),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has this cubin.
    pub fn has(&self, key: &CubinKey) -> bool {
        self.find(key).is_some()
    }

    /// The cubin, if it is there.
    pub fn get(&self, key: &CubinKey) -> Result<Option<Vec<u8>>, ArchiveError> {
        let Some(entry) = self.find(key) else { return Ok(None) };
        let mut packed = vec![0; entry.packed_bytes as usize];
        self.file.read_at(entry.at as usize, &mut packed).map_err(|error| unreadable(&self.path, &error))?;
        let mut cubin = Vec::with_capacity(entry.bytes as usize);
        // One byte more than there should be would be seen, and no more is made.
        let unpacked = ZlibDecoder::new(&packed[..]).take(u64::from(entry.bytes) + 1).read_to_end(&mut cubin);
        if unpacked.is_ok() && cubin.len() == entry.bytes as usize && hash_of(&cubin) == entry.hash {
            Ok(Some(cubin))
        } else {
            Err(ArchiveError::Damaged { path: self.path.clone() })
        }
    }

    /// Writes an archive of these cubins, of each name once; its size. The file appears when it is whole.
    pub fn write(path: &Path, mut cubins: Vec<(CubinKey, Vec<u8>)>) -> io::Result<u64> {
        cubins.sort_by(|(a, _), (b, _)| a.name().cmp(b.name()));
        cubins.dedup_by(|(a, _), (b, _)| a == b);
        let mut at = (HEADER_BYTES + cubins.len() * ENTRY_BYTES) as u64;
        let (mut table, mut content) = (Vec::new(), Vec::new());
        for (key, cubin) in &cubins {
            let start = content.len();
            ZlibEncoder::new(&cubin[..], Compression::best()).read_to_end(&mut content)?;
            let packed_bytes = content.len() - start;
            let short = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
            table.extend(key.name().as_bytes());
            table.extend(at.to_le_bytes());
            table.extend(short(packed_bytes)?.to_le_bytes());
            table.extend(short(cubin.len())?.to_le_bytes());
            table.extend(hash_of(cubin));
            at += packed_bytes as u64;
        }
        let unfinished = path.with_extension("part");
        let mut file = fs::File::create(&unfinished)?;
        let count = u32::try_from(cubins.len()).map_err(io::Error::other)?;
        let head = [&MAGIC[..], &LAYOUT.to_le_bytes(), &count.to_le_bytes(), &hash_of(&table)].concat();
        for part in [&head, &table, &content] {
            file.write_all(part)?;
        }
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        Ok(at)
    }

    fn find(&self, key: &CubinKey) -> Option<&Entry> {
        let at = self.entries.binary_search_by(|entry| entry.key.as_str().cmp(key.name())).ok()?;
        self.entries.get(at)
    }
}

impl Entry {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let key = String::from_utf8(fields.take::<KEY_BYTES>().to_vec()).ok()?;
        let at = u64::from_le_bytes(fields.take());
        Some(Self { key, at, packed_bytes: fields.number(), bytes: fields.number(), hash: fields.take() })
    }
}

/// Fields of known lengths one behind the other; more than there are is a bug.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the lengths of the fields are the length of the whole");
        self.0 = rest;
        *field
    }

    fn number(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

fn hash_of(bytes: &[u8]) -> [u8; HASH_BYTES] {
    Sha256::digest(bytes).into()
}

fn unreadable(path: &Path, error: &io::Error) -> ArchiveError {
    ArchiveError::Unreadable { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::arch::Arch;
    use super::super::variants::all_specs;
    use super::*;

    fn keys() -> Vec<CubinKey> {
        all_specs().iter().take(5).map(|spec| CubinKey::of(spec, Arch::of((9, 0)))).collect()
    }

    /// Cubins with something to pack, and one without.
    fn cubin(at: usize) -> Vec<u8> {
        (0..at * 1000).map(|i| (i % (7 + at)) as u8).collect()
    }

    fn written() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ARCHIVE_FILE);
        let cubins = keys().into_iter().enumerate().skip(1).map(|(at, key)| (key, cubin(at - 1)));
        let bytes = CubinArchive::write(&path, cubins.collect()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
        (dir, path)
    }

    #[test]
    fn what_was_written_is_found_and_nothing_else() {
        let (dir, path) = written();
        let archive = CubinArchive::open(&path).unwrap();
        for (at, key) in keys().iter().enumerate().skip(1) {
            assert_eq!((archive.has(key), archive.get(key).unwrap()), (true, Some(cubin(at - 1))));
        }
        assert_eq!((archive.has(&keys()[0]), archive.get(&keys()[0])), (false, Ok(None)));
        assert!(fs::metadata(&path).unwrap().len() < 3000, "it is packed");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no unfinished file is left");
    }

    #[test]
    fn a_damaged_archive_never_gives_other_bytes() {
        let (_dir, path) = written();
        let whole = fs::read(&path).unwrap();
        let gives_wrong = || match CubinArchive::open(&path) {
            Err(_) => false,
            Ok(archive) => {
                let read = |(at, key): (usize, &CubinKey)| (archive.get(key), cubin(at.saturating_sub(1)));
                let mut found = keys().iter().enumerate().skip(1).map(read).collect::<Vec<_>>().into_iter();
                // Each is right or refused; in a table that was tampered with none is missing.
                found.any(|(got, right)| !matches!(got, Err(ArchiveError::Damaged { .. })) && got != Ok(Some(right)))
            }
        };
        assert!(!gives_wrong());
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            fs::write(&path, damaged).unwrap();
            assert!(!gives_wrong(), "byte {at}");
        }
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(CubinArchive::open(&path).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn what_is_no_archive_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ARCHIVE_FILE);
        assert!(matches!(CubinArchive::open(&path), Err(ArchiveError::Unreadable { .. })));
        fs::write(&path, vec![7; 10_000]).unwrap();
        let foreign = CubinArchive::open(&path).unwrap_err();
        assert_eq!(foreign, ArchiveError::Foreign { path: path.clone() });
        assert!(foreign.to_string().contains("install both together"), "{foreign}");
        let (_other, written) = written();
        let mut newer = fs::read(written).unwrap();
        newer[8] = 2;
        fs::write(&path, newer).unwrap();
        assert!(matches!(CubinArchive::open(&path), Err(ArchiveError::Foreign { .. })));
    }
}
