//! How a GPU is: memory, heat, power, clocks, errors, as NVIDIA's management library tells it.
//! Never an error: what a machine does not tell is left out.

use super::driver::split_version;
use super::gpu_info::GpuInfo;
use super::libraries::{SearchPath, nvml_candidates};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PerformancePolicy, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The open management library.
#[derive(Debug)]
pub struct Telemetry {
    nvml: &'static Nvml,
}

/// The libraries that are open, by where they lie. They stay so: each time that one is closed it leaves a file descriptor
/// behind.
static OPEN: Mutex<Vec<(PathBuf, &'static Nvml)>> = Mutex::new(Vec::new());

/// How a GPU was at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// All memory.
    pub memory_total_bytes: Option<u64>,
    /// Memory in use, by all processes.
    pub memory_used_bytes: Option<u64>,
    /// Temperature of the chip.
    pub temperature_celsius: Option<u32>,
    /// Where the hardware slows itself down.
    pub slowdown_celsius: Option<u32>,
    /// Where the hardware switches itself off.
    pub shutdown_celsius: Option<u32>,
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
    /// Time that heat has lowered the clock, since the driver was loaded.
    pub thermal_violation_ns: Option<u64>,
    /// Time that the limit of power has lowered the clock, since the driver was loaded.
    pub power_violation_ns: Option<u64>,
    /// Time that the driver or the hardware slowed the GPU down for heat, or the power supply did; newer drivers alone
    /// count it.
    pub slowdown_ns: Option<u64>,
    /// What the driver asks for: 0 nothing, 1 a reset, 2 a reboot, 3 and 4 to be drained (and reset).
    pub recovery_action: Option<u32>,
    /// Whether the GPU is not on the bus any more.
    pub lost: bool,
    /// Whether the library does not list it, as against not telling of it for a moment.
    pub missing: bool,
}

/// A reason for a lower clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Throttle {
    /// The application clocks were set by a user.
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
    /// The driver's bit for it.
    pub fn bit(self) -> u64 {
        NAMED.iter().find(|(_, name)| *name == self).map_or(0, |(bit, _)| bit.bits())
    }

    /// For programs and tables.
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
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        nvml_candidates(search).find_map(|path| {
            if let Some((_, nvml)) = open.iter().find(|(known, _)| *known == path) {
                return Some(Self { nvml });
            }
            let nvml = Box::leak(Box::new(Nvml::builder().lib_path(path.as_os_str()).init().ok()?));
            open.push((path, nvml));
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

    /// How a GPU is now. Of a GPU that the library does not know, nothing but that.
    pub fn sample(&self, gpu: &GpuInfo) -> Sample {
        match self.device(gpu) {
            Ok(device) => read(&device),
            Err(error) => untold(&error),
        }
    }

    pub(super) fn device(&self, gpu: &GpuInfo) -> Result<Device<'_>, NvmlError> {
        match self.nvml.device_by_uuid(gpu.uuid.as_str()) {
            Ok(device) => Ok(device),
            Err(error) if is_lost(&error) => Err(error),
            // Containers with a made-up UUID still have the true bus.
            Err(_) => self.nvml.device_by_pci_bus_id(gpu.pci_bus_id.as_str()),
        }
    }

    pub(super) fn nvml(&self) -> &'static Nvml {
        self.nvml
    }
}

/// What a failure to find a GPU says of it.
fn untold(error: &NvmlError) -> Sample {
    // Other failures are temporary: a busy driver does not answer.
    Sample { lost: is_lost(error), missing: matches!(error, NvmlError::NotFound), ..Sample::default() }
}

fn is_lost(error: &NvmlError) -> bool {
    matches!(error, NvmlError::GpuLost)
}

fn read(device: &Device<'_>) -> Sample {
    let memory = device.memory_info();
    let temperature = device.temperature(TemperatureSensor::Gpu);
    // A GPU that fell off the bus may still tell what it told last; these two ask the hardware.
    let errors = [memory.as_ref().err(), temperature.as_ref().err()];
    let lost = errors.iter().flatten().any(|error| is_lost(error));
    let needs_reset = errors.iter().flatten().any(|error| matches!(error, NvmlError::ResetRequired));
    let utilisation = device.utilization_rates().ok();
    let threshold = |which| device.temperature_threshold(which).ok();
    let violation = |policy| device.violation_status(policy).ok().map(|time| time.violation_time);
    let fields = Fields::read(device);
    Sample {
        memory_total_bytes: memory.as_ref().ok().map(|memory| memory.total),
        memory_used_bytes: memory.as_ref().ok().map(|memory| memory.used),
        temperature_celsius: temperature.ok(),
        slowdown_celsius: threshold(TemperatureThreshold::Slowdown),
        shutdown_celsius: threshold(TemperatureThreshold::Shutdown),
        power_milliwatts: device.power_usage().ok(),
        power_limit_milliwatts: device.enforced_power_limit().ok(),
        clock_mhz: device.clock_info(Clock::SM).ok(),
        clock_mhz_max: device.max_clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        utilisation_percent: utilisation.as_ref().map(|rates| rates.gpu),
        memory_utilisation_percent: utilisation.as_ref().map(|rates| rates.memory),
        ecc_uncorrected: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
        throttle: device.current_throttle_reasons().ok().map(throttles),
        thermal_violation_ns: violation(PerformancePolicy::Thermal),
        power_violation_ns: violation(PerformancePolicy::Power),
        slowdown_ns: fields.slowdown_ns,
        recovery_action: if needs_reset { Some(RESET) } else { fields.recovery_action },
        lost,
        missing: false,
    }
}

const RESET: u32 = 1;

/// What has no function of its own in the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    recovery_action: Option<u32>,
    slowdown_ns: Option<u64>,
}

impl Fields {
    const IDS: [u32; 4] = [
        field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
        field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
        field_id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
    ];

    fn read(device: &Device<'_>) -> Self {
        let Ok(told) = device.field_values_for(&Self::IDS.map(FieldId)) else { return Self::default() };
        let value = |at: usize| told.get(at)?.as_ref().ok()?.value.as_ref().ok().and_then(whole);
        Self::of(std::array::from_fn(value))
    }

    fn of(values: [Option<u64>; 4]) -> Self {
        let [action, slowdowns @ ..] = values;
        Self {
            recovery_action: action.and_then(|action| u32::try_from(action).ok()),
            // One that is missing now and there the next time would look like a jump: all of them or none.
            slowdown_ns: slowdowns.into_iter().sum(),
        }
    }
}

fn whole(value: &SampleValue) -> Option<u64> {
    match *value {
        SampleValue::U32(number) => Some(number.into()),
        SampleValue::U64(number) => Some(number),
        SampleValue::I64(number) => u64::try_from(number).ok(),
        SampleValue::F64(_) => None,
    }
}

const NAMED: [(ThrottleReasons, Throttle); 8] = [
    (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, Throttle::ApplicationClocks),
    (ThrottleReasons::SW_POWER_CAP, Throttle::PowerCap),
    (ThrottleReasons::HW_SLOWDOWN, Throttle::HardwareSlowdown),
    (ThrottleReasons::SYNC_BOOST, Throttle::SyncBoost),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, Throttle::Thermal),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, Throttle::HardwareThermal),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Throttle::PowerBrake),
    (ThrottleReasons::DISPLAY_CLOCK_SETTING, Throttle::DisplayClocks),
];

/// The reasons by name, without idleness.
fn throttles(reasons: ThrottleReasons) -> Vec<Throttle> {
    NAMED.into_iter().filter(|(bit, _)| reasons.contains(*bit)).map(|(_, name)| name).collect()
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
        let trouble = [Throttle::HardwareSlowdown, Throttle::Thermal, Throttle::HardwareThermal, Throttle::PowerBrake];
        assert_eq!(trouble.map(Throttle::bit), [0x8, 0x20, 0x40, 0x80]);
    }

    #[test]
    fn counters_are_added_where_all_of_them_are_told() {
        let told = Fields::of([Some(4), Some(1), Some(20), Some(300)]);
        assert_eq!(told, Fields { recovery_action: Some(4), slowdown_ns: Some(321) });
        let older = Fields::of([None, Some(1), None, Some(300)]);
        assert_eq!(older, Fields::default());
        assert_eq!(whole(&SampleValue::I64(-1)), None);
        assert_eq!(whole(&SampleValue::U32(7)), Some(7));
    }

    #[test]
    fn a_driver_that_does_not_answer_for_a_moment_has_lost_nothing() {
        assert_eq!(untold(&NvmlError::Timeout), Sample::default());
        assert_eq!(untold(&NvmlError::Unknown), Sample::default());
        assert!(untold(&NvmlError::GpuLost).lost);
        assert!(untold(&NvmlError::NotFound).missing && !untold(&NvmlError::NotFound).lost);
    }

    #[test]
    fn what_is_not_there_gives_an_empty_sample() {
        let Some(telemetry) = Telemetry::open(&SearchPath::system()) else {
            return magray_skip::test(magray_skip::Need::Gpu, "no management library");
        };
        let told = telemetry.sample(&gpu(0, "GPU-none", "ffff:ff:1f.0"));
        assert_eq!(Sample { missing: false, ..told }, Sample::default());
    }
}
