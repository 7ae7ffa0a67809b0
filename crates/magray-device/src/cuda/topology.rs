//! How GPUs are connected: their slots, NVLinks, memory nodes, and the way from one to another, by the management library.
//! Makes no context; what the machine does not tell is left out.

use super::gpu_info::GpuInfo;
use super::telemetry::Telemetry;
use nvml_wrapper::Device;
#[cfg(target_os = "linux")]
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};

/// More than any GPU has.
const NVLINKS_MOST: u32 = 18;

/// How a GPU is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// The generation of its PCIe slot, and its lanes.
    pub pcie: Option<(u32, u32)>,
    /// The node of the host's memory that is nearest.
    pub numa_node: Option<u32>,
    /// NVLinks that are up.
    pub nvlinks: Option<u32>,
    /// The ways to other GPUs, by their index.
    pub peers: Vec<Peer>,
}

/// The way from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The index of the other one.
    pub index: usize,
    /// What they have in common.
    pub path: Option<GpuPath>,
    /// Whether each may read and write the other's memory.
    pub has_access: Option<bool>,
    /// Whether it does so through NVLink.
    pub has_nvlink: Option<bool>,
}

/// The nearest thing that two GPUs are both connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuPath {
    /// They are on one board.
    Board,
    /// One PCIe switch.
    Switch,
    /// Several PCIe switches, and no host bridge.
    Switches,
    /// One host bridge.
    HostBridge,
    /// One memory node, and several host bridges.
    Node,
    /// The links between sockets.
    System,
}

impl GpuPath {
    /// For people and programs; it never changes its meaning.
    pub fn name(self) -> &'static str {
        match self {
            Self::Board => "one board",
            Self::Switch => "one PCIe switch",
            Self::Switches => "PCIe switches",
            Self::HostBridge => "one host bridge",
            Self::Node => "one NUMA node",
            Self::System => "between NUMA nodes",
        }
    }
}

impl Telemetry {
    /// How a GPU is connected, to each of the others too.
    pub fn links(&self, gpu: &GpuInfo, all: &[GpuInfo]) -> Links {
        let Ok(device) = self.device(gpu) else { return Links::default() };
        let peer = |other: &GpuInfo| self.device(other).map(|there| peer(&device, &there, other.index));
        let others = all.iter().filter(|other| other.uuid != gpu.uuid);
        let up = (0..NVLINKS_MOST).map_while(|link| device.link_wrapper_for(link).is_active().ok());
        let states: Vec<bool> = up.collect();
        Links {
            pcie: device.max_pcie_link_gen().ok().zip(device.max_pcie_link_width().ok()),
            numa_node: device.numa_node_id().ok(),
            nvlinks: (!states.is_empty()).then(|| states.iter().filter(|is_up| **is_up).count() as u32),
            peers: others.filter_map(|other| peer(other).ok()).collect(),
        }
    }
}

fn peer(device: &Device<'_>, other: &Device<'_>, index: usize) -> Peer {
    let able = |index| device.p2p_status(other, index).ok().map(|status| status == P2pStatus::Ok);
    let read = able(P2pCapabilitiesIndex::Read);
    let write = able(P2pCapabilitiesIndex::Write);
    Peer {
        index,
        path: path(device, other),
        has_access: read.zip(write).map(|(read, write)| read && write),
        has_nvlink: able(P2pCapabilitiesIndex::NvLink),
    }
}

#[cfg(target_os = "linux")]
fn path(device: &Device<'_>, other: &Device<'_>) -> Option<GpuPath> {
    let other = device.nvml().device_by_uuid(other.uuid().ok()?).ok()?;
    Some(match device.topology_common_ancestor(other).ok()? {
        TopologyLevel::Internal => GpuPath::Board,
        TopologyLevel::Single => GpuPath::Switch,
        TopologyLevel::Multiple => GpuPath::Switches,
        TopologyLevel::HostBridge => GpuPath::HostBridge,
        TopologyLevel::Node => GpuPath::Node,
        TopologyLevel::System => GpuPath::System,
    })
}

#[cfg(not(target_os = "linux"))]
fn path(_: &Device<'_>, _: &Device<'_>) -> Option<GpuPath> {
    None
}
