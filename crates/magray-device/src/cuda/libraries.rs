//! Finds NVIDIA's libraries: the driver, the kernel compiler and the telemetry.
//! Reads no environment variable: who calls says where to look besides the loader's own path.

use libloading::Library;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Where to look for libraries that the loader does not find by name.
///
/// Nothing is read from the disk before a library is missing from the loader's path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath {
    toolkits: Vec<PathBuf>,
    prefixes: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl SearchPath {
    /// The loader's path and nothing else.
    pub fn loader_only() -> Self {
        Self::default()
    }

    /// These folders, after the loader's path: what [`SearchPath::folders`] of another process said.
    pub fn of_folders(folders: Vec<PathBuf>) -> Self {
        Self { folders, ..Self::default() }
    }

    /// Where the toolkit, containers and the system's Python put their libraries.
    pub fn system() -> Self {
        #[cfg(windows)]
        let (toolkits, prefixes, folders) = (
            newest_first(Path::new("C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA"), |name| {
                name.starts_with('v')
            }),
            vec![],
            vec!["C:\\Windows\\System32".into()],
        );
        #[cfg(not(windows))]
        let (toolkits, prefixes, folders) = (
            newest_first(Path::new("/usr/local"), |name| name == "cuda" || name.starts_with("cuda-")),
            vec!["/usr/local".into(), "/usr".into()],
            // The second is where containers of some clouds mount the driver, the third where Windows lends it to Linux.
            ["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib", "/usr/lib64/nvidia"]
                .map(PathBuf::from)
                .into(),
        );
        Self { toolkits, prefixes, folders }
    }

    /// Adds a toolkit's own folder, as `CUDA_PATH` or `CUDA_HOME` name it.
    #[must_use]
    pub fn with_toolkit(mut self, root: impl Into<PathBuf>) -> Self {
        self.toolkits.insert(0, root.into());
        self
    }

    /// Adds a folder that Python is installed in: a virtual environment, a Conda prefix, the user's own.
    #[must_use]
    pub fn with_python(mut self, prefix: impl Into<PathBuf>) -> Self {
        self.prefixes.insert(0, prefix.into());
        self
    }

    /// Adds a folder that holds libraries itself.
    #[must_use]
    pub fn with_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folders.insert(0, folder.into());
        self
    }

    /// Every folder of Python packages, in the order of trust; a folder may not exist.
    pub fn python_packages(&self) -> Vec<PathBuf> {
        self.prefixes.iter().flat_map(|prefix| package_folders(prefix)).collect()
    }

    /// Every folder to look in, in the order of trust; a folder may not exist.
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut folders = self.folders.clone();
        for root in &self.toolkits {
            folders.extend(TOOLKIT_FOLDERS.iter().map(|below| root.join(below)));
        }
        for prefix in &self.prefixes {
            folders.push(prefix.join("lib"));
            for packages in package_folders(prefix) {
                for package in newest_first(&packages.join("nvidia"), |_| true) {
                    folders.extend(WHEEL_FOLDERS.iter().map(|below| package.join(below)));
                }
            }
        }
        folders
    }
}

#[cfg(windows)]
const TOOLKIT_FOLDERS: [&str; 2] = ["bin\\x64", "bin"];
#[cfg(windows)]
const WHEEL_FOLDERS: [&str; 2] = ["bin\\x86_64", "bin"];
#[cfg(all(not(windows), target_arch = "aarch64"))]
const TOOLKIT_FOLDERS: [&str; 3] = ["lib64", "targets/sbsa-linux/lib", "lib"];
#[cfg(all(not(windows), not(target_arch = "aarch64")))]
const TOOLKIT_FOLDERS: [&str; 3] = ["lib64", "targets/x86_64-linux/lib", "lib"];
#[cfg(not(windows))]
const WHEEL_FOLDERS: [&str; 1] = ["lib"];

/// The `site-packages` below a Python prefix; the prefix may be such a folder itself.
fn package_folders(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = vec![prefix.to_path_buf(), prefix.join("Lib").join("site-packages")];
    for lib in ["lib", "lib64"] {
        for python in newest_first(&prefix.join(lib), |name| name.starts_with("python3")) {
            folders.push(python.join("site-packages"));
            folders.push(python.join("dist-packages"));
        }
    }
    folders
}

/// The folders in `parent` whose names pass, the highest version first.
fn newest_first(parent: &Path, passes: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = entries(parent)
        .filter(|(name, path)| passes(name) && path.is_dir())
        .map(|(name, path)| (version_of(&name), path))
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// The names and paths in a folder; one that cannot be read has none.
fn entries(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    listed.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

/// The numbers in a name, so that `cuda-12.9` comes before `cuda-12.10`.
fn version_of(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Makes the driver's library known to the process; says whether the bindings find it now.
///
/// The bindings panic where the library is missing, so nothing of them may be called before this was true.
pub(super) fn load_driver(search: &SearchPath) -> bool {
    if is_driver_loaded() {
        return true;
    }
    let by_name = open_first(DRIVER_NAMES.iter().map(PathBuf::from));
    let opened = by_name.or_else(|| {
        open_first(search.folders().iter().flat_map(|folder| DRIVER_NAMES.iter().map(move |name| folder.join(name))))
    });
    // The driver keeps threads and state of its own: once loaded it stays until the process ends. The bindings then find
    // it by its name, because it is loaded.
    let Some((library, _)) = opened else { return false };
    std::mem::forget(library);
    // SAFETY: opens the library that is already open; its initialisers do not run again.
    let is_found = unsafe { cudarc::driver::sys::is_culib_present() };
    if is_found {
        DRIVER_LOADED.store(true, Ordering::Release);
    }
    is_found
}

/// Set once, when the driver's library was found.
static DRIVER_LOADED: AtomicBool = AtomicBool::new(false);

/// Whether functions of the driver may be called at all.
pub(super) fn is_driver_loaded() -> bool {
    DRIVER_LOADED.load(Ordering::Acquire)
}

#[cfg(windows)]
const DRIVER_NAMES: [&str; 1] = ["nvcuda.dll"];
#[cfg(not(windows))]
const DRIVER_NAMES: [&str; 1] = ["libcuda.so.1"];

/// Every place where a kernel compiler may be, in the order to try.
///
/// Lazy: the disk is only searched when the loader's own did not do.
pub(super) fn nvrtc_candidates(search: &SearchPath) -> impl Iterator<Item = PathBuf> + use<'_> {
    let by_name = NVRTC_NAMES.iter().map(PathBuf::from);
    let in_folders = std::iter::once_with(|| search.folders()).flatten().flat_map(|folder| nvrtc_files(&folder));
    by_name.chain(in_folders)
}

#[cfg(windows)]
const NVRTC_NAMES: [&str; 2] = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"];
// Not the name without a number: it belongs to whatever version was installed last, and may be older than any we take.
#[cfg(not(windows))]
const NVRTC_NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];

/// The compilers in one folder, the newest first.
fn nvrtc_files(folder: &Path) -> Vec<PathBuf> {
    let is_compiler = |name: &str| {
        let numbered =
            name.strip_prefix("libnvrtc.so.").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let windows = name.starts_with("nvrtc64_") && name.ends_with("_0.dll");
        numbered || windows
    };
    let mut found: Vec<(Vec<u32>, PathBuf)> =
        entries(folder).filter(|(name, _)| is_compiler(name)).map(|(name, path)| (version_of(&name), path)).collect();
    // Links such as `.so.13` come before `.so.13.0.88`, the file they lead to: one of them is enough, but no harm in both.
    found.sort_by(|a, b| b.0.first().cmp(&a.0.first()).then(a.cmp(b)));
    found.into_iter().map(|(_, path)| path).collect()
}

/// Opens the library of built-in functions that lies beside a compiler in a folder.
///
/// The compiler asks the loader for it by name, and the loader does not look in that folder; one that is loaded already
/// it finds.
pub(super) fn open_nvrtc_builtins(compiler: &Path) -> Option<Library> {
    let folder = compiler.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let is_builtins = |name: &str| name.starts_with("libnvrtc-builtins.so.") || name.starts_with("nvrtc-builtins64_");
    // A folder may hold those of several versions: the numbers after the name begin alike.
    let major = version_of(compiler.file_name()?.to_str()?).into_iter().find(|number| *number != 64)?;
    let major = if major >= 100 { major / 10 } else { major };
    let fits = |name: &str| {
        let number = version_of(name).into_iter().find(|number| *number != 64);
        is_builtins(name) && number.is_some_and(|number| number == major || number / 10 == major)
    };
    let mut found: Vec<PathBuf> = entries(folder).filter(|(name, _)| fits(name)).map(|(_, path)| path).collect();
    found.sort();
    open_first(found).map(|(library, _)| library)
}

/// Where the telemetry library may be; the loader first.
pub(super) fn nvml_candidates(search: &SearchPath) -> impl Iterator<Item = PathBuf> + use<'_> {
    #[cfg(windows)]
    const NAME: &str = "nvml.dll";
    // The name without a number comes with development packages only.
    #[cfg(not(windows))]
    const NAME: &str = "libnvidia-ml.so.1";
    let in_folders = std::iter::once_with(|| search.folders()).flatten().map(|folder| folder.join(NAME));
    std::iter::once(PathBuf::from(NAME)).chain(in_folders.filter(|path| path.is_file()))
}

/// Opens the first of these libraries that opens.
fn open_first(paths: impl IntoIterator<Item = PathBuf>) -> Option<(Library, PathBuf)> {
    paths.into_iter().find_map(|path| open(&path).map(|library| (library, path)))
}

/// Opens a library; `None` where it is missing or does not fit this process.
pub(super) fn open(path: &Path) -> Option<Library> {
    // A path with folders is looked at first: for a file that is not there the loader would search nothing either.
    if path.components().count() > 1 && !path.is_file() {
        return None;
    }
    // SAFETY: runs the initialisers of a library of NVIDIA's, found by its name in a folder that the system or the user
    // of this process vouches for; they only prepare the library itself.
    unsafe { Library::new(path) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn touch(path: PathBuf) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"not a library").unwrap();
        path
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn wheels_and_toolkits_are_searched_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        let old = touch(dir.path().join("venv/lib/python3.9/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"));
        let new = touch(dir.path().join("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13"));
        touch(dir.path().join("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0"));
        let toolkit = touch(dir.path().join("cuda/lib64/libnvrtc.so.12"));
        let search =
            SearchPath::loader_only().with_python(dir.path().join("venv")).with_toolkit(dir.path().join("cuda"));
        let found: Vec<PathBuf> = nvrtc_candidates(&search).skip(NVRTC_NAMES.len()).collect();
        assert_eq!(found, [toolkit, new, old]);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cuda-12.9", "cuda-12.10", "cuda-13.0", "other"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let found = newest_first(dir.path(), |name| name.starts_with("cuda-"));
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["cuda-13.0", "cuda-12.10", "cuda-12.9"]);
    }

    #[test]
    fn a_file_that_is_no_library_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        assert!(open(&touch(dir.path().join("libnvrtc.so.13"))).is_none());
        assert!(open(&dir.path().join("libnvrtc.so.12")).is_none());
        assert!(open(Path::new("libno-such-library.so.1")).is_none());
    }

    #[test]
    fn folders_that_do_not_exist_are_no_error() {
        let search = SearchPath::system().with_toolkit("no/such").with_python("no/such").with_folder("no/such");
        assert!(search.folders().contains(&PathBuf::from("no/such")));
        assert_eq!(nvrtc_candidates(&SearchPath::loader_only()).count(), NVRTC_NAMES.len());
    }
}
