//! The memory of a device by its owners: weights, passes, keys and values, other processes, free.
//! Sums up what a report says; what it does not say counts as free.

use super::super::gpu::words::size;
use crate::control::{DeviceReport, ModelReport};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Weights,
    Workspace,
    Kv,
    Others,
    Free,
}

impl Owner {
    /// Its mark in a bar, so that owners differ without colour.
    fn mark(self) -> char {
        match self {
            Self::Weights => '#',
            Self::Workspace => '+',
            Self::Kv => '=',
            Self::Others => '~',
            Self::Free => '.',
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Workspace => "passes",
            Self::Kv => "kv",
            Self::Others => "others",
            Self::Free => "free",
        }
    }
}

/// Bytes by owner; together they are the device's memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parts(Vec<(Owner, u64)>);

pub(super) fn parts(device: &DeviceReport, models: &[ModelReport]) -> Parts {
    let total = device.memory_total_bytes.unwrap_or(0);
    let is_there = |model: &&ModelReport| {
        model.residency.iter().any(|at| at.device == device.name && matches!(at.place.as_str(), "on_gpu" | "leaving"))
    };
    let used = device.memory_used_bytes.unwrap_or(0).min(total);
    let weights = models.iter().filter(is_there).map(|model| model.bytes).sum::<u64>().min(used);
    let kv = device.kv_bytes.min(used - weights);
    let workspace = used - weights - kv;
    // What magray holds and does not use is its own too: it is free for its next pass.
    let held = device.memory_reserved_bytes.unwrap_or(used).max(used);
    let others = device.memory_used_by_all_bytes.unwrap_or(0).saturating_sub(held).min(total - used);
    let free = total - used - others;
    Parts(vec![
        (Owner::Weights, weights),
        (Owner::Workspace, workspace),
        (Owner::Kv, kv),
        (Owner::Others, others),
        (Owner::Free, free),
    ])
}

impl Parts {
    fn total(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }

    /// A bar of this width. An owner of anything has a mark at least, where there is room.
    pub(super) fn bar(&self, width: usize) -> Vec<(Owner, String)> {
        let total = self.total().max(1) as f64;
        let mut left = width;
        let mut bar = Vec::new();
        for (owner, bytes) in self.0.iter().filter(|(owner, bytes)| *bytes > 0 && *owner != Owner::Free) {
            let marks = ((*bytes as f64 / total * width as f64).round() as usize).max(1).min(left);
            left -= marks;
            bar.push((*owner, owner.mark().to_string().repeat(marks)));
        }
        bar.push((Owner::Free, Owner::Free.mark().to_string().repeat(left)));
        bar
    }

    pub(super) fn in_words(&self) -> String {
        let some = self.0.iter().filter(|(_, bytes)| *bytes > 0);
        some.map(|(owner, bytes)| format!("{}{} {}", owner.mark(), owner.word(), size(*bytes)))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::gpu::status::tests::engine;

    #[test]
    fn owners_add_up_to_the_memory_of_the_device() {
        let engine = engine();
        let mut gpu = engine.devices[1].clone();
        let parts_of = |gpu: &DeviceReport| parts(gpu, &engine.models);
        assert_eq!(parts_of(&gpu).total(), 150_000_000_000);
        assert_eq!(parts_of(&gpu).in_words(), "#weights 45.0 MB +passes 54.0 MB ~others 510.0 MB .free 149.4 GB");
        // Figures of different moments may contradict each other.
        gpu.memory_used_bytes = Some(u64::MAX);
        gpu.kv_bytes = u64::MAX;
        assert_eq!(parts_of(&gpu).total(), 150_000_000_000);
        gpu.memory_total_bytes = None;
        assert_eq!((parts_of(&gpu).total(), parts_of(&gpu).in_words().as_str()), (0, ""));
    }

    #[test]
    fn a_bar_has_its_width_and_a_mark_for_every_owner() {
        let engine = engine();
        let parts = parts(&engine.devices[1], &engine.models);
        for width in 0..80 {
            let bar: String = parts.bar(width).into_iter().map(|(_, text)| text).collect();
            assert_eq!(bar.chars().count(), width);
        }
        let bar: String = parts.bar(10).into_iter().map(|(_, text)| text).collect();
        assert_eq!(bar, "#+~.......");
    }
}
