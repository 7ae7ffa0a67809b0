//! How long a model's weights take to a device, learnt from the loads before: from the host's memory and from files apart.
//! Never predicts nothing, nor a number that is not one.

use super::DeviceKind;
use super::cost::as_f64;
use crate::moment::{from_micros, micros};
use std::time::Duration;

/// How much the loads before the last one count.
const KEPT: f64 = 0.5;
/// No load is expected to be quicker than this, in microseconds.
const LEAST_US: f64 = 1.0;

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The host's memory.
    Host,
    /// The model's files.
    Files,
}

/// What was measured of one model on one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadTimes {
    host: Option<Measured>,
    files: Option<Measured>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    us: f64,
    bytes: u64,
}

impl LoadTimes {
    /// How long this many bytes are expected to take.
    pub(super) fn expected(&self, source: Source, bytes: u64, kind: DeviceKind) -> Duration {
        let measured = match source {
            Source::Host => self.host,
            Source::Files => self.files,
        };
        let us = match (measured, kind) {
            (Some(known), _) if known.bytes > 0 => known.us * as_f64(bytes) / as_f64(known.bytes),
            (Some(known), _) => known.us,
            // 10 GB/s, as a good bus has it without pinned memory.
            (None, DeviceKind::Gpu) => 1e5 + as_f64(bytes) / 1e4,
            // 1 GB/s: read and brought into shape.
            (None, DeviceKind::Cpu) => 5e4 + as_f64(bytes) / 1e3,
        };
        from_micros(us.max(LEAST_US))
    }

    /// Whether anything was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.host.is_some() || self.files.is_some()
    }

    /// A load of this many bytes took so long.
    pub(super) fn learn(&mut self, source: Source, bytes: u64, took: Duration) {
        let measured = match source {
            Source::Host => &mut self.host,
            Source::Files => &mut self.files,
        };
        let us = micros(took).max(LEAST_US);
        let us = measured.filter(|known| known.bytes == bytes).map_or(us, |known| known.us * KEPT + us * (1.0 - KEPT));
        *measured = Some(Measured { us, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_was_never_measured_is_guessed_by_its_size_and_the_kind_of_device() {
        let times = LoadTimes::default();
        let expected = |bytes, kind| times.expected(Source::Files, bytes, kind).as_millis();
        assert_eq!(expected(0, DeviceKind::Gpu), 100);
        assert_eq!(expected(10_000_000_000, DeviceKind::Gpu), 1_100);
        assert_eq!(expected(1_000_000_000, DeviceKind::Cpu), 1_050);
    }

    #[test]
    fn files_and_memory_are_measured_apart() {
        let mut times = LoadTimes::default();
        times.learn(Source::Files, GIB, Duration::from_secs(4));
        times.learn(Source::Host, GIB, Duration::from_millis(100));
        times.learn(Source::Host, GIB, Duration::from_millis(200));
        let expected = |source, bytes| times.expected(source, bytes, DeviceKind::Gpu);
        assert_eq!(expected(Source::Files, GIB), Duration::from_secs(4));
        assert_eq!(expected(Source::Host, GIB), Duration::from_millis(150));
        assert_eq!(expected(Source::Host, 2 * GIB), Duration::from_millis(300));
    }

    #[test]
    fn weights_of_no_size_take_as_long_as_they_took() {
        let mut times = LoadTimes::default();
        times.learn(Source::Host, 0, Duration::ZERO);
        assert!(times.expected(Source::Host, 0, DeviceKind::Gpu) > Duration::ZERO);
        assert!(times.expected(Source::Host, u64::MAX, DeviceKind::Gpu) > Duration::ZERO);
    }
}
