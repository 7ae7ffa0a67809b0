//! The files that a worker needs: its models, its kernel cache, NVIDIA's libraries and devices.
//! Makes the folder of kernels where it is missing, and opens nothing that strangers made; what a rule means is Landlock's.

use super::super::spec::WorkerSpec;
use crate::executor_device::ExecutorDevice;
use magray_device::cuda::CubinCache;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Files and folders by what may be done with them. One that does not exist grants nothing.
#[derive(Debug, Default)]
pub(super) struct Grants {
    /// May be read, with all that is below.
    pub(super) read: Vec<PathBuf>,
    /// Devices: may be read, written and controlled.
    pub(super) devices: Vec<PathBuf>,
    /// Files below may be read, written, made and removed.
    pub(super) write: Vec<PathBuf>,
    /// This process's threads in `/proc`, whose files may be written. CUDA names its threads there, and does not start
    /// where it cannot. Open for as long as the rule is to hold: the kernel makes new entries for those it dropped.
    pub(super) threads: Option<File>,
}

/// What the loader, the C library and NVIDIA's driver read on any machine.
///
/// All of `/proc`, because a rule for `/proc/self` would be lost when the kernel drops its entry. The memory, environment
/// and open files of other processes are out of reach without a rule, where the capabilities of root are gone.
const SYSTEM: [&str; 21] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/nix/store",
    "/gnu/store",
    "/run/opengl-driver",
    "/etc/nvidia",
    "/usr/share/nvidia",
    "/proc",
    "/sys/bus",
    "/sys/class",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/sys/module",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
];

impl Grants {
    /// What a worker with this order needs.
    pub(super) fn of(spec: &WorkerSpec) -> Self {
        let mut grants = Self::default();
        for model in &spec.models {
            grants.read.extend(model.source.folder().into_iter().flat_map(model_folders));
        }
        grants.read.extend(spec.models_folder.clone());
        grants.read.extend(SYSTEM.map(PathBuf::from));
        // A panic names the lines of its backtrace from the program's own file.
        grants.read.extend(std::env::current_exe());
        grants.devices.push("/dev/null".into());
        for device in spec.device.cuda_devices() {
            grants.read.extend(loader_folders());
            grants.read.extend(device.folders().iter().cloned());
            grants.read.extend(device.kernel_archive().map(Path::to_owned));
            grants.devices.extend(nvidia_devices());
            grants.threads = File::open("/proc/self/task").ok();
            // Where the driver keeps memory that it shares between processes.
            grants.write.push("/dev/shm".into());
            // A rule is for what is there: neither could be made later.
            let cache = device.kernel_cache().filter(|folder| CubinCache::new(*folder).create_folder().is_ok());
            let trace = device.memory_trace().filter(|file| File::create(file).is_ok());
            grants.write.extend(cache.into_iter().chain(trace).map(Path::to_owned));
        }
        if let ExecutorDevice::Onnx(device) = &spec.device {
            grants.read.extend(loader_folders());
            // Providers are libraries beside it.
            let folders = device.libraries().iter().filter_map(|library| library.parent());
            grants
                .read
                .extend(folders.filter(|folder| folder.is_absolute() && *folder != Path::new("/")).map(Path::to_owned));
            if device.may_use_gpu() {
                grants.read.extend(device.folders().iter().cloned());
                grants.devices.extend(nvidia_devices());
                grants.threads = File::open("/proc/self/task").ok();
                grants.write.push("/dev/shm".into());
                let cache = device.cache().filter(|folder| CubinCache::new(*folder).create_folder().is_ok());
                grants.write.extend(cache.map(Path::to_owned));
            }
        }
        grants
    }
}

/// A model's folder, and where the hub's own cache keeps the files that such a folder links to.
///
/// No other link out of the folder is followed: a stranger who made the folder could point it at any file.
fn model_folders(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    // models--ORG--NAME/snapshots/COMMIT/FILE -> ../../blobs/HASH
    if let Ok(whole) = folder.canonicalize()
        && let Some(snapshots) = whole.parent().filter(|parent| parent.ends_with("snapshots"))
        && let Some(root) = snapshots.parent()
    {
        let is_cache = root.file_name().is_some_and(|name| name.to_string_lossy().starts_with("models--"));
        let blobs = root.join("blobs");
        // A link in its place may lead anywhere.
        let is_folder = blobs.symlink_metadata().is_ok_and(|blobs| blobs.is_dir());
        folders.extend((is_cache && is_folder).then_some(blobs));
    }
    folders
}

/// The GPUs and what belongs to them; the last is what Windows lends to Linux.
fn nvidia_devices() -> impl Iterator<Item = PathBuf> {
    let is_nvidia = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with("nvidia") || name == "dxg")
    };
    fs::read_dir("/dev").into_iter().flatten().flatten().filter(is_nvidia).map(|entry| entry.path())
}

/// Where the loader looks for libraries besides the system's folders: its variable and its configuration.
fn loader_folders() -> Vec<PathBuf> {
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let by_variable: Vec<PathBuf> = std::env::split_paths(&variable).collect();
    let files = fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let lists = files.chain(["/etc/ld.so.conf".into()]).filter_map(|file| fs::read_to_string(file).ok());
    let by_file = lists.flat_map(|list| list.lines().map(|line| line.trim().into()).collect::<Vec<PathBuf>>());
    by_variable.into_iter().chain(by_file).filter(|folder| folder.is_absolute() && folder != Path::new("/")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executors::CudaDevice;
    use crate::gpu::{GpuInfo, GpuOptions, SandboxMode, SearchPath};
    use magray_device::cuda::{Arch, CubinKey, all_specs};
    use std::os::unix::fs::symlink;

    #[test]
    fn a_folder_of_the_hubs_cache_brings_its_files_along_and_no_other_does() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let make = |below: &str| {
            fs::create_dir_all(root.join(below)).unwrap();
            root.join(below)
        };
        let snapshot = make("models--a--b/snapshots/0123");
        assert_eq!(model_folders(&snapshot), std::slice::from_ref(&snapshot), "there are no blobs");
        let blobs = make("models--a--b/blobs");
        assert_eq!(model_folders(&snapshot), [snapshot, blobs]);
        let plain = make("plain/snapshots/0123");
        make("plain/blobs");
        assert_eq!(model_folders(&plain), [plain], "not a cache of the hub");
        let tricky = make("models--c--d/snapshots/0123");
        symlink("/etc", root.join("models--c--d/blobs")).unwrap();
        assert_eq!(model_folders(&tricky), [tricky], "blobs that lead elsewhere");
    }

    fn cuda_spec(options: &GpuOptions) -> WorkerSpec {
        let gpu = GpuInfo {
            index: 0,
            ordinal: 0,
            uuid: "GPU-1".to_owned(),
            name: "a GPU".to_owned(),
            capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 1 << 37,
            pci_bus_id: "0000:3b:00.0".to_owned(),
        };
        WorkerSpec {
            device: ExecutorDevice::Cuda(CudaDevice::new(&gpu, options)),
            models: Vec::new(),
            models_folder: None,
            slots: 1,
            slot_tokens_max: 1,
            slot_texts_max: 1,
            outputs_max: 1,
            token_numbers_max: 0,
            memory_limit_bytes: None,
            sandbox: SandboxMode::Require,
            faults: None,
        }
    }

    /// Landlock and seccomp hold for a thread: this one ends with the test.
    #[test]
    fn a_gpu_worker_reads_its_libraries_and_writes_its_kernels_and_its_trace() {
        let dir = tempfile::tempdir().unwrap();
        let [cache, trace, libraries, archive] =
            ["deep/kernels", "trace", "libraries", "magray.cubins"].map(|name| dir.path().join(name));
        fs::create_dir(&libraries).unwrap();
        fs::write(libraries.join("libnvrtc.so.13"), b"library").unwrap();
        fs::write(&archive, b"cubins").unwrap();
        let options = GpuOptions {
            kernel_cache: Some(cache.clone()),
            kernel_archive: Some(archive.clone()),
            memory_trace: Some(trace.clone()),
            search: SearchPath::of_folders(vec![libraries.clone()]),
            ..GpuOptions::default()
        };
        let confined = std::thread::spawn(move || {
            let grants = Grants::of(&cuda_spec(&options));
            assert!(cache.is_dir(), "a rule needs a folder that is there");
            super::super::files::limit(&grants)?;
            super::super::syscalls::limit().unwrap();
            assert_eq!(fs::read(libraries.join("libnvrtc.so.13")).unwrap(), b"library");
            assert!(fs::write(libraries.join("libnvrtc.so.13"), b"").is_err());
            assert_eq!(fs::read(&archive).unwrap(), b"cubins");
            assert!(fs::write(&archive, b"").is_err());
            let spec = all_specs().remove(0);
            let (cache, key) = (CubinCache::new(cache), CubinKey::of(&spec, Arch::of((9, 0))));
            cache.put(&key, b"cubin", (13, 0)).unwrap();
            assert_eq!(cache.get(&key).as_deref(), Some(&b"cubin"[..]));
            fs::write(trace, b"taken").unwrap();
            // As CUDA does at its start, here for a thread that is not the first.
            let tid = rustix::thread::gettid().as_raw_nonzero();
            fs::write(format!("/proc/self/task/{tid}/comm"), b"named").unwrap();
            assert!(fs::write("/proc/self/comm", b"named").is_err(), "other files of /proc stay as they are");
            Ok(())
        });
        if let Err::<(), String>(why) = confined.join().unwrap() {
            magray_skip::test(magray_skip::Need::Landlock, why);
        }
    }

    #[test]
    fn the_root_folder_is_never_granted() {
        let folders = loader_folders();
        assert!(folders.iter().all(|folder| folder.is_absolute() && folder != Path::new("/")), "{folders:?}");
    }
}
