//! NVIDIA's runtime compiler, bound by hand: its library's name changes with every major version.
//! Needs no GPU and no driver; reads no file of ours.

use super::arch::Arch;
use super::libraries::{self, SearchPath};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;

/// The least version: the first that knows every architecture the kernels have paths for.
const LEAST_VERSION: (u32, u32) = (12, 0);

/// Why a program was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The compiler refused the source.
    #[error("'{file}' does not compile for {arch} with {defines}:\n{log}")]
    Source {
        /// The file.
        file: &'static str,
        /// The architecture.
        arch: Arch,
        /// The definitions, as options.
        defines: String,
        /// What the compiler wrote.
        log: String,
    },
    /// No such file was built in.
    #[error("there is no kernel file '{file}' in this program: this is a bug, please report it")]
    UnknownFile {
        /// The file.
        file: &'static str,
    },
    /// The compiler itself failed.
    #[error("the kernel compiler failed at '{file}' ({reason}): install another version of NVRTC")]
    Compiler {
        /// The file.
        file: &'static str,
        /// The compiler's name of the failure.
        reason: String,
    },
}

type Program = *mut std::ffi::c_void;
type Status = c_int;
const COMPILATION_FAILED: Status = 6;

/// A compiler that was found and works.
#[derive(Debug)]
pub struct Nvrtc {
    path: PathBuf,
    version: (u32, u32),
    archs: Vec<u32>,
    functions: Functions,
    /// Loaded by the compiler itself, by name, when it first compiles: it must be there by then.
    _builtins: Option<Library>,
    /// Keeps the functions in memory.
    _library: Library,
}

#[derive(Debug)]
struct Functions {
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
}

/// One file to compile with all that it includes.
#[derive(Debug)]
pub(super) struct Unit<'a> {
    pub(super) file: &'static str,
    pub(super) source: &'a str,
    /// Names as `#include` writes them, and texts.
    pub(super) headers: &'a [(&'static str, &'static str)],
    pub(super) arch: Arch,
    pub(super) options: Vec<String>,
}

impl Nvrtc {
    /// The first compiler that is new enough and knows the architecture.
    ///
    /// A compiler of the driver's major version or an older one is taken before a newer one, for a driver need not load
    /// what newer compilers make.
    pub fn find(search: &SearchPath, wanted: Option<Arch>, driver: Option<(u32, u32)>) -> Option<Self> {
        let mut newer = None;
        for path in libraries::nvrtc_candidates(search) {
            let Some(found) = Self::open(&path) else { continue };
            if !wanted.is_none_or(|arch| found.knows(arch)) {
                continue;
            }
            if driver.is_none_or(|driver| found.version.0 <= driver.0) {
                return Some(found);
            }
            newer.get_or_insert(found);
        }
        newer
    }

    /// Opens the compiler at a path; `None` where there is none, or none that is new enough.
    pub fn open(path: &Path) -> Option<Self> {
        let builtins = libraries::open_nvrtc_builtins(path);
        let library = libraries::open(path)?;
        let (functions, version, archs) = bind(&library)?;
        (version >= LEAST_VERSION).then(|| Self {
            path: path.to_path_buf(),
            version,
            archs,
            functions,
            _builtins: builtins,
            _library: library,
        })
    }

    /// Where it was found: a name that the loader knows, or a path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Whether it compiles for this architecture.
    pub fn knows(&self, arch: Arch) -> bool {
        self.archs.contains(&arch.number())
    }

    pub(super) fn compile(&self, unit: &Unit<'_>) -> Result<Vec<u8>, CompileError> {
        let failed = |status| CompileError::Compiler { file: unit.file, reason: self.reason(status) };
        let program = self.create(unit).map_err(failed)?;
        let options: Vec<CString> = unit.options.iter().map(|option| c_text(option)).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive; the options are texts that outlive the call, as many as is said.
        let status = unsafe { (self.functions.compile)(program.raw, pointers.len() as c_int, pointers.as_ptr()) };
        if status == COMPILATION_FAILED {
            let log = program.read(self.functions.log_size, self.functions.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned();
            let defines: Vec<&str> = unit.options.iter().filter(|o| o.starts_with("-D")).map(String::as_str).collect();
            let defines = if defines.is_empty() { "no definitions".to_owned() } else { defines.join(" ") };
            return Err(CompileError::Source { file: unit.file, arch: unit.arch, defines, log });
        }
        check(status).map_err(failed)?;
        program.read(self.functions.cubin_size, self.functions.cubin).map_err(failed)
    }

    fn create(&self, unit: &Unit<'_>) -> Result<OwnedProgram<'_>, Status> {
        let (source, name) = (c_text(unit.source), c_text(unit.file));
        let texts: Vec<CString> = unit.headers.iter().map(|(_, text)| c_text(text)).collect();
        let names: Vec<CString> = unit.headers.iter().map(|(name, _)| c_text(name)).collect();
        let text_pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let name_pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let mut raw = ptr::null_mut();
        // SAFETY: all texts end with a zero and outlive the call, which copies them; both lists have the length given.
        check(unsafe {
            (self.functions.create)(
                &mut raw,
                source.as_ptr(),
                name.as_ptr(),
                text_pointers.len() as c_int,
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        })?;
        Ok(OwnedProgram { raw, functions: &self.functions })
    }

    fn reason(&self, status: Status) -> String {
        // SAFETY: takes any number and returns a text that lives as long as the library.
        let text = unsafe { (self.functions.error_string)(status) };
        if text.is_null() {
            return format!("code {status}");
        }
        // SAFETY: it is not null, so it is that text.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A program of the compiler's, destroyed with this.
struct OwnedProgram<'a> {
    raw: Program,
    functions: &'a Functions,
}

impl OwnedProgram<'_> {
    /// Reads what a pair of functions gives: its size, then its bytes.
    fn read(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        fill: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, Status> {
        let mut bytes = 0;
        // SAFETY: the program is alive; writes one number.
        check(unsafe { size(self.raw, &mut bytes) })?;
        let mut buffer = vec![0u8; bytes];
        // SAFETY: writes as many bytes as the first function said.
        check(unsafe { fill(self.raw, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed here once.
        let _ = unsafe { (self.functions.destroy)(&mut self.raw) };
    }
}

fn check(status: Status) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(status) }
}

fn c_text(text: &str) -> CString {
    // Sources and options are ours and have no zero byte; one that had would be cut there and fail to compile.
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

/// Looks the functions up and asks for the version.
fn bind(library: &Library) -> Option<(Functions, (u32, u32), Vec<u32>)> {
    // SAFETY: each name is looked up with the type that it has in every version from 11.2 on; the pointers are used only
    // while the library is held beside them.
    unsafe {
        let functions = Functions {
            error_string: *library.get(b"nvrtcGetErrorString\0").ok()?,
            create: *library.get(b"nvrtcCreateProgram\0").ok()?,
            destroy: *library.get(b"nvrtcDestroyProgram\0").ok()?,
            compile: *library.get(b"nvrtcCompileProgram\0").ok()?,
            cubin_size: *library.get(b"nvrtcGetCUBINSize\0").ok()?,
            cubin: *library.get(b"nvrtcGetCUBIN\0").ok()?,
            log_size: *library.get(b"nvrtcGetProgramLogSize\0").ok()?,
            log: *library.get(b"nvrtcGetProgramLog\0").ok()?,
        };
        let version_of: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status =
            *library.get(b"nvrtcVersion\0").ok()?;
        let (mut major, mut minor) = (0, 0);
        check(version_of(&mut major, &mut minor)).ok()?;
        let arch_count: unsafe extern "C" fn(*mut c_int) -> Status =
            *library.get(b"nvrtcGetNumSupportedArchs\0").ok()?;
        let mut count = 0;
        check(arch_count(&mut count)).ok()?;
        let mut archs = vec![0; usize::try_from(count).ok()?];
        let arch_list: unsafe extern "C" fn(*mut c_int) -> Status = *library.get(b"nvrtcGetSupportedArchs\0").ok()?;
        check(arch_list(archs.as_mut_ptr())).ok()?;
        let archs = archs.into_iter().map(c_int::unsigned_abs).collect();
        Some((functions, (major.unsigned_abs(), minor.unsigned_abs()), archs))
    }
}
