//! What is let go of is in no process any more.
#![cfg(target_os = "linux")]

use super::residency::{GPU, models, on_gpu, wait_for};
use super::{LONG, options, start};
use magray_engine::engine::{Engine, EngineOptions, ModelPlan, Residency};
use std::collections::BTreeSet;

/// Pieces of shared memory that the worker has mapped: that of batches, and one for each model that it has.
fn shared_memories(engine: &Engine) -> usize {
    let Some(pid) = engine.status().devices[GPU].pid else { return 0 };
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let inodes = maps.lines().filter(|line| line.contains("memfd:magray")).filter_map(|line| line.split(' ').nth(4));
    inodes.collect::<BTreeSet<_>>().len()
}

#[test]
fn a_released_model_stayed_in_the_worker_that_another_model_kept_alive() {
    let engine = start(EngineOptions { models: models(2, ModelPlan::default()), ..options(1, "") });
    let before = [on_gpu(&engine, 0, 1), on_gpu(&engine, 1, 2)];
    wait_for("both images", || shared_memories(&engine) == 3);
    let pid = engine.status().devices[GPU].pid;
    let moved = engine.release(0, LONG).unwrap();
    assert!(moved.residency.iter().all(|(_, residency)| *residency == Residency::Unloaded), "{moved:?}");
    wait_for("the worker to let go of it", || shared_memories(&engine) == 2);
    assert_eq!(on_gpu(&engine, 1, 2).values, before[1].values, "the other one is not disturbed");
    assert_eq!(on_gpu(&engine, 0, 1).values, before[0].values);
    wait_for("a new image", || shared_memories(&engine) == 3);
    assert_eq!(engine.status().devices[GPU].pid, pid, "it is the same worker");
    engine.shut_down();
}
