//! Plans for made-up machines: what is chosen, and the sentence that says why.
//! Leaves what tensors take to those who read files.

use super::*;
use crate::SplitMix64;

const GB: u64 = 1_000_000_000;

/// Layers of 2 GB; the table and the head are in what is asked for.
fn model(gb: u64) -> ModelNeeds {
    let layers = (gb / 2 - 1) as usize;
    ModelNeeds {
        layers,
        layer_bytes: 2 * GB,
        table_bytes: GB,
        head_bytes: GB,
        tied_bytes: 0,
        heads: 64,
        kv_heads: 8,
        inner: 28_672,
    }
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
         32.0 GB: 9.0 GB are missing; take files with fewer bits a weight, or more GPUs (gpu.multi_gpu), or more memory"
    );
    let refused = plan(Strategy::Tensor, &model(160), &machine(2, 60, 500)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("the model needs 160.0 GB, and 2 GPUs have room for 120.0 GB: 40.0 GB are missing; {MAKE_IT_FIT}")
    );
}

/// What GPUs of 80 and of 141 GB have for weights, beside their context, keys and values, and workspace.
#[test]
fn a_model_of_160_gb_on_gpus_of_80_and_141_gb_says_what_becomes_of_it() {
    let on = |strategy, gpus, room_gb, host_gb| plan(strategy, &model(160), &machine(gpus, room_gb, host_gb));
    let two = on(Strategy::Auto, 2, 115, 0).unwrap();
    assert_eq!((two.ranks, two.groups), (2, 1), "{}", two.reason);
    let eight = on(Strategy::Auto, 8, 64, 0).unwrap();
    // One of three has 3 of 8 heads, which is 60 GB of 160.
    assert_eq!((eight.ranks, eight.gpus(), eight.groups), (3, 3, 2), "{}", eight.reason);
    let tighter = on(Strategy::Auto, 8, 58, 0).unwrap();
    assert_eq!((tighter.ranks, tighter.gpus(), tighter.groups), (1, 3, 2), "{}", tighter.reason);
    let beside = on(Strategy::Auto, 2, 64, 200).unwrap();
    assert_eq!((&*beside.stages, beside.cpu_layers), (&[32, 31][..], 16), "{}", beside.reason);
    assert_eq!(
        beside.reason,
        "the model needs 160.0 GB, and 2 GPUs have room for 128.0 GB: the CPU computes the first 16 of 79 layers"
    );
    let little = on(Strategy::Pipeline, 2, 3, 500).unwrap();
    assert_eq!((&*little.stages, little.cpu_layers), (&[1, 1][..], 77), "{}", little.reason);
    let none = on(Strategy::Pipeline, 2, 2, 500).unwrap_err().0;
    assert_eq!(
        none,
        format!(
            "the model needs 160.0 GB, and 2 GPUs have room for 4.0 GB, which is too little for one layer and the head: 156.0 GB are \
             missing; {MAKE_IT_FIT}"
        )
    );
    // As much as the model needs in all, and too little at one place.
    let few = ModelNeeds { layers: 2, layer_bytes: 60 * GB, table_bytes: 20 * GB, head_bytes: 20 * GB, ..model(160) };
    let cut = plan(Strategy::Pipeline, &few, &machine(3, 60, 0)).unwrap_err().0;
    assert!(cut.starts_with("2 layers cannot be on 3 GPUs"), "{cut}");
    let uneven = Machine { gpu_bytes: vec![150 * GB, 30 * GB], ..machine(2, 0, 0) };
    let parts = plan(Strategy::Tensor, &few, &uneven).unwrap_err().0;
    assert_eq!(
        parts,
        format!(
            "the model needs 160.0 GB, and 2 GPUs have room for 180.0 GB, but not each for its part; {MAKE_IT_FIT}"
        )
    );
}

#[test]
fn a_model_of_100_gb_is_in_stages_of_gpus_and_the_cpu() {
    let plan = plan(Strategy::Auto, &model(100), &machine(2, 40, 64)).unwrap();
    assert_eq!((plan.ranks, &*plan.stages, plan.cpu_layers), (1, &[20, 19][..], 10), "{plan:?}");
}

#[test]
fn heads_that_do_not_divide_evenly_count_as_those_of_the_fullest_gpu() {
    let eight = ModelNeeds { heads: 8, kv_heads: 8, ..model(16) };
    assert_eq!([1, 2, 3, 5, 8].map(|ranks| eight.fullest(ranks)), [(8, 8), (4, 8), (3, 8), (2, 8), (1, 8)]);
    // Two heads of keys and values on three: one of them has a GPU of its own with all its four queries.
    let shared = ModelNeeds { kv_heads: 2, ..eight };
    assert_eq!([3, 4, 5, 8].map(|ranks| shared.fullest(ranks)), [(4, 8), (2, 8), (2, 8), (1, 8)]);
    assert_eq!((eight.shared_part(16, 3), eight.shared_room(6, 3)), (6, 16));
    let uneven = plan(Strategy::Tensor, &eight, &machine(3, 120, 0)).unwrap();
    assert_eq!(
        uneven.reason,
        "gpu.multi_gpu.strategy is tensor, and 16.0 GB fit 3 GPUs, of which the fullest has 3 of 8 heads"
    );
}

#[test]
fn inner_numbers_that_do_not_divide_evenly_count_as_those_of_the_fullest_gpu() {
    let units = [(11_008, 2), (11_008, 4), (4_864, 3), (4_864, 20), (96, 2), (96, 4), (0, 2)];
    assert_eq!(units.map(|(inner, ranks)| inner_unit(inner, ranks)), [256, 256, 256, 128, 32, 1, 1]);
    let llama = ModelNeeds { heads: 32, kv_heads: 32, inner: 11_008, ..model(16) };
    assert_eq!([1, 2, 4].map(|ranks| llama.fullest(ranks)), [(32, 32), (22, 43), (11, 43)]);
    let few = ModelNeeds { heads: 9, kv_heads: 3, inner: 4_864, ..model(16) };
    assert_eq!([2, 3].map(|ranks| few.fullest(ranks)), [(2, 3), (7, 19)]);
    assert_eq!((few.shared_part(19, 3), few.shared_room(7, 3)), (7, 19));
    let uneven = plan(Strategy::Tensor, &few, &machine(3, 120, 0)).unwrap();
    assert_eq!(
        uneven.reason,
        "gpu.multi_gpu.strategy is tensor, and 16.0 GB fit 3 GPUs, of which the fullest has 7 of 19 parts of a feed-forward layer"
    );
    let even = ModelNeeds { inner: 14_336, ..few };
    assert!(plan(Strategy::Tensor, &even, &machine(3, 6, 0)).is_ok(), "19 of 56 parts, of 16 GB");
    assert!(plan(Strategy::Tensor, &few, &machine(3, 5, 0)).is_err());
}

#[test]
fn a_table_that_is_the_head_too_counts_on_the_first_stage_and_on_the_last() {
    let tied = ModelNeeds { layers: 4, table_bytes: 0, tied_bytes: GB, ..model(16) };
    assert_eq!(tied.whole(), 9 * GB);
    assert_eq!(plan(Strategy::Pipeline, &tied, &machine(2, 5, 0)).unwrap().stages, [2, 2]);
    assert_eq!([tied.ends(0, 1, 0), tied.ends(0, 2, 0), tied.ends(1, 2, 0)], [GB; 3]);
    assert_eq!([tied.ends(0, 3, 1), tied.ends(1, 3, 1), tied.ends(2, 3, 1)], [0, 0, GB]);
    // Two layers and the table have no place in 4 GB: the CPU has a layer, and the table in their stead.
    let rooms = [4 * GB, 5 * GB];
    assert_eq!(tied.placed(&rooms, 3 * GB), Some((1, vec![1, 2])));
    assert_eq!(tied.placed(&rooms, 3 * GB - 1), None);
}

#[test]
fn sizes_are_read_by_people() {
    let sizes = [0, 1, 999_999_999, 1_000_000_000, 141_107_412_992].map(size);
    assert_eq!(sizes, ["0 GB", "1 MB", "1000 MB", "1.0 GB", "141.1 GB"]);
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
    let few = ModelNeeds { heads: 2, kv_heads: 2, ..model(16) };
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
            tied_bytes: 0,
            heads: 0,
            kv_heads: below(8) as usize,
            inner: below(20_000) as usize,
        };
        let needs = ModelNeeds { heads: needs.kv_heads * below(4) as usize, ..needs };
        let is_tied = below(2) == 1;
        let needs = if is_tied { ModelNeeds { table_bytes: 0, tied_bytes: needs.head_bytes, ..needs } } else { needs };
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
                    let (is_first, is_last) = (at == 0 && plan.cpu_layers == 0, at + 1 == plan.stages.len());
                    let table = if is_first { needs.table_bytes } else { 0 };
                    let head = if is_last || (is_first && is_tied) { needs.head_bytes } else { 0 };
                    let bytes = *layers as u64 * needs.layer_bytes + table + head;
                    for room in &group[at * plan.ranks..(at + 1) * plan.ranks] {
                        assert!(needs.shared_part(bytes, plan.ranks) <= *room, "{what}");
                    }
                }
            }
            let on_cpu = needs.table_bytes + needs.tied_bytes + plan.cpu_layers as u64 * needs.layer_bytes;
            assert!(plan.cpu_layers == 0 || on_cpu <= machine.host_bytes, "{what}");
        }
    }
}
