//! Whether this machine can have an NVIDIA GPU at all, by what the system lists.
//! Loads nothing of NVIDIA's, and says yes where the system does not tell.

use std::fs;
use std::path::Path;

/// PCI's number of NVIDIA.
const VENDOR: &str = "0x10de";
/// Of the driver, of GPUs that Windows lends to Linux, of chips whose GPU is on no bus.
const NODES: [&str; 4] = ["dev/nvidiactl", "dev/dxg", "dev/nvmap", "dev/nvhost-ctrl"];

/// Whether looking for a GPU can find one: starting the driver for nothing, in a process of its own, takes tens of
/// milliseconds.
pub fn may_have_gpu() -> bool {
    cfg!(not(target_os = "linux")) || is_listed(Path::new("/"))
}

fn is_listed(root: &Path) -> bool {
    let Ok(devices) = fs::read_dir(root.join("sys/bus/pci/devices")) else { return true };
    let is_of_nvidia = |device: fs::DirEntry| {
        fs::read_to_string(device.path().join("vendor")).map_or(true, |vendor| vendor.trim() == VENDOR)
    };
    NODES.iter().any(|node| root.join(node).exists()) || devices.flatten().any(is_of_nvidia)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_looked_for_unless_the_system_lists_none() {
        let root = tempfile::tempdir().unwrap();
        assert!(is_listed(root.path()), "the system does not tell");
        let pci = root.path().join("sys/bus/pci/devices");
        let add = |name: &str, vendor: &str| {
            fs::create_dir_all(pci.join(name)).unwrap();
            fs::write(pci.join(name).join("vendor"), vendor).unwrap();
        };
        add("0000:00:01.0", "0x8086\n");
        assert!(!is_listed(root.path()));
        add("0000:00:02.0", "0x10de\n");
        assert!(is_listed(root.path()));
        fs::remove_dir_all(pci.join("0000:00:02.0")).unwrap();
        fs::create_dir_all(root.path().join("dev")).unwrap();
        fs::write(root.path().join("dev/dxg"), "").unwrap();
        assert!(is_listed(root.path()));
    }
}
