//! Holds back news that was told a moment ago, without ever leaving people with the wrong picture.
//! Reads no clock and sends nothing.

use super::Alert;
use magray_core::schedule::Change;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What follows from an alert.
#[derive(Debug, PartialEq)]
pub(super) enum Admitted {
    /// It is to be told.
    Now(Alert),
    /// It is to be told when the cooldown is over, if it is still true then.
    Later,
    /// It is no news.
    Never,
}

/// What was told of each device.
#[derive(Debug)]
pub(super) struct Gate {
    cooldown: Duration,
    devices: BTreeMap<String, Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// When each kind of leaving was last told; those beyond the cooldown are forgotten.
    left: Vec<(Left, Instant)>,
    /// How people think that the device left; `None`: they think that it is in rotation.
    believed: Option<Left>,
    /// What will be told, and when.
    held: Option<(Alert, Instant)>,
}

/// A kind of leaving: a code for programs, and whether it is for good.
type Left = (&'static str, bool);

impl Gate {
    /// No clock counts further than this.
    const COOLDOWN_MAX: Duration = Duration::from_secs(365 * 86_400);

    pub(super) fn new(cooldown: Duration) -> Self {
        Self { cooldown: cooldown.min(Self::COOLDOWN_MAX), devices: BTreeMap::new() }
    }

    pub(super) fn admit(&mut self, alert: Alert, now: Instant) -> Admitted {
        let cooldown = self.cooldown;
        let told = self.devices.entry(alert.device.clone()).or_default();
        told.left.retain(|(_, at)| now.saturating_duration_since(*at) < cooldown);
        told.held = None;
        let Change::Left { reason, is_permanent } = alert.change else {
            // Who never heard that it left need not hear that it is back.
            return if told.believed.take().is_some() { Admitted::Now(alert) } else { Admitted::Never };
        };
        let left = (reason.code(), is_permanent);
        match told.left.iter().find(|(known, _)| *known == left) {
            None => {
                told.note(left, now);
                Admitted::Now(alert)
            }
            Some(_) if told.believed == Some(left) => Admitted::Never,
            Some((_, at)) => {
                told.held = Some((alert, *at + cooldown));
                Admitted::Later
            }
        }
    }

    /// When something that is held back is to be told.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.devices.values().filter_map(|told| told.held.as_ref().map(|(_, due)| *due)).min()
    }

    /// What was held back long enough.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Alert> {
        let due = |told: &mut Told| {
            let (alert, _) = told.held.take_if(|(_, due)| *due <= now)?;
            if let Change::Left { reason, is_permanent } = alert.change {
                told.note((reason.code(), is_permanent), now);
            }
            Some(alert)
        };
        self.devices.values_mut().filter_map(due).collect()
    }
}

impl Told {
    fn note(&mut self, left: Left, now: Instant) {
        self.left.retain(|(known, _)| *known != left);
        self.left.push((left, now));
        self.believed = Some(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_core::schedule::{Fallback, Fault};
    use std::time::SystemTime;

    const MINUTE: Duration = Duration::from_secs(60);

    fn alert(change: Change) -> Alert {
        Alert { device: "cuda:0".to_owned(), change, host: "h".to_owned(), time: SystemTime::UNIX_EPOCH }
    }

    fn left(reason: Fallback) -> Alert {
        alert(Change::Left { reason, is_permanent: false })
    }

    fn hot() -> Alert {
        left(Fallback::Ruled(Fault::Overheated))
    }

    fn back() -> Alert {
        alert(Change::Returned)
    }

    /// A gate and a clock in seconds.
    fn gate() -> (Gate, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        (Gate::new(MINUTE), move |second| start + Duration::from_secs(second))
    }

    #[test]
    fn the_same_is_told_once_a_minute_and_a_return_always() {
        let (mut gate, at) = gate();
        assert_eq!(gate.admit(hot(), at(0)), Admitted::Now(hot()));
        assert_eq!(gate.admit(hot(), at(1)), Admitted::Never, "people know");
        assert_eq!(gate.admit(back(), at(2)), Admitted::Now(back()));
        assert_eq!(gate.admit(back(), at(3)), Admitted::Never);
        assert_eq!(gate.admit(hot(), at(60)), Admitted::Now(hot()));
        assert_eq!(gate.next_due(), None);
    }

    #[test]
    fn a_device_that_flaps_is_told_of_once() {
        let (mut gate, at) = gate();
        gate.admit(hot(), at(0));
        gate.admit(back(), at(1));
        for second in (2..58).step_by(2) {
            assert_eq!(gate.admit(hot(), at(second)), Admitted::Later);
            assert_eq!(gate.admit(back(), at(second + 1)), Admitted::Never);
        }
        assert_eq!((gate.next_due(), gate.take_due(at(1000))), (None, Vec::new()), "in the end it was back");
    }

    #[test]
    fn a_device_that_is_out_when_the_minute_is_over_is_told_of_then() {
        let (mut gate, at) = gate();
        gate.admit(hot(), at(0));
        gate.admit(back(), at(1));
        assert_eq!(gate.admit(hot(), at(2)), Admitted::Later);
        assert_eq!(gate.next_due(), Some(at(60)));
        assert!(gate.take_due(at(59)).is_empty());
        assert_eq!(gate.take_due(at(60)), [hot()]);
        assert_eq!(gate.next_due(), None);
        assert_eq!(gate.admit(back(), at(61)), Admitted::Now(back()));
    }

    #[test]
    fn other_reasons_devices_and_the_end_of_hope_are_news() {
        let (mut gate, at) = gate();
        gate.admit(hot(), at(0));
        let lost = left(Fallback::Lost);
        assert_eq!(gate.admit(lost.clone(), at(1)), Admitted::Now(lost));
        let for_good = alert(Change::Left { reason: Fallback::Lost, is_permanent: true });
        assert_eq!(gate.admit(for_good.clone(), at(2)), Admitted::Now(for_good));
        let other = Alert { device: "cuda:1".to_owned(), ..hot() };
        assert_eq!(gate.admit(other.clone(), at(3)), Admitted::Now(other));
    }
}
