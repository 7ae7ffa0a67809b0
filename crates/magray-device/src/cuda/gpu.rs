//! Asks the driver which GPUs there are, and finds the one that a word names.
//! Makes no context: what is asked here costs no memory of the GPU.

use super::declined::{Declined, LEAST_CAPABILITY};
use super::driver;
use super::error::name_of;
use super::gpu_info::GpuInfo;
use super::libraries::SearchPath;
use super::sys::{self, CUdevice_attribute, CUresult};
use super::visible::{Visible, starts_with};
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;

/// The GPUs that can be used, or why there is none. Loads and starts the driver; never panics.
pub fn probe(search: &SearchPath, visible: &Visible) -> Result<Vec<GpuInfo>, Declined> {
    usable(shown(search), visible)
}

/// All GPUs that the driver shows, or why it shows none. Loads and starts the driver; never panics.
pub fn shown(search: &SearchPath) -> Result<Vec<GpuInfo>, Declined> {
    driver::start(search)?;
    list()
}

/// The GPUs that may be seen and can be used. Makes no calls.
pub fn usable(shown: Result<Vec<GpuInfo>, Declined>, visible: &Visible) -> Result<Vec<GpuInfo>, Declined> {
    if shown == Err(Declined::NoDevice)
        && let Some((by, value)) = visible.culprit(false)
    {
        return Err(Declined::Hidden { by, value });
    }
    let shown = shown?;
    let was_shown = !shown.is_empty();
    let chosen = visible.choose(shown);
    if chosen.is_empty() {
        let hidden = visible.culprit(was_shown).map(|(by, value)| Declined::Hidden { by, value });
        return Err(hidden.unwrap_or(Declined::NoDevice));
    }
    without_old(chosen)
}

/// The GPU that a name means: `cuda` (the first), `cuda:N`, or `cuda:GPU-...` with a UUID or an unambiguous prefix.
pub fn resolve<'a>(gpus: &'a [GpuInfo], word: &str) -> Result<&'a GpuInfo, Declined> {
    let unknown = || Declined::unknown(word, gpus);
    let name = match word.split_once(':') {
        None if word == "cuda" => return gpus.first().ok_or_else(unknown),
        Some(("cuda", name)) if !name.is_empty() => name,
        _ => return Err(unknown()),
    };
    if let Ok(index) = name.parse::<usize>() {
        return gpus.iter().find(|gpu| gpu.index == index).ok_or_else(unknown);
    }
    let mut matching = gpus.iter().filter(|gpu| starts_with(&gpu.uuid, name));
    match (matching.next(), matching.next()) {
        (Some(gpu), None) => Ok(gpu),
        _ => Err(unknown()),
    }
}

/// Leaves out GPUs that the kernels cannot run on; an error if that leaves none.
fn without_old(mut gpus: Vec<GpuInfo>) -> Result<Vec<GpuInfo>, Declined> {
    let newest = gpus.iter().max_by_key(|gpu| gpu.capability).cloned();
    gpus.retain(|gpu| gpu.capability >= LEAST_CAPABILITY);
    match newest {
        Some(gpu) if gpus.is_empty() => Err(Declined::DeviceTooOld { name: gpu.name, capability: gpu.capability }),
        _ => {
            for (index, gpu) in gpus.iter_mut().enumerate() {
                gpu.index = index;
            }
            Ok(gpus)
        }
    }
}

/// Every GPU that the driver shows, in its order. The driver is started.
fn list() -> Result<Vec<GpuInfo>, Declined> {
    let mut count = 0;
    // SAFETY: the driver is started; it writes one number.
    check(unsafe { sys::cuDeviceGetCount(&mut count) })?;
    (0..count).map(describe).collect()
}

fn describe(ordinal: c_int) -> Result<GpuInfo, Declined> {
    let mut device = 0;
    // SAFETY: writes one number; an ordinal out of range is an error code.
    check(unsafe { sys::cuDeviceGet(&mut device, ordinal) })?;
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: writes at most as many bytes as it is told, zero at the end included.
    check(unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) })?;
    let mut bus: [c_char; 32] = [0; 32];
    // SAFETY: as above.
    check(unsafe { sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int, device) })?;
    let mut memory_bytes = 0;
    // SAFETY: writes one number.
    check(unsafe { sys::cuDeviceTotalMem_v2(&mut memory_bytes, device) })?;
    Ok(GpuInfo {
        index: ordinal.unsigned_abs() as usize,
        ordinal: ordinal.unsigned_abs(),
        uuid: uuid_of(device)?,
        name: text(&name),
        capability: (
            attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory_bytes as u64,
        pci_bus_id: text(&bus).to_lowercase(),
    })
}

fn uuid_of(device: sys::CUdevice) -> Result<String, Declined> {
    let (mut own, mut whole) = (sys::CUuuid { bytes: [0; 16] }, sys::CUuuid { bytes: [0; 16] });
    // SAFETY: each writes 16 bytes.
    check(unsafe { sys::cuDeviceGetUuid_v2(&mut own, device) })?;
    // SAFETY: as above.
    check(unsafe { sys::cuDeviceGetUuid(&mut whole, device) })?;
    // A slice of a GPU has a UUID of its own beside that of the whole.
    let kind = if own.bytes == whole.bytes { "GPU" } else { "MIG" };
    Ok(format_uuid(kind, own.bytes.map(|byte| byte as u8)))
}

fn format_uuid(kind: &str, bytes: [u8; 16]) -> String {
    bytes.iter().enumerate().fold(kind.to_owned(), |mut uuid, (at, byte)| {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            uuid.push('-');
        }
        // Writing to a String cannot fail.
        let _ = write!(uuid, "{byte:02x}");
        uuid
    })
}

fn attribute(device: sys::CUdevice, which: CUdevice_attribute) -> Result<u32, Declined> {
    let mut value = 0;
    // SAFETY: writes one number.
    check(unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) })?;
    Ok(value.unsigned_abs())
}

fn check(result: CUresult) -> Result<(), Declined> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        result => Err(Declined::DriverFailed { code: result as u32, name: name_of(result) }),
    }
}

/// The text in a buffer that the driver ended with a zero.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn gpu(ordinal: u32, uuid: &str, bus: &str) -> GpuInfo {
        GpuInfo {
            index: ordinal as usize,
            ordinal,
            uuid: uuid.to_owned(),
            name: "Test".to_owned(),
            capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 1 << 30,
            pci_bus_id: bus.to_owned(),
        }
    }

    fn pair() -> Vec<GpuInfo> {
        vec![gpu(0, "GPU-aaaa1111", "0000:10:00.0"), gpu(1, "GPU-aabb2222", "0000:20:00.0")]
    }

    #[test]
    fn words_name_devices() {
        let gpus = pair();
        let ordinal = |word| resolve(&gpus, word).map(|gpu| gpu.ordinal);
        assert_eq!(ordinal("cuda"), Ok(0));
        assert_eq!(ordinal("cuda:1"), Ok(1));
        assert_eq!(ordinal("cuda:GPU-aabb"), Ok(1));
        assert_eq!(ordinal("cuda:gpu-AAAA1111"), Ok(0));
        for word in ["cuda:2", "cuda:", "cuda:GPU-aa", "cuda:GPU-zz", "cpu", "", "cuda:-1", "cuda0"] {
            let refused = ordinal(word).unwrap_err();
            assert_eq!(refused.code(), "unknown_device", "{word}");
            assert!(refused.to_string().contains("cuda:1 (Test, GPU-aabb2222)"), "{refused}");
        }
        assert!(resolve(&[], "cuda").is_err());
    }

    #[test]
    fn old_gpus_are_left_out_and_refused_when_alone() {
        let mut gpus = pair();
        gpus[0].capability = (7, 0);
        let left = without_old(gpus.clone()).unwrap();
        assert_eq!((left.len(), left[0].index, left[0].ordinal), (1, 0, 1));
        gpus.truncate(1);
        assert_eq!(without_old(gpus).unwrap_err().code(), "device_too_old");
    }

    #[test]
    fn uuids_are_written_as_others_write_them() {
        let bytes = std::array::from_fn(|at| at as u8 * 17);
        assert_eq!(format_uuid("GPU", bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_probe_answers_on_any_machine() {
        match probe(&SearchPath::system(), &Visible::all()) {
            Ok(gpus) => assert!(gpus.iter().enumerate().all(|(at, gpu)| gpu.index == at && gpu.memory_bytes > 0)),
            Err(declined) => {
                magray_skip::part(magray_skip::Need::Gpu, format_args!("no GPU ({})", declined.code()));
                assert!(["no_driver", "no_device", "driver_failed", "driver_too_old"].contains(&declined.code()));
            }
        }
    }
}
