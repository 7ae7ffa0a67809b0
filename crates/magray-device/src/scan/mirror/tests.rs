//! Searches by a copy against searches of the vectors themselves, with a device that rounds, lets go and comes back.

use super::*;
use crate::scan::{HostRules, Storage, Wanted};
use half::f16;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const DIMS: usize = 8;

/// A device in this process, with numbers of 16 bits.
struct Device {
    is_gone: Arc<AtomicBool>,
    holds: AtomicUsize,
    scans: Arc<AtomicUsize>,
    reasons: Mutex<Vec<String>>,
}

struct Copy {
    rows: Mutex<(Vec<f32>, Vec<f32>)>,
    is_gone: Arc<AtomicBool>,
    scans: Arc<AtomicUsize>,
}

impl Device {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            is_gone: Arc::default(),
            holds: AtomicUsize::new(0),
            scans: Arc::default(),
            reasons: Mutex::default(),
        })
    }
}

impl RowsHost for Device {
    fn hold(&self, shape: HeldShape) -> Result<Box<dyn HeldRows>, String> {
        if self.is_gone.load(Ordering::SeqCst) {
            return Err("the device is gone".to_owned());
        }
        self.holds.fetch_add(1, Ordering::SeqCst);
        let rows = Mutex::new((vec![7.0; shape.room * shape.dims], vec![0.0; shape.room]));
        Ok(Box::new(Copy { rows, is_gone: Arc::clone(&self.is_gone), scans: Arc::clone(&self.scans) }))
    }

    fn pass_over(&self, reason: &str) {
        self.reasons.lock().unwrap().push(reason.to_owned());
    }

    fn rules(&self) -> HostRules {
        HostRules { bytes_min: 0, idle_max: None }
    }
}

impl Copy {
    fn check(&self) -> Result<(), Gone> {
        if self.is_gone.load(Ordering::SeqCst) { Err(Gone) } else { Ok(()) }
    }
}

fn short(number: &f32) -> f32 {
    f16::from_f32(*number).to_f32()
}

impl HeldRows for Copy {
    fn device(&self) -> String {
        "test".to_owned()
    }

    fn put(&self, slots: &[u32], rows: &[f32], offsets: &[f32]) -> Result<(), Gone> {
        self.check()?;
        let mut own = self.rows.lock().unwrap();
        for ((slot, row), offset) in slots.iter().zip(rows.chunks(DIMS)).zip(offsets) {
            own.0[*slot as usize * DIMS..][..DIMS].copy_from_slice(&row.iter().map(short).collect::<Vec<_>>());
            own.1[*slot as usize] = *offset;
        }
        Ok(())
    }

    fn keep_signs(&self, _: &[f32]) -> Result<(), Gone> {
        self.check()
    }

    fn best(&self, scan: &HeldScan<'_>) -> Result<Vec<Found>, Gone> {
        self.check()?;
        self.scans.fetch_add(1, Ordering::SeqCst);
        let own = self.rows.lock().unwrap();
        let query: Vec<f32> = scan.query.iter().map(short).collect();
        let score = |slot: usize| {
            own.0[slot * DIMS..][..DIMS].iter().zip(&query).map(|(a, b)| a * b).sum::<f32>() + own.1[slot]
        };
        let allowed = |slot: &usize| scan.allowed.is_none_or(|bits| is_set(bits, *slot as u32));
        let found = (0..scan.rows).filter(allowed).map(|slot| Found { slot: slot as u32, score: score(slot) });
        let mut found: Vec<Found> = found.filter(|found| found.score > f32::NEG_INFINITY).collect();
        found.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.slot.cmp(&other.slot)));
        found.truncate(scan.most);
        Ok(found)
    }
}

struct Rig {
    rows: Arc<RwLock<Rows>>,
    mirror: Mirror,
    device: Arc<Device>,
    cpu: Cpu,
}

impl Rig {
    fn new(metric: Metric) -> Self {
        let rows = Arc::new(RwLock::new(Rows::new(DIMS, Storage::F32, metric)));
        let device = Device::new();
        let mirror = Mirror::new(Arc::clone(&device) as Arc<dyn RowsHost>, &rows);
        Self { rows, mirror, device, cpu: Cpu::new(None, Some(1)).unwrap() }
    }

    fn set(&self, slot: u32, vector: Option<&[f32]>) {
        let mut rows = self.rows.write().unwrap();
        self.mirror.note(slot);
        match vector {
            Some(vector) => rows.set(slot, vector).unwrap(),
            None => rows.clear(slot),
        }
    }

    /// What the copy finds, which must be what the vectors themselves say.
    fn check(&self, query: &[f32], k: usize, allowed: Option<&[u64]>) -> bool {
        let rows = read(&self.rows);
        let k = k.min(rows.len());
        let found = self.mirror.top(&rows, &self.cpu, &Ask { query, k, allowed, exact: true });
        let wanted = Wanted { k, allowed, threshold: None, exact: true };
        let expected = rows.top(&self.cpu, query, &wanted).unwrap().remove(0);
        if let Some(found) = &found {
            assert_eq!(found, &expected);
        }
        found.is_some()
    }

    fn wait_until_copied(&self, query: &[f32]) {
        while !self.check(query, 3, None) {
            self.mirror.0.lock().retry_at_once();
            std::thread::yield_now();
        }
    }
}

impl State {
    fn retry_at_once(&mut self) {
        if let Phase::Absent { from, .. } = &mut self.phase {
            *from = Instant::now();
        }
    }
}

fn vector(seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) | 1 << 40;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..DIMS).map(|_| next()).collect()
}

#[test]
fn a_copy_is_made_after_some_searches_and_kept_up_to_date() {
    for metric in [Metric::Cosine, Metric::Dot, Metric::Euclid] {
        let rig = Rig::new(metric);
        (0..500).for_each(|slot| rig.set(slot, Some(&vector(slot))));
        assert!(!rig.check(&vector(9999), 5, None), "the first search does not wait for a copy");
        rig.wait_until_copied(&vector(9999));
        assert_eq!(rig.device.holds.load(Ordering::SeqCst), 1);
        rig.set(17, Some(&vector(9999)));
        assert!(rig.check(&vector(9999), 5, None), "a changed vector is found");
        rig.set(17, None);
        // Beyond what was copied, with empty slots before it.
        rig.set(700, Some(&vector(9999)));
        assert!(rig.check(&vector(9999), 5, None), "a deleted vector is not found, a new one is");
        while !rig.mirror.0.lock().changed.is_empty() {
            rig.check(&vector(1), 5, None);
            std::thread::yield_now();
        }
        assert!(rig.check(&vector(9999), 5, None) && rig.check(&vector(3), 30, None));
        assert_eq!(rig.device.holds.load(Ordering::SeqCst), 1, "there was room");
    }
}

#[test]
fn many_equal_vectors_are_told_apart_by_the_vectors_themselves() {
    let rig = Rig::new(Metric::Dot);
    // All alike in 16 bits.
    for slot in 0..600 {
        let mut vector = vector(1);
        vector[0] += slot as f32 * 1e-6;
        rig.set(slot, Some(&vector));
    }
    let query = vector(5);
    while rig.device.scans.load(Ordering::SeqCst) < 3 {
        rig.check(&query, 5, None);
        rig.mirror.0.lock().retry_at_once();
        std::thread::yield_now();
    }
    assert!(!rig.check(&query, 5, None), "what 16 bits do not tell is not answered by them");
}

#[test]
fn a_device_that_lets_go_is_left_and_taken_back() {
    let rig = Rig::new(Metric::Cosine);
    (0..300).for_each(|slot| rig.set(slot, Some(&vector(slot))));
    rig.wait_until_copied(&vector(9));
    rig.device.is_gone.store(true, Ordering::SeqCst);
    assert!(!rig.check(&vector(9), 3, None), "the vectors themselves are searched");
    rig.device.is_gone.store(false, Ordering::SeqCst);
    rig.wait_until_copied(&vector(9));
    assert_eq!(rig.device.holds.load(Ordering::SeqCst), 2);
}

#[test]
fn vectors_that_are_too_long_are_told_once_and_never_copied() {
    let rig = Rig::new(Metric::Dot);
    (0..300).for_each(|slot| rig.set(slot, Some(&vector(slot))));
    let long: Vec<f32> = vector(1).iter().map(|number| number * 1e5).collect();
    rig.set(123, Some(&long));
    let is_unfit = || matches!(rig.mirror.0.lock().phase, Phase::Unfit { slot: 123 });
    while !is_unfit() {
        assert!(!rig.check(&vector(9), 3, None));
        std::thread::yield_now();
    }
    rig.set(7, Some(&vector(8)));
    (0..50).for_each(|seed| assert!(!rig.check(&vector(seed), 3, None)));
    assert!(is_unfit() && rig.device.holds.load(Ordering::SeqCst) == 0);
    let reasons = rig.device.reasons.lock().unwrap().clone();
    assert!(matches!(&reasons[..], [reason] if reason.contains("longer than 16384")), "{reasons:?}");
    // Without the long one they are copied.
    rig.set(123, None);
    rig.wait_until_copied(&vector(9));
    // One that comes later sends the copy away.
    rig.set(200, Some(&long));
    while !matches!(rig.mirror.0.lock().phase, Phase::Unfit { slot: 200 }) {
        rig.check(&vector(9), 3, None);
        rig.mirror.0.lock().retry_at_once();
        std::thread::yield_now();
    }
    assert_eq!(rig.device.reasons.lock().unwrap().len(), 2);
    assert_eq!(rig.device.holds.load(Ordering::SeqCst), 1, "{reasons:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn searches_by_a_copy_find_what_the_vectors_say(
        metric in prop::sample::select(vec![Metric::Cosine, Metric::Dot, Metric::Euclid]),
        changes in prop::collection::vec((0u32..900, any::<u32>(), any::<bool>()), 1..200),
        k in 1usize..40,
    ) {
        let rig = Rig::new(metric);
        (0..400).for_each(|slot| rig.set(slot, Some(&vector(slot))));
        rig.wait_until_copied(&vector(1));
        for (at, (slot, seed, is_set)) in changes.into_iter().enumerate() {
            rig.set(slot, is_set.then(|| vector(seed)).as_deref());
            if at % 5 == 0 {
                rig.check(&vector(seed ^ 77), k, None);
            }
        }
        rig.check(&vector(4711), k, None);
    }
}
