//! Plans for made-up machines: what is chosen, and the sentence that says why.
//! Leaves what tensors take to those who read files.

use super::*;
use crate::SplitMix64;

const GB: u64 = 1_000_000_000;

/// Layers of 2 GB; the table and the head are in what is asked for.
fn model(gb: u64) -> ModelNeeds {
    let layers = (gb / 2 - 1) as usize;
    ModelNeeds { layers, layer_bytes: 2 * GB, table_bytes: GB, head_bytes: GB, heads: 64 }
}

fn machine(gpus: usize, room_gb: u64, host_gb: u64) -> Machine {
    Machine { gpu_bytes: vec![room_gb * GB; gpus], host_bytes: host_gb * GB, speeds: Speeds::default() }
}

fn check(strategy: Strategy, gb: u64, machine: &Machine, expected: (usize, &[usize], usize, usize), reason: &str) {
    let plan = plan(strategy, &model(gb), machine).unwrap();
    assert_eq!((plan.ranks, &*plan.stages, plan.cpu_layers, plan.groups), expected, "{plan:?}");
    assert_eq!(plan.reason, reason);
}

#[test]
fn what_fits_one_gpu_is_on_each() {
    check(
        Strategy::Auto,
        16,
        &machine(4, 120, 0),
        (1, &[7], 0, 4),
        "16.0 GB fit one GPU, which has room for 120.0 GB: each computes whole texts, which is the most work in a second",
    );
}

#[test]
fn what_fits_two_is_shared_where_that_is_faster_and_in_stages_where_sums_are_slow() {
    check(
        Strategy::Auto,
        160,
        &machine(4, 120, 0),
        (2, &[79], 0, 2),
        "160.0 GB do not fit one GPU, which has room for 120.0 GB, and fit 2; sharing each layer among 2 is predicted to take 49.5 ms a \
         token, layers in 2 stages 80.1 ms",
    );
    let slow = Speeds { exchange_us: 400.0, ..Speeds::default() };
    check(
        Strategy::Auto,
        160,
        &Machine { speeds: slow, ..machine(2, 120, 0) },
        (1, &[39, 40], 0, 1),
        "160.0 GB do not fit one GPU, which has room for 120.0 GB, and fit 2; layers in 2 stages is predicted to take 80.1 ms a token, \
         sharing each layer among 2 103.2 ms",
    );
}

#[test]
fn a_model_of_160_gb_on_one_gpu_is_divided_with_the_cpu_or_refused_with_the_reason() {
    check(
        Strategy::Auto,
        160,
        &machine(1, 120, 64),
        (1, &[59], 20, 1),
        "the model needs 160.0 GB, and one GPU has room for 120.0 GB: the CPU computes the first 20 of 79 layers",
    );
    let refused = plan(Strategy::Auto, &model(160), &machine(1, 120, 32)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the model needs 160.0 GB, and one GPU has room for 120.0 GB; 41.0 GB of it would be left to the CPU, whose memory has room for \
         32.0 GB"
    );
    let refused = plan(Strategy::Tensor, &model(160), &machine(2, 60, 500)).unwrap_err();
    assert_eq!(refused.to_string(), "the model needs 160.0 GB, and 2 GPUs have room for 120.0 GB");
}

#[test]
fn a_model_of_100_gb_is_in_stages_of_gpus_and_the_cpu() {
    let plan = plan(Strategy::Auto, &model(100), &machine(2, 40, 64)).unwrap();
    assert_eq!((plan.ranks, &*plan.stages, plan.cpu_layers), (1, &[20, 19][..], 10), "{plan:?}");
}

#[test]
fn what_was_asked_for_is_done_or_refused() {
    check(
        Strategy::Tensor,
        16,
        &machine(2, 120, 0),
        (2, &[7], 0, 1),
        "gpu.multi_gpu.strategy is tensor, and 16.0 GB fit 2 GPUs",
    );
    check(
        Strategy::Pipeline,
        16,
        &machine(3, 120, 0),
        (1, &[2, 3, 2], 0, 1),
        "gpu.multi_gpu.strategy is pipeline, and 16.0 GB fit 3 GPUs",
    );
    let few = ModelNeeds { heads: 2, ..model(16) };
    assert!(
        plan(Strategy::Tensor, &few, &machine(4, 120, 64)).unwrap_err().0.contains("cannot share layers of 2 heads")
    );
    let refused = plan(Strategy::Data, &model(100), &machine(4, 40, 0)).unwrap_err().0;
    assert!(refused.starts_with("the model needs 100.0 GB, and one GPU has room for 40.0 GB; "), "{refused}");
}

#[test]
fn gpus_of_unequal_room_have_layers_in_proportion() {
    let machine = Machine { gpu_bytes: vec![80 * GB, 20 * GB], ..machine(2, 0, 0) };
    let plan = plan(Strategy::Pipeline, &model(80), &machine).unwrap();
    assert_eq!(plan.stages, [32, 7]);
}

/// Whatever there is: a plan fits, has every layer once, and something is planned where an even division would fit.
#[test]
fn plans_fit_and_are_complete() {
    for seed in 0..5_000 {
        let mut random = SplitMix64::new(seed);
        let mut below = |most: u64| random.bits() % most + 1;
        let needs = ModelNeeds {
            layers: below(60) as usize,
            layer_bytes: below(1_000),
            table_bytes: below(2_000),
            head_bytes: below(2_000),
            heads: below(16) as usize,
        };
        let gpus = below(8);
        let equal = below(2) == 1;
        let first = below(20_000);
        let gpu_bytes: Vec<u64> = (0..gpus).map(|_| if equal { first } else { below(20_000) }).collect();
        let machine = Machine { gpu_bytes, host_bytes: below(30_000), speeds: Speeds::default() };
        for strategy in [Strategy::Auto, Strategy::Data, Strategy::Tensor, Strategy::Pipeline] {
            let Ok(plan) = plan(strategy, &needs, &machine) else {
                let fits_evenly = equal && needs.whole() <= first;
                assert!(!(strategy == Strategy::Auto && fits_evenly), "seed {seed}: it fits one");
                continue;
            };
            let what = format!("seed {seed}, {strategy:?}: {plan:?}");
            assert_eq!(plan.stages.iter().sum::<usize>() + plan.cpu_layers, needs.layers, "{what}");
            assert!(plan.groups >= 1 && plan.gpus() * plan.groups <= machine.gpu_bytes.len(), "{what}");
            assert!(plan.ranks <= needs.heads && !plan.stages.contains(&0) && !plan.reason.is_empty(), "{what}");
            for group in machine.gpu_bytes.chunks_exact(plan.gpus()).take(plan.groups) {
                for (at, layers) in plan.stages.iter().enumerate() {
                    let table = if at == 0 && plan.cpu_layers == 0 { needs.table_bytes } else { 0 };
                    let head = if at + 1 == plan.stages.len() { needs.head_bytes } else { 0 };
                    let bytes = *layers as u64 * needs.layer_bytes + table + head;
                    for room in &group[at * plan.ranks..(at + 1) * plan.ranks] {
                        assert!(bytes.div_ceil(plan.ranks as u64) <= *room, "{what}");
                    }
                }
            }
            let on_cpu = needs.table_bytes + plan.cpu_layers as u64 * needs.layer_bytes;
            assert!(plan.cpu_layers == 0 || on_cpu <= machine.host_bytes, "{what}");
        }
    }
}
