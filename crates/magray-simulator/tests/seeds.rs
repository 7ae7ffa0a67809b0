//! The worlds that every change must pass.

use magray_simulator::{replay, try_seeds};

const SEEDS: u64 = 10_000;
/// Beyond these: worlds in which a rule was broken once.
const ONCE_BROKEN: [u64; 2] = [23_922, 26_366];

#[test]
fn ten_thousand_worlds_break_no_rule() {
    match try_seeds(0..SEEDS) {
        Ok(totals) => {
            assert_eq!(totals.worlds, SEEDS);
            // A world in which nothing happens breaks no rule either.
            assert!(totals.steps > 100 * SEEDS && totals.answered > 30 * SEEDS && totals.refused > SEEDS, "{totals:?}");
            assert!(totals.tokens > 50 * SEEDS && totals.preemptions > SEEDS / 2, "{totals:?}");
        }
        Err(failed) => panic!("{failed}"),
    }
}

#[test]
fn worlds_in_which_a_rule_was_broken_once_break_none() {
    for seed in ONCE_BROKEN {
        if let Err(failed) = replay(seed, 40) {
            panic!("{failed}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_world_each_time() {
    for seed in 0..20 {
        let [first, again] = [(); 2].map(|()| replay(seed, 40).map_err(|failed| failed.to_string()));
        let figures = |run: Result<magray_simulator::Measured, String>| {
            run.map(|measured| (measured.steps, measured.ended, measured.answers.len()))
        };
        assert_eq!(figures(first), figures(again), "seed {seed}");
    }
}
