//! Which layers of language models are where, on hosts and GPUs of many sizes.

use super::*;
use crate::executors::ModelSource;
use crate::spec::decoder::DecoderSource;
use crate::testing::tiny_decoder;
use std::path::Path;

fn spec(folder: &Path) -> ModelSpec {
    tiny_decoder::write(folder, 4).unwrap();
    ModelSource::Decoder(DecoderSource::Path(folder.to_owned())).spec().unwrap()
}

fn dividing(asked: GpuLayers, weights: u64, is_simulated: bool) -> Dividing {
    let room = Room { names: vec![DeviceName::Simulated(0)], weights, kv: 1 << 16, is_simulated };
    let gpus = vec![Room { weights: 1 << 40, names: vec![DeviceName::Simulated(1)], ..room.clone() }, room];
    Dividing {
        asked,
        kv: KvFormat::Halves,
        threads: NonZeroUsize::MIN,
        path: None,
        host: Mutex::new(HostMemory::with(0)),
        cpu_stands_in: true,
        gpus,
        grouping: None,
        alone: None,
    }
}

fn model(assigned: Option<DeviceName>) -> EngineModel {
    let source = ModelSource::Decoder(DecoderSource::Path("a".into()));
    EngineModel { assigned, ..source.into() }
}

#[test]
fn as_many_layers_as_fit_are_on_the_gpu_and_the_reason_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    let generate = spec.generates().unwrap();
    for is_simulated in [true, false] {
        let bytes = sizes(&DecoderFiles::of(&generate.source).unwrap(), is_simulated).unwrap();
        let whole = if is_simulated { generate.weight_bytes } else { bytes.whole() };
        let of = |asked, room| dividing(asked, room, is_simulated).of(&model(None), &spec).unwrap();
        let all = of(GpuLayers::Auto, whole);
        assert!(all.split.is_none() && all.told.is_none(), "{all:?}");
        assert_eq!(all.in_workers.map(|part| part.bytes), Some(whole));
        for room in [whole - 1, bytes.last(1)] {
            let half = of(GpuLayers::Auto, room);
            let (split, part) = (half.split.unwrap(), half.in_workers.unwrap());
            assert_eq!((split.cpu_layers.get(), part.bytes), (1, bytes.last(1)));
            assert_eq!(part.kv_token_bytes, tiny_decoder::KV_TOKEN_BYTES / 2);
            let told = half.told.unwrap().to_string();
            assert!(told.starts_with("1 of 2 layers are on a GPU, the CPU computes the others: all of it"), "{told}");
        }
        let none = of(GpuLayers::Auto, bytes.last(1) - 1);
        assert!(none.split.is_none() && none.in_workers.is_none());
        let told = none.told.unwrap().to_string();
        assert!(told.starts_with("no layer of 2 is on a GPU: the last layer and the head need"), "{told}");
        let asked = of(GpuLayers::Number(1), whole);
        assert_eq!(asked.told.unwrap().reason, "chat.gpu_layers is 1");
        let too_many = of(GpuLayers::Number(1), 5).told.unwrap().reason;
        assert!(too_many.starts_with("chat.gpu_layers is 1, and these need 1 MB of the GPU's memory"), "{too_many}");
        let all = of(GpuLayers::Number(9), whole);
        assert!(all.split.is_none() && all.told.is_none());
        assert!(of(GpuLayers::Number(9), 5).told.is_some_and(|told| told.on_gpu == 2));
    }
}

const GB: u64 = 1_000_000_000;

/// A model of 80 layers of so many bytes, as its description says: no weights are read.
fn described(layer: u64, table: u64) -> (GenerateSpec, DecoderBytes) {
    let source = ModelSource::Decoder(DecoderSource::Synthetic("llama-8b".parse().unwrap()));
    let mut spec = source.spec().unwrap().generates().unwrap().clone();
    let bytes = DecoderBytes::even(80, layer, table, table);
    spec.decoder.layers = vec![spec.decoder.layers[0]; 80];
    spec.weight_bytes = bytes.whole();
    (spec, bytes)
}

/// Where the CPU keeps weights as GPUs do.
fn alike(bytes: &DecoderBytes) -> Sizes {
    Sizes { gpu: bytes.clone(), cpu: bytes.clone() }
}

/// GPUs of so many GB as an engine has them, where the host has this memory.
fn on_gpus(gpus: &[u64], host_gb: u64, asked: GpuLayers) -> Dividing {
    let room = |(at, gb): (usize, &u64)| {
        let (memory_max, kv_max) = (gb * GB, gb * GB / 8);
        let ledger = Ledger::new(magray_core::ledger::Budget { memory_max, context: GB / 2, kv_max });
        let names = vec![DeviceName::Cuda(at)];
        Room { names, weights: ledger.room(), kv: ledger.kv_share(), is_simulated: false }
    };
    let gpus = gpus.iter().enumerate().map(room).collect();
    Dividing {
        asked,
        kv: KvFormat::Halves,
        threads: NonZeroUsize::MIN,
        path: None,
        host: Mutex::new(HostMemory::with(host_gb * GB)),
        cpu_stands_in: true,
        gpus,
        grouping: None,
        alone: None,
    }
}

/// A model that has its memory from now on.
fn granted(dividing: &Dividing, mut division: Division) -> Division {
    dividing.take(&division);
    dividing.stand_in(&mut division);
    division
}

#[test]
fn a_model_of_160_gb_is_divided_with_the_cpu_or_refused_and_says_what_is_missing() {
    let (spec, bytes) = described(1_950_000_000, 2 * GB);
    assert_eq!(bytes.whole(), 160 * GB);
    let on = |gb: u64, host_gb: u64, asked| {
        let dividing = on_gpus(&[gb], host_gb, asked);
        dividing.placed(&spec, &alike(&bytes), (&dividing.gpus[0], 1))
    };
    let large = on(141, 96, GpuLayers::Auto).unwrap();
    assert_eq!(
        large.told.unwrap().to_string(),
        "57 of 80 layers are on a GPU, the CPU computes the others: all of it needs 160.0 GB of the GPU's memory, which has room for \
         114.1 GB"
    );
    assert_eq!(large.split.unwrap().cpu_layers.get(), 23);
    assert_eq!(large.in_workers.unwrap().bytes, bytes.last(57));
    let small = on(80, 128, GpuLayers::Auto).unwrap();
    assert_eq!((small.split.unwrap().cpu_layers.get(), small.in_workers.unwrap().bytes), (48, bytes.last(32)));
    let refused = |gb, host_gb, asked| on(gb, host_gb, asked).unwrap_err().to_string();
    assert_eq!(
        refused(80, 64, GpuLayers::Auto),
        format!(
            "32 of 80 layers are on a GPU, the CPU computes the others: all of it needs 160.0 GB of the GPU's memory, which has room \
             for 64.5 GB; that leaves 95.6 GB to the CPU, and its memory has 64.0 GB available: 31.6 GB are missing; {MAKE_IT_FIT}"
        )
    );
    let asked = refused(80, 64, GpuLayers::Number(10));
    assert!(asked.starts_with("10 of 80 layers are on a GPU"), "{asked}");
    assert!(asked.contains("chat.gpu_layers is 10; that leaves 138.5 GB to the CPU"), "{asked}");
    let none = refused(4, 64, GpuLayers::Auto);
    assert!(none.starts_with("no layer of 80 is on a GPU: the last layer and the head need 4.0 GB"), "{none}");
    assert!(none.contains("that leaves 160.0 GB to the CPU"), "{none}");
}

#[test]
fn the_cpu_stands_in_where_all_of_a_model_has_room_beside_its_layers_in_a_worker() {
    let (spec, bytes) = described(720_000_000, 1_200_000_000);
    assert_eq!(bytes.whole(), 60 * GB);
    let is_off = |host_gb| {
        let dividing = on_gpus(&[24], host_gb, GpuLayers::Auto);
        let placed = dividing.placed(&spec, &alike(&bytes), (&dividing.gpus[0], 1)).unwrap();
        let placed = granted(&dividing, placed);
        assert_eq!((placed.split.unwrap().cpu_layers.get(), placed.host_bytes), (56, bytes.first(56)));
        placed.is_off_cpu
    };
    // 60 GB and 41.5 of them again, of three quarters.
    assert_eq!([96, 130, 140].map(is_off), [true, true, false]);
}

#[test]
fn each_worker_has_layers_of_the_cpu_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    let files = DecoderFiles::of(&spec.generates().unwrap().source).unwrap();
    let first = HostMemory::with(0).sizes(&files).unwrap().first(1);
    let of = |available, assigned| {
        let host = Mutex::new(HostMemory::with(available));
        let dividing = Dividing { host, ..dividing(GpuLayers::Number(1), 1 << 30, true) };
        dividing.of(&model(assigned), &spec).map(|division| granted(&dividing, division))
    };
    let refused = of(2 * first - 1, None).unwrap_err().to_string();
    assert!(refused.contains(" in each of 2 workers to the CPU, and its memory has "), "{refused}");
    let both = of(2 * first, None).unwrap();
    assert!(both.split.is_some() && both.host_bytes == 2 * first && both.is_off_cpu, "{both:?}");
    let one = of(2 * first - 1, Some(DeviceName::Simulated(0))).unwrap();
    assert!(one.split.is_some() && one.host_bytes == first, "{one:?}");
    assert!(!of(1 << 40, None).unwrap().is_off_cpu);
}

#[test]
fn models_share_the_hosts_memory_and_none_stands_in_before_all_have_their_layers() {
    let (spec, bytes) = described(720_000_000, 1_200_000_000);
    let dividing = on_gpus(&[24], 130, GpuLayers::Auto);
    let place = || dividing.placed(&spec, &alike(&bytes), (&dividing.gpus[0], 1));
    // 60 GB beside 41.5 of them have room in 130 GB; not where another model has as many layers in a worker.
    let mut models = [place().unwrap(), place().unwrap()];
    models.iter().for_each(|division| dividing.take(division));
    models.iter_mut().for_each(|division| dividing.stand_in(division));
    assert_eq!(
        models.each_ref().map(|division| (division.is_off_cpu, division.in_host())),
        [(true, bytes.first(56)); 2]
    );
    dividing.take(&place().unwrap());
    let refused = place().unwrap_err().to_string();
    assert!(
        refused.contains("130.0 GB available, of which other models have 124.6 GB: 36.1 GB are missing"),
        "{refused}"
    );
    // A model that goes gives back what it had, and another may come.
    dividing.give_back(models[0].in_host());
    assert!(place().is_ok());
}

#[test]
fn what_only_gpus_may_compute_takes_no_memory_of_the_host_for_the_cpu() {
    let (spec, bytes) = described(720_000_000, 1_200_000_000);
    for (cpu_stands_in, expected) in [(true, bytes.whole()), (false, 0)] {
        let dividing = Dividing { cpu_stands_in, ..on_gpus(&[80], 100, GpuLayers::Auto) };
        let placed = dividing.placed(&spec, &alike(&bytes), (&dividing.gpus[0], 1)).unwrap();
        let placed = granted(&dividing, placed);
        assert_eq!((placed.is_off_cpu, placed.in_host(), dividing.host().granted()), (false, expected, expected));
    }
}

#[test]
fn each_group_has_layers_of_the_cpu_of_its_own() {
    let (spec, bytes) = described(1_950_000_000, 2 * GB);
    let on = |groups, host_gb| {
        let mut dividing = on_gpus(&[128], host_gb, GpuLayers::Auto);
        dividing.gpus[0].names.push(DeviceName::Cuda(1));
        dividing.gpus[0].weights = 128 * GB;
        dividing.grouping = Some(Grouping::of(1, 2, (needs(&spec, &bytes), "")));
        dividing.placed(&spec, &alike(&bytes), (&dividing.gpus[0], groups))
    };
    // 17 layers and the table, 35 GB, of three quarters.
    assert_eq!(on(2, 96).unwrap().host_bytes, 2 * bytes.first(17));
    assert_eq!(on(1, 90).unwrap().host_bytes, bytes.first(17));
    assert!(on(2, 90).unwrap_err().to_string().contains("have no place on 2 GPUs"));
}

#[test]
fn a_model_that_only_the_cpu_may_compute_is_refused_where_the_host_has_no_memory_for_it() {
    let source = ModelSource::Decoder(DecoderSource::Synthetic("llama-8b".parse().unwrap()));
    let spec = source.spec().unwrap();
    let model = |assigned| EngineModel { assigned, name: "large".to_owned(), ..source.clone().into() };
    let cpu = Some(DeviceName::Cpu);
    for (gpus, asked, assigned) in
        [(&[][..], GpuLayers::Auto, None), (&[80], GpuLayers::Auto, cpu), (&[80], GpuLayers::Number(0), cpu)]
    {
        let told = on_gpus(gpus, 8, asked).of(&model(assigned), &spec).unwrap_err().to_string();
        assert!(told.starts_with("there is no place for large: no layer of 32 is on a GPU: "), "{told}");
        assert!(told.contains("that leaves 16.1 GB to the CPU, and its memory has 8.0 GB available: 8.1 GB"), "{told}");
        assert!(on_gpus(gpus, 24, asked).of(&model(assigned), &spec).is_ok());
    }
}

#[test]
fn a_model_on_a_group_says_whose_group_it_is_and_is_found_by_the_name_of_any_of_its_gpus() {
    let (spec, bytes) = described(1_950_000_000, 2 * GB);
    let large = needs(&spec, &bytes);
    let on = |ranks, stages, each: u64, host_gb| {
        let mut dividing = on_gpus(&[each * 2], host_gb, GpuLayers::Auto);
        dividing.gpus[0].names.push(DeviceName::Cuda(1));
        dividing.gpus[0].weights = 2 * each * GB;
        dividing.grouping = Some(Grouping::of(ranks, stages, (large, "160.0 GB do not fit one GPU")));
        dividing
    };
    let of = |dividing: &Dividing, spec: &GenerateSpec, bytes: &DecoderBytes| {
        dividing.placed(spec, &alike(bytes), (&dividing.gpus[0], 1))
    };
    let shared = of(&on(2, 1, 115, 0), &spec, &bytes).unwrap();
    assert_eq!(shared.told.unwrap().to_string(), "2 GPUs share each layer: 160.0 GB do not fit one GPU");
    assert_eq!((shared.in_workers.unwrap().bytes, shared.split), (160 * GB, None));
    let staged = of(&on(1, 2, 64, 96), &spec, &bytes).unwrap();
    assert_eq!(
        staged.told.unwrap().to_string(),
        "2 GPUs have layers one after the other, and the CPU the first 17: 160.0 GB do not fit one GPU"
    );
    assert_eq!(staged.split.unwrap().cpu_layers.get(), 17);
    // 32 layers on the first, 31 and the head, which is the table, on the second: the ledger has room for both.
    assert_eq!(staged.in_workers.unwrap().bytes, 2 * (31 * 1_950_000_000 + 2 * GB));
    let refused = of(&on(1, 2, 3, 96), &spec, &bytes).unwrap_err().to_string();
    assert!(
        refused.contains("its 80 layers of 32 heads have no place on 2 GPUs with room for 3.0 GB each"),
        "{refused}"
    );
    assert!(refused.contains("64.0 GB are missing"), "{refused}");
    let (other, few) = described(100_000_000, GB);
    let told = of(&on(2, 1, 115, 0), &other, &few).unwrap().told.unwrap().reason;
    assert_eq!(told, "the GPUs are a group for another model: 160.0 GB do not fit one GPU");
    // Whichever of its GPUs a model is assigned to.
    let source = ModelSource::Decoder(DecoderSource::Synthetic("llama-1b-q4".parse().unwrap()));
    for assigned in [None, Some(DeviceName::Cuda(0)), Some(DeviceName::Cuda(1))] {
        let model = EngineModel { assigned, ..source.clone().into() };
        assert!(on(2, 1, 115, 0).of(&model, &source.spec().unwrap()).unwrap().group.is_some(), "{assigned:?}");
    }
}

#[test]
fn the_gpu_that_a_model_is_assigned_to_decides_and_else_the_smallest() {
    let folder = tempfile::tempdir().unwrap();
    let (spec, dividing) = (spec(folder.path()), dividing(GpuLayers::Auto, 1 << 14, true));
    let is_split = |assigned| dividing.of(&model(assigned), &spec).unwrap().told.is_some();
    assert!(is_split(None) && is_split(Some(DeviceName::Simulated(0))));
    assert!(!is_split(Some(DeviceName::Simulated(1))) && !is_split(Some(DeviceName::Cpu)));
}

#[test]
fn no_layer_on_a_gpu_is_the_cpu_and_contradicts_a_gpu_that_is_named() {
    let decoder = ModelSource::Decoder(DecoderSource::Path("a".into()));
    let model = |source: &ModelSource, assigned| EngineModel { assigned, ..source.clone().into() };
    let none = GpuLayers::Number(0);
    let cpu = Some(DeviceName::Cpu);
    assert_eq!(assigned(&model(&decoder, None), none).unwrap(), cpu);
    assert_eq!(assigned(&model(&decoder, cpu), none).unwrap(), cpu);
    assert_eq!(assigned(&model(&decoder, None), GpuLayers::Auto).unwrap(), None);
    let gpu = Some(DeviceName::Cuda(1));
    assert!(assigned(&model(&decoder, gpu), none).unwrap_err().to_string().contains("cuda:1"));
    let encoder = ModelSource::Synthetic("tiny".parse().unwrap());
    assert_eq!(assigned(&model(&encoder, gpu), none).unwrap(), gpu);
}

#[test]
fn tokens_that_the_host_has_no_room_for_are_not_promised() {
    assert_eq!(counted(100, 1_000, 50), 100);
    assert_eq!(counted(100, 10_000, 50), 200);
    assert_eq!(counted(100, 10_000, 0), 10_000);
}
