//! How full the memory of a whole device is, other processes included, and what is done about it, step by step.
//! Frees nothing itself: it goes by what telemetry says.

use super::MemoryUse;

/// Samples that a step lasts at least, so that it can have an effect before the next.
const SAMPLES: u32 = 4;
/// A step is taken back when the memory is this part less full than what led to it.
const EASE: f64 = 0.01;
/// The part of its speed that a device with smaller batches is trusted with.
const REDUCED_WEIGHT: f64 = 0.5;

/// What is done because the memory of a device is nearly full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryStep {
    /// Nothing: there is room.
    #[default]
    Roomy,
    /// What is cached was freed.
    Trimmed,
    /// It gets smaller batches and less work.
    Reduced,
    /// What the CPU may compute is computed there.
    Avoided,
}

impl MemoryStep {
    const ALL: [Self; 4] = [Self::Roomy, Self::Trimmed, Self::Reduced, Self::Avoided];

    /// A stable code for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Roomy => "roomy",
            Self::Trimmed => "trimmed",
            Self::Reduced => "reduced",
            Self::Avoided => "avoided",
        }
    }

    /// The part of the memory in use from which on it is taken.
    fn share(self) -> f64 {
        match self {
            Self::Roomy => 0.0,
            Self::Trimmed => 0.95,
            Self::Reduced => 0.97,
            Self::Avoided => 0.99,
        }
    }

    pub(super) fn weight(self) -> f64 {
        if self >= Self::Reduced { REDUCED_WEIGHT } else { 1.0 }
    }
}

/// The step that a device is at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryWatch {
    step: MemoryStep,
    /// Samples since it was taken.
    samples: u32,
}

impl MemoryWatch {
    pub(super) fn step(&self) -> MemoryStep {
        self.step
    }

    /// Takes a sample. Returns the next step, up or down, if it is taken now. The first is harmless and taken at once.
    pub(super) fn note(&mut self, memory: MemoryUse) -> Option<MemoryStep> {
        let share = memory.share()?;
        self.samples = self.samples.saturating_add(1);
        let at = MemoryStep::ALL.iter().position(|step| *step == self.step)?;
        let higher = MemoryStep::ALL.get(at + 1).filter(|step| share >= step.share());
        let lower = at.checked_sub(1).map(|at| &MemoryStep::ALL[at]).filter(|_| share < self.step.share() - EASE);
        let next = *higher.or(lower)?;
        if self.step != MemoryStep::Roomy && self.samples < SAMPLES {
            return None;
        }
        (self.step, self.samples) = (next, 0);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(watch: &mut MemoryWatch, used: u64, samples: usize) -> Vec<MemoryStep> {
        (0..samples).filter_map(|_| watch.note(MemoryUse { used, total: 1000 })).collect()
    }

    #[test]
    fn steps_are_taken_one_after_the_other_and_taken_back_in_their_order() {
        use MemoryStep::{Avoided, Reduced, Roomy, Trimmed};
        let mut watch = MemoryWatch::default();
        assert_eq!(steps(&mut watch, 949, 9), []);
        assert_eq!(steps(&mut watch, 995, 1), [Trimmed], "at once");
        assert_eq!(steps(&mut watch, 995, 3), [], "it may have helped");
        assert_eq!(steps(&mut watch, 995, 5), [Reduced, Avoided]);
        assert_eq!(steps(&mut watch, 985, 9), [], "a little less is not enough");
        assert_eq!(steps(&mut watch, 500, 12), [Reduced, Trimmed, Roomy]);
        assert_eq!(watch.step(), Roomy);
    }

    #[test]
    fn memory_that_is_full_by_design_goes_no_further_than_its_share() {
        let mut watch = MemoryWatch::default();
        assert_eq!(steps(&mut watch, 960, 99), [MemoryStep::Trimmed]);
        assert_eq!(steps(&mut watch, 975, 99), [MemoryStep::Reduced]);
        assert_eq!(watch.note(MemoryUse { used: 1, total: 0 }), None, "a machine that does not tell");
    }
}
