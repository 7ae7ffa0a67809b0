//! How a GPU is: memory, heat, power, clocks, errors, as NVIDIA's management library tells it.
//! Never an error: what a machine does not tell is left out.

use super::driver::split_version;
use super::gpu::GpuInfo;
use super::libraries::{SearchPath, nvml_candidates};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::{Device, Nvml};

/// The open management library.
#[derive(Debug)]
pub struct Telemetry {
    nvml: Nvml,
}

/// How a GPU was at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// All memory.
    pub memory_total_bytes: Option<u64>,
    /// Memory in use, by all processes.
    pub memory_used_bytes: Option<u64>,
    /// Temperature of the chip.
    pub temperature_celsius: Option<u32>,
    /// Power drawn.
    pub power_milliwatts: Option<u32>,
    /// Power that it is held to.
    pub power_limit_milliwatts: Option<u32>,
    /// Clock of the multiprocessors.
    pub clock_mhz: Option<u32>,
    /// The highest clock of the multiprocessors.
    pub clock_mhz_max: Option<u32>,
    /// Clock of the memory.
    pub memory_clock_mhz: Option<u32>,
    /// Part of the last moments in which a kernel ran.
    pub utilisation_percent: Option<u32>,
    /// Part of the last moments in which memory was read or written.
    pub memory_utilisation_percent: Option<u32>,
    /// Memory errors since the driver was loaded that could not be corrected.
    pub ecc_uncorrected: Option<u64>,
    /// Why the clock is lower than it could be; empty when it is not.
    pub throttle: Option<Vec<Throttle>>,
}

/// A reason for a lower clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Throttle {
    /// Somebody set the clock of applications.
    ApplicationClocks,
    /// The limit of power is reached.
    PowerCap,
    /// The hardware protects itself: heat, power or the power supply.
    HardwareSlowdown,
    /// Another GPU of the same group is slow.
    SyncBoost,
    /// The driver lowers the clock because of heat.
    Thermal,
    /// The hardware lowers the clock because of heat.
    HardwareThermal,
    /// The power supply asks for less.
    PowerBrake,
    /// The clock of the display is fixed.
    DisplayClocks,
}

impl Throttle {
    /// A short word for programs and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApplicationClocks => "application_clocks",
            Self::PowerCap => "power_cap",
            Self::HardwareSlowdown => "hardware_slowdown",
            Self::SyncBoost => "sync_boost",
            Self::Thermal => "thermal",
            Self::HardwareThermal => "hardware_thermal",
            Self::PowerBrake => "power_brake",
            Self::DisplayClocks => "display_clocks",
        }
    }
}

impl Telemetry {
    /// Opens the management library; `None` where it is missing or does not start.
    pub fn open(search: &SearchPath) -> Option<Self> {
        nvml_candidates(search).find_map(|path| {
            let nvml = Nvml::builder().lib_path(path.as_os_str()).init().ok()?;
            Some(Self { nvml })
        })
    }

    /// The version of the driver, such as `580.65.06`.
    pub fn driver_version(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }

    /// The newest CUDA version that the driver supports.
    pub fn cuda_version(&self) -> Option<(u32, u32)> {
        self.nvml.sys_cuda_driver_version().ok().map(split_version)
    }

    /// How a GPU is now. Of a GPU that the library does not know, nothing.
    pub fn sample(&self, gpu: &GpuInfo) -> Sample {
        self.device(gpu).map(|device| read(&device)).unwrap_or_default()
    }

    fn device(&self, gpu: &GpuInfo) -> Option<Device<'_>> {
        let by_uuid = self.nvml.device_by_uuid(gpu.uuid.as_str());
        // Containers with a made-up UUID still have the true bus.
        by_uuid.or_else(|_| self.nvml.device_by_pci_bus_id(gpu.pci_bus_id.as_str())).ok()
    }
}

fn read(device: &Device<'_>) -> Sample {
    let memory = device.memory_info().ok();
    let utilisation = device.utilization_rates().ok();
    Sample {
        memory_total_bytes: memory.as_ref().map(|memory| memory.total),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        power_milliwatts: device.power_usage().ok(),
        power_limit_milliwatts: device.enforced_power_limit().ok(),
        clock_mhz: device.clock_info(Clock::SM).ok(),
        clock_mhz_max: device.max_clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        utilisation_percent: utilisation.as_ref().map(|rates| rates.gpu),
        memory_utilisation_percent: utilisation.as_ref().map(|rates| rates.memory),
        ecc_uncorrected: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
        throttle: device.current_throttle_reasons().ok().map(throttles),
    }
}

/// The reasons by name. An idle GPU is slow for no reason that anybody need know.
fn throttles(reasons: ThrottleReasons) -> Vec<Throttle> {
    let named = [
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, Throttle::ApplicationClocks),
        (ThrottleReasons::SW_POWER_CAP, Throttle::PowerCap),
        (ThrottleReasons::HW_SLOWDOWN, Throttle::HardwareSlowdown),
        (ThrottleReasons::SYNC_BOOST, Throttle::SyncBoost),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, Throttle::Thermal),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, Throttle::HardwareThermal),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Throttle::PowerBrake),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, Throttle::DisplayClocks),
    ];
    named.into_iter().filter(|(bit, _)| reasons.contains(*bit)).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::super::gpu::tests::gpu;
    use super::*;

    #[test]
    fn reasons_are_named_and_idling_is_none() {
        let names = |bits| throttles(ThrottleReasons::from_bits_truncate(bits));
        assert!(names(0x1).is_empty() && names(0).is_empty());
        assert_eq!(names(0x4 | 0x40), [Throttle::PowerCap, Throttle::HardwareThermal]);
        assert_eq!(names(0x20)[0].name(), "thermal");
        assert_eq!(names(0x80 | 0x8).len(), 2);
    }

    #[test]
    fn what_is_not_there_gives_an_empty_sample() {
        let Some(telemetry) = Telemetry::open(&SearchPath::system()) else {
            println!("SKIPPED: no management library");
            return;
        };
        assert_eq!(telemetry.sample(&gpu(0, "GPU-none", "ffff:ff:1f.0")), Sample::default());
    }
}
