//! Samples of devices that are groups of GPUs: each as well as its GPUs together.
//! Asks another source for those.

use super::{HealthSample, HealthSource};
use std::ops::Range;

/// A source of GPUs as one of devices.
#[derive(Debug)]
pub struct GroupSource<S> {
    source: S,
    /// By device: the places of its GPUs.
    members: Vec<Range<usize>>,
}

impl<S: HealthSource> GroupSource<S> {
    /// Devices of so many GPUs each, in the order of the source.
    pub fn new(source: S, counts: impl Iterator<Item = usize>) -> Self {
        let members = counts.scan(0, |end, count| {
            let start = *end;
            *end += count;
            Some(start..*end)
        });
        Self { source, members: members.collect() }
    }
}

impl<S: HealthSource> HealthSource for GroupSource<S> {
    fn sample(&mut self, device: usize) -> HealthSample {
        let Some(members) = self.members.get(device).cloned() else { return HealthSample::default() };
        let mut samples = members.map(|gpu| self.source.sample(gpu)).collect::<Vec<_>>().into_iter();
        let first = samples.next().unwrap_or_default();
        samples.fold(first, HealthSample::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_lost_with_any_of_its_gpus() {
        let gpus =
            |gpu: usize| HealthSample { lost: gpu == 2, temperature_celsius: Some(40), ..HealthSample::default() };
        let mut source = GroupSource::new(gpus, [2, 2, 1].into_iter());
        assert_eq!([0, 1, 2, 3].map(|device| source.sample(device).lost), [false, true, false, false]);
        assert_eq!(source.sample(3), HealthSample::default());
    }
}
