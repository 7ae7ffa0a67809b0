//! What is known of a GPU before it is opened.
//! Asks nothing.

/// What the driver says of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// The number in `cuda:N`: counts the GPUs that may be used, from 0.
    pub index: usize,
    /// The driver's own number.
    pub ordinal: u32,
    /// `GPU-` or `MIG-` and the UUID, as `nvidia-smi -L` writes it.
    pub uuid: String,
    /// The name of the product.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// All memory.
    pub memory_bytes: u64,
    /// Domain, bus, device and function, such as `0000:3b:00.0`.
    pub pci_bus_id: String,
}
