//! Where compiled kernels come from: the cache on disk, the archive that came with the program, the compiler.
//! Loads nothing itself; what is damaged or too new for the driver is passed over.

use super::arch::Arch;
use super::compile::{KernelSpec, compile};
use super::cubin_archive::{ArchiveError, CubinArchive};
use super::cubin_cache::{CubinCache, CubinKey};
use super::declined::Declined;
use super::driver;
use super::error::CudaError;
use super::libraries::SearchPath;
use super::nvrtc::{CompileError, Nvrtc};
use super::variants::all_specs;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Why a kernel is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// It must be compiled, and there is no compiler that can.
    #[error("{declined}{}", passed_over(archive.as_ref()))]
    Declined {
        /// Why not.
        declined: Declined,
        /// What was wrong with the archive that came with the program.
        archive: Option<ArchiveError>,
    },
    /// The compiler refused it.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The driver refused it.
    #[error("the kernel '{entry}' cannot be loaded: {source}")]
    Load {
        /// The kernel.
        entry: &'static str,
        /// What the driver said.
        source: CudaError,
    },
}

fn passed_over(archive: Option<&ArchiveError>) -> String {
    archive.map_or(String::new(), |error| format!("; the kernels that came with magray were passed over: {error}"))
}

/// The sources of the kernels for one architecture.
#[derive(Debug)]
pub(super) struct CubinSources {
    arch: Arch,
    search: SearchPath,
    cache: Option<CubinCache>,
    archive: Option<PathBuf>,
    /// Opened when the first kernel is not in the cache.
    carried: OnceLock<Result<CubinArchive, ArchiveError>>,
    /// Looked for when the first kernel must be compiled: a machine with a full cache needs none.
    nvrtc: OnceLock<Result<Nvrtc, Declined>>,
}

impl CubinSources {
    /// Without a cache and an archive everything is compiled, in every process.
    pub(super) fn new(arch: Arch, search: SearchPath, cache: Option<CubinCache>, archive: Option<PathBuf>) -> Self {
        Self { arch, search, cache, archive, carried: OnceLock::new(), nvrtc: OnceLock::new() }
    }

    pub(super) fn arch(&self) -> Arch {
        self.arch
    }

    /// Hands a kernel's cubin to `load`, from the first source whose cubin the driver can read.
    pub(super) fn load<T>(
        &self,
        spec: &KernelSpec,
        load: impl Fn(&[u8]) -> Result<T, CudaError>,
    ) -> Result<T, KernelError> {
        let load = |cubin: &[u8]| load(cubin).map_err(|source| KernelError::Load { entry: spec.entry, source });
        let key = CubinKey::of(spec, self.arch);
        if let Some(cubin) = self.cache.as_ref().and_then(|cache| cache.get(&key)) {
            match load(&cubin) {
                // Made by a compiler that is too new for this driver, perhaps before a downgrade.
                Err(KernelError::Load { source, .. }) if source.is_bad_image() => {}
                result => return result,
            }
        }
        let mut archive_error = None;
        match self.carried().map(|archive| archive.and_then(|archive| archive.get(&key))) {
            Some(Ok(Some(cubin))) => match load(&cubin) {
                // As above.
                Err(KernelError::Load { source, .. }) if source.is_bad_image() => {}
                result => return result,
            },
            Some(Err(error)) => archive_error = Some(error),
            Some(Ok(None)) | None => {}
        }
        let found = self.nvrtc.get_or_init(|| find_compiler(&self.search, self.arch));
        let declined =
            |declined: &Declined| KernelError::Declined { declined: declined.clone(), archive: archive_error };
        let nvrtc = found.as_ref().map_err(declined)?;
        let cubin = compile(nvrtc, spec, self.arch)?;
        let loaded = load(&cubin)?;
        if let Some(cache) = &self.cache {
            // A disk that takes no file costs time at the next start and nothing else.
            let _ = cache.put(&key, &cubin, nvrtc.version());
        }
        Ok(loaded)
    }

    /// The archive, if there should be one.
    fn carried(&self) -> Option<Result<&CubinArchive, ArchiveError>> {
        let path = self.archive.as_ref()?;
        Some(self.carried.get_or_init(|| CubinArchive::open(path)).as_ref().map_err(Clone::clone))
    }
}

/// Where the kernels of a GPU can come from, for people.
#[derive(Debug)]
pub struct KernelSources {
    /// What they are compiled for.
    pub arch: Arch,
    /// Where compiled ones are kept.
    pub cache: Option<PathBuf>,
    /// How many forms came with the program, or why none is used; `None`: there is no archive.
    pub carried: Option<Result<usize, ArchiveError>>,
    /// The compiler's version, or why there is none.
    pub compiler: Result<(u32, u32), Declined>,
}

impl KernelSources {
    /// Looks at all of them for GPUs of this compute capability.
    pub fn look(capability: (u32, u32), search: &SearchPath, cache: Option<PathBuf>, archive: Option<PathBuf>) -> Self {
        let arch = Arch::of(capability);
        let carried = archive.map(|path| -> Result<usize, ArchiveError> {
            let archive = CubinArchive::open(&path)?;
            let is_there = |spec: &KernelSpec| spec.runs_on(arch) && archive.has(&CubinKey::of(spec, arch));
            Ok(all_specs().iter().filter(|spec| is_there(spec)).count())
        });
        let compiler = find_compiler(search, arch).map(|nvrtc| nvrtc.version());
        Self { arch, cache, carried, compiler }
    }
}

/// A compiler for this architecture, or why there is none.
fn find_compiler(search: &SearchPath, arch: Arch) -> Result<Nvrtc, Declined> {
    let driver = driver::start(search).ok();
    if let Some(nvrtc) = Nvrtc::find(search, Some(arch), driver) {
        return Ok(nvrtc);
    }
    match Nvrtc::find(search, None, None) {
        Some(other) => Err(Declined::NvrtcTooOld { version: other.version(), arch: arch.to_string() }),
        None => Err(Declined::NoNvrtc),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cubin_archive::ARCHIVE_FILE;
    use super::*;
    use std::path::Path;

    /// An architecture that no compiler knows.
    const ARCH: (u32, u32) = (99, 0);

    fn spec() -> KernelSpec {
        all_specs().remove(0)
    }

    fn key() -> CubinKey {
        CubinKey::of(&spec(), Arch::of(ARCH))
    }

    fn sources(folder: &Path) -> CubinSources {
        let (cache, archive) = (CubinCache::new(folder.join("cache")), folder.join(ARCHIVE_FILE));
        CubinSources::new(Arch::of(ARCH), SearchPath::loader_only(), Some(cache), Some(archive))
    }

    /// What the driver gets to read; of this it understands all but the bytes that are named.
    fn loaded(folder: &Path, unread: &[u8]) -> Result<Vec<u8>, KernelError> {
        let bad = CudaError::Other { code: 200, name: "invalid_image".to_owned() };
        assert!(bad.is_bad_image());
        sources(folder).load(&spec(), |cubin| if cubin == unread { Err(bad.clone()) } else { Ok(cubin.to_vec()) })
    }

    #[test]
    fn the_cache_comes_before_the_archive_and_what_the_driver_cannot_read_after() {
        let dir = tempfile::tempdir().unwrap();
        CubinArchive::write(&dir.path().join(ARCHIVE_FILE), vec![(key(), b"carried".to_vec())]).unwrap();
        assert_eq!(loaded(dir.path(), b"").unwrap(), b"carried");
        assert!(!dir.path().join("cache").exists(), "what is carried is not kept twice");
        CubinCache::new(dir.path().join("cache")).put(&key(), b"cached", (13, 0)).unwrap();
        assert_eq!(loaded(dir.path(), b"").unwrap(), b"cached");
        assert_eq!(loaded(dir.path(), b"cached").unwrap(), b"carried");
    }

    #[test]
    fn a_damaged_archive_is_passed_over_and_the_reason_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ARCHIVE_FILE);
        CubinArchive::write(&path, vec![(key(), b"carried".to_vec())]).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        // No compiler knows the architecture: whichever this machine has, it comes to the end of the list.
        let refused = loaded(dir.path(), b"").unwrap_err();
        assert!(
            matches!(&refused, KernelError::Declined { archive: Some(ArchiveError::Damaged { .. }), .. }),
            "{refused:?}"
        );
        assert!(refused.to_string().contains("passed over") && refused.to_string().contains("damaged"), "{refused}");
    }

    #[test]
    fn an_archive_of_other_kernels_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let other = CubinKey::of(&spec(), Arch::of((9, 0)));
        CubinArchive::write(&dir.path().join(ARCHIVE_FILE), vec![(other, b"carried".to_vec())]).unwrap();
        assert!(matches!(loaded(dir.path(), b""), Err(KernelError::Declined { archive: None, .. })));
        let look = |capability| {
            let archive = Some(dir.path().join(ARCHIVE_FILE));
            KernelSources::look(capability, &SearchPath::loader_only(), None, archive).carried
        };
        assert_eq!((look(ARCH), look((9, 0))), (Some(Ok(0)), Some(Ok(1))));
    }

    #[test]
    fn a_gpu_that_no_compiler_knows_is_told_apart_from_no_compiler() {
        let declined = find_compiler(&SearchPath::system(), Arch::of(ARCH)).unwrap_err();
        match Nvrtc::find(&SearchPath::system(), None, None) {
            Some(_) => assert_eq!(declined.code(), "nvrtc_too_old"),
            None => assert_eq!(declined.code(), "no_nvrtc"),
        }
    }
}
