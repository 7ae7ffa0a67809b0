//! Asks a child process which GPUs there are, so that this one never loads the driver.
//! Chooses none of them.

use super::message::{ToSupervisor, ToWorker};
use super::spawn::{Meeting, SpawnError, garbled, read, written};
use super::wire::{Garbled, decode, field_of};
use crate::gpu::{Declined, GpuInfo, GpuOptions, SearchPath};
use magray_device::cuda::{shown, usable};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A driver that has not started by then has a problem.
const WITHIN: Duration = Duration::from_secs(30);

/// What a child found.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Findings {
    Gpus(Vec<Found>),
    NoDriver,
    DriverTooOld { found: (u32, u32) },
    DriverFailed { code: u32, name: String },
    NoDevice,
}

/// [`GpuInfo`] as it travels.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Found {
    index: usize,
    ordinal: u32,
    uuid: String,
    name: String,
    capability: (u32, u32),
    multiprocessors: u32,
    memory_bytes: u64,
    pci_bus_id: String,
}

/// The GPUs that may be used, or why there is none, as a child process of this program sees it.
pub fn survey(exe: &Path, options: &GpuOptions) -> Result<Vec<GpuInfo>, Declined> {
    let found = ask(exe, &options.search).unwrap_or_else(|error| {
        // A driver that ends the child is a driver that does not start.
        Err(Declined::DriverFailed { code: 0, name: error.to_string() })
    });
    usable(found, &options.visible).map_err(|declined| match (declined, options.visible_by) {
        (Declined::Hidden { value, .. }, Some(by)) => Declined::Hidden { by, value },
        (declined, _) => declined,
    })
}

fn ask(exe: &Path, search: &SearchPath) -> Result<Result<Vec<GpuInfo>, Declined>, SpawnError> {
    // Messages carry paths as UTF-8; libraries are in no folder whose name is not.
    let folders: Vec<_> = search.folders().into_iter().filter(|folder| folder.to_str().is_some()).collect();
    let folders = written(&folders)?;
    Meeting::new(exe, WITHIN)?.hold(|meeting| {
        meeting.greet()?;
        match meeting.ask(ToWorker::Survey(&folders))? {
            ToSupervisor::Surveyed(findings) => Ok(read::<Findings>(findings)?.into()),
            _ => Err(garbled("something else than the GPUs")),
        }
    })
}

/// The child's side: what there is, as a field of its answer.
pub(super) fn look(folders: &[u8]) -> Result<Vec<u8>, Garbled> {
    let folders: Vec<PathBuf> = decode(folders)?;
    let findings = Findings::from(shown(&SearchPath::of_folders(folders)));
    Ok(field_of(&findings).unwrap_or_else(|error| unreachable!("texts and numbers: {error}")))
}

impl From<Result<Vec<GpuInfo>, Declined>> for Findings {
    fn from(found: Result<Vec<GpuInfo>, Declined>) -> Self {
        match found {
            Ok(gpus) => Self::Gpus(gpus.into_iter().map(Found::from).collect()),
            Err(Declined::NoDriver) => Self::NoDriver,
            Err(Declined::NoDevice) => Self::NoDevice,
            Err(Declined::DriverTooOld { found }) => Self::DriverTooOld { found },
            Err(Declined::DriverFailed { code, name }) => Self::DriverFailed { code, name },
            // The others come from choosing among the GPUs, which is not done here.
            Err(declined) => Self::DriverFailed { code: 0, name: declined.to_string() },
        }
    }
}

impl From<Findings> for Result<Vec<GpuInfo>, Declined> {
    fn from(findings: Findings) -> Self {
        match findings {
            Findings::Gpus(gpus) => Ok(gpus.into_iter().map(GpuInfo::from).collect()),
            Findings::NoDriver => Err(Declined::NoDriver),
            Findings::NoDevice => Err(Declined::NoDevice),
            Findings::DriverTooOld { found } => Err(Declined::DriverTooOld { found }),
            Findings::DriverFailed { code, name } => Err(Declined::DriverFailed { code, name }),
        }
    }
}

impl From<GpuInfo> for Found {
    fn from(gpu: GpuInfo) -> Self {
        let GpuInfo { index, ordinal, uuid, name, capability, multiprocessors, memory_bytes, pci_bus_id } = gpu;
        Self { index, ordinal, uuid, name, capability, multiprocessors, memory_bytes, pci_bus_id }
    }
}

impl From<Found> for GpuInfo {
    fn from(found: Found) -> Self {
        let Found { index, ordinal, uuid, name, capability, multiprocessors, memory_bytes, pci_bus_id } = found;
        Self { index, ordinal, uuid, name, capability, multiprocessors, memory_bytes, pci_bus_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_found_arrives_unchanged() {
        let gpu = GpuInfo {
            index: 1,
            ordinal: 3,
            uuid: "GPU-1".to_owned(),
            name: "a GPU".to_owned(),
            capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 1 << 37,
            pci_bus_id: "0000:3b:00.0".to_owned(),
        };
        let failed = Declined::DriverFailed { code: 803, name: "mismatch".to_owned() };
        for found in [
            Ok(vec![gpu]),
            Err(Declined::NoDriver),
            Err(Declined::NoDevice),
            Err(Declined::DriverTooOld { found: (11, 4) }),
            Err(failed),
        ] {
            let field = field_of(&Findings::from(found.clone())).unwrap();
            let arrived: Result<Vec<GpuInfo>, Declined> = decode::<Findings>(&field).unwrap().into();
            assert_eq!(arrived, found);
        }
    }

    #[test]
    fn a_program_that_is_no_worker_is_a_driver_that_does_not_start() {
        for program in ["true", "/nowhere/magray"] {
            let declined = survey(Path::new(program), &GpuOptions::default()).unwrap_err();
            assert_eq!(declined.code(), "driver_failed", "{declined}");
        }
    }
}
