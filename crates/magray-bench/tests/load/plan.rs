//! A plan of faults by chance: each kind once, on one device or the other, in an order that the seed chooses.

use std::{
    env, fmt,
    hash::{BuildHasher, RandomState},
    io::{self, Write},
};

/// Repeats the plan of a run.
const SEED: &str = "MAGRAY_LOAD_SEED";

/// What goes wrong by chance, and for how long where it goes on for a while.
const FAULTS: [&str; 13] = [
    "illegal_address@",
    "oom@",
    "hang@",
    "transient@",
    "crash@",
    "wrong@",
    "slow@+1s",
    "freeze@+2.5s",
    "kill@",
    "hot@+1s",
    // These wait for the load of a worker that takes the place of another.
    "load_oom@",
    "load_fails@",
    "load_crash@",
];
/// What goes wrong after all that: it takes its device out for so long that it would hide the rest.
const LAST: &str = "xid79";
/// Faults happen between these moments.
const FROM_MS: u64 = 1_000;
const UNTIL_MS: u64 = 9_000;
/// Each fault has a time of its own, and begins within so much of it. A request that meets two faults in a row is taken for
/// one that ends workers; a hang is noticed after a second, and no fault begins a second after another.
const SLOT_MS: u64 = (UNTIL_MS - FROM_MS) / FAULTS.len() as u64;
const JITTER_MS: u64 = 100;
/// A token of the tiny model that ends workers; no text of the load holds it but those that are sent for it.
const POISON: u32 = 777;

/// The plan, and the seed that repeats it.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) text: String,
}

/// The seed of this run: a fresh one each time, or that of `MAGRAY_LOAD_SEED` to repeat a run.
pub(crate) fn seed() -> u64 {
    let seed = match env::var(SEED) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED}={text} is no number")),
        // The standard library draws the keys of its maps from the system.
        Err(_) => RandomState::new().hash_one(SEED),
    };
    // Past the capture of the test harness: a run that hangs or is killed must have told its seed.
    let _ = writeln!(io::stderr(), "faults at random: {SEED}={seed}");
    seed
}

impl Plan {
    /// One worker computes for ever and the other sends no heartbeat, from the start on.
    pub(crate) fn stuck() -> Self {
        Self { seed: 1, text: "sim:0/hang@300ms,sim:1/freeze@300ms+60s".to_owned() }
    }

    pub(crate) fn by_chance(seed: u64) -> Self {
        let mut state = seed;
        let mut below = |end: u64| {
            // A linear congruence is chance enough to choose moments.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let mut order = FAULTS;
        for last in (1..order.len()).rev() {
            order.swap(last, below(last as u64 + 1) as usize);
        }
        let mut faults: Vec<String> = (0..)
            .zip(order)
            .map(|(slot, fault)| {
                let (kind, lasts) = fault.split_once('@').unwrap_or((fault, ""));
                let (device, at) = (below(2), FROM_MS + slot * SLOT_MS + below(JITTER_MS));
                format!("sim:{device}/{kind}@{at}ms{lasts}")
            })
            .collect();
        faults.push(format!("sim:{}/{LAST}@{UNTIL_MS}ms", below(2)));
        faults.push(format!("poison@id={POISON}"));
        Self { seed, text: faults.join(",") }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SEED}={} ({})", self.seed, self.text)
    }
}
