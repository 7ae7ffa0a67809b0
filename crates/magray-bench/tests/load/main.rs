//! Load on the real binary with simulated GPUs while every fault happens: nothing lost, doubled or wrong, nothing left.
//! Asserts no speed. Linux only: what is left behind is looked for in `/proc`.
#![cfg(target_os = "linux")]

mod plan;
mod processes;
mod supervisor;

use std::{collections::BTreeSet, time::Duration};

use plan::Plan;
use processes::{Family, Gone};
use supervisor::{Home, Load};

/// How long workers may take to notice that their supervisor is gone.
const GONE_WITHIN: Duration = Duration::from_secs(20);

#[test]
fn every_fault_under_load_loses_nothing_and_leaves_nothing() {
    let plan = Plan::by_chance(plan::seed());
    let home = Home::new();
    let report = Load { rate: 200, seconds: 14, plan: Some(&plan) }.run(&home);
    for count in ["lost", "doubled", "wrong", "unexpected"] {
        assert_eq!(report[count], 0, "{count} with {plan}:\n{report:#}");
    }
    assert!(report["answered"].as_u64().unwrap_or(0) > 1000, "{plan}:\n{report:#}");
    let refused = report["refused"].as_object().expect("an object");
    assert!(refused.keys().all(|kind| kind == "poison"), "{plan}:\n{report:#}");

    let workers = report["workers"].as_array().expect("a list");
    assert!(workers.len() > 2, "no worker was replaced with {plan}:\n{report:#}");
    let incidents = report["incidents"].as_array().expect("a list");
    let kinds: BTreeSet<&str> = incidents.iter().filter_map(|incident| incident["kind"].as_str()).collect();
    // Which faults meet a batch is a matter of luck; most of them do.
    assert!(kinds.len() >= 4, "only {kinds:?} were noticed with {plan}:\n{report:#}");

    let family = Family::of_home(home.path());
    assert!(family.is_empty(), "processes were left with {plan}: {family:?}");
    assert_eq!(processes::named_leftovers(home.path()), Vec::<String>::new(), "{plan}");
}

#[test]
fn nothing_is_left_after_the_supervisor_is_killed() {
    check_killed(None);
}

#[test]
fn workers_that_are_stuck_end_with_their_supervisor() {
    check_killed(Some(&Plan::stuck()));
}

/// Kills a supervisor and looks for what is left.
fn check_killed(plan: Option<&Plan>) {
    let home = Home::new();
    let mut supervisor = Load { rate: 50, seconds: 600, plan }.spawn(&home);
    supervisor.wait_for_workers(2);
    let family = Family::of_home(home.path());
    let workers = family.workers(supervisor.pid());
    assert_eq!(workers.len(), 2, "{family:?}");
    // The test would show nothing if there were nothing to leave behind.
    assert!(workers.iter().all(|worker| worker.has_shared_memory()), "{workers:?}");

    let gone: Vec<Gone> = workers.iter().map(|worker| worker.watch()).collect();
    supervisor.kill();
    for worker in gone {
        assert!(worker.within(GONE_WITHIN), "a worker outlives its supervisor: {worker:?}");
    }
    let family = Family::of_home(home.path());
    assert!(family.is_empty(), "processes were left: {family:?}");
    assert_eq!(processes::named_leftovers(home.path()), Vec::<String>::new());
}
