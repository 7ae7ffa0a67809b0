//! Batches through a worker answer as the CPU of this process does.

use crate::rig::{Rig, WIDTH, expected, spec, texts};
use magray_engine::gpu::MemoryAccounts;
use magray_engine::internals::{ExecutorDevice, Exit, FromWorker, Offer, Origin, Tokens, Work, WorkerSpec};
use magray_engine::{DeviceName, EncoderOptions, PrecisionChoice, SingleDevice, engine};

#[test]
fn a_worker_answers_as_the_cpu_does() {
    let mut rig = Rig::open(&spec());
    assert_eq!((rig.ready.memory.allocated, rig.ready.memory.total), (0, 8 << 30));
    let arrived = rig.load(0, Offer::None).unwrap();
    assert_eq!((arrived.outputs, arrived.origin), (WIDTH, Origin::Files));
    assert!(arrived.bytes > 0 && arrived.memory.allocated == arrived.bytes);
    assert_eq!((rig.ready.name.as_str(), rig.ready.uuid.as_str()), ("Simulated GPU", "SIM-0"));
    assert_eq!(rig.ready.pid, rig.handle.pid());
    for number in 0..5 {
        let texts = texts(1 + number as usize * 3, number);
        assert_eq!(rig.compute(number.into(), &texts).unwrap(), expected(&texts), "batch {number}");
    }
    assert_eq!(rig.stop(), Exit::Stopped);
}

#[test]
fn the_cpu_runs_in_a_worker_too() {
    let device = ExecutorDevice::Cpu { threads: Some(1) };
    let mut rig = Rig::start(&WorkerSpec { device, ..spec() });
    assert_eq!(rig.ready.name, "CPU");
    let texts = texts(5, 1);
    assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
    assert_eq!(rig.stop(), Exit::Stopped);
}

#[test]
fn all_slots_are_answered_in_order_and_keep_apart() {
    let mut rig = Rig::start(&spec());
    let batches: Vec<Vec<Vec<u32>>> = (0..4).map(|slot| texts(16, slot)).collect();
    for (slot, texts) in batches.iter().enumerate() {
        rig.submit(100 + slot as u64, slot, texts);
    }
    for slot in 0..4 {
        let finished = rig.hear().unwrap();
        assert!(
            matches!(finished, FromWorker::Finished { batch, slot: said, .. } if (batch, said) == (100 + slot as u64, slot)),
            "{finished:?}"
        );
    }
    for (slot, texts) in batches.iter().enumerate() {
        assert_eq!(rig.rows(slot, 16), expected(texts));
    }
}

#[test]
fn a_model_of_a_folder_answers_pairs_and_skips_tokens() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../magray-engine/tests/fixtures/bert");
    let mut two = spec();
    two.models.push(magray_engine::internals::ExecutorModel::new(
        magray_engine::internals::ModelSource::Folder(folder.clone()),
        PrecisionChoice::Auto,
    ));
    let mut rig = Rig::open(&two);
    let width = rig.load(1, Offer::None).unwrap().outputs;
    let options = EncoderOptions { threads: Some(1), ..Default::default() };
    let mut model = SingleDevice::open(&engine::ModelSource::Folder(folder), DeviceName::Cpu, &options).unwrap();
    let ids: Vec<Vec<u32>> = vec![vec![2, 5, 6, 3], vec![2, 9, 3]];
    let compute = |rig: &mut Rig, types: &[u32], skip| {
        let texts = [Tokens { ids: &ids[0], types }, Tokens { ids: &ids[1], types: &[] }];
        rig.handle.submit(Work { batch: 1, slot: 2, model: 1, skip, texts: &texts }).unwrap();
        assert!(matches!(rig.hear().unwrap(), FromWorker::Finished { slot: 2, .. }));
        let mut rows = vec![0.0; 2 * width];
        rig.handle.read_rows(2, &mut rows);
        rows
    };
    let plain = compute(&mut rig, &[], 0);
    assert_eq!(plain, model.run(&engine::Work::from_ids(0, ids.clone())).unwrap());
    let typed = compute(&mut rig, &[0, 0, 1, 1], 0);
    assert!(plain[..width] != typed[..width] && plain[width..] == typed[width..], "types reach their own text");
    assert_ne!(compute(&mut rig, &[], 1)[..width], plain[..width]);
}

#[test]
fn heartbeats_come_with_the_memory_and_a_trim_frees_some() {
    let mut rig = Rig::open(&spec());
    let loaded = rig.load(0, Offer::None).unwrap().bytes;
    rig.compute(1, &texts(16, 3)).unwrap();
    let beat = |rig: &mut Rig| loop {
        if let FromWorker::Heartbeat { memory, .. } = rig.receiver.next().unwrap() {
            return memory;
        }
    };
    // The first ones may have been on their way before the batch.
    while beat(&mut rig).allocated <= loaded {}
    rig.handle.trim().unwrap();
    let after = loop {
        let memory = beat(&mut rig);
        if memory.allocated == loaded {
            break memory;
        }
    };
    assert!(after.peak_allocated > loaded && after.utilisation_percent() < 1.0);
}

#[test]
fn heartbeats_tell_who_has_the_memory() {
    let mut rig = Rig::open(&spec());
    let bytes = rig.load(0, Offer::None).unwrap().bytes;
    rig.compute(1, &texts(16, 3)).unwrap();
    let mut accounts = |is_meant: &dyn Fn(&MemoryAccounts) -> bool| loop {
        if let FromWorker::Heartbeat { accounts: Some(accounts), .. } = rig.receiver.next().unwrap()
            && is_meant(&accounts)
        {
            return accounts;
        }
    };
    let loaded = accounts(&|accounts| accounts.weights[0] == bytes && accounts.workspace > 0);
    assert_eq!((loaded.context, loaded.cached), (0, 0));
    rig.handle.offload(0).unwrap();
    let left = accounts(&|accounts| accounts.weights[0] == 0);
    assert_eq!((left.workspace, left.cached), (0, loaded.workspace), "others can have what its passes had");
}
