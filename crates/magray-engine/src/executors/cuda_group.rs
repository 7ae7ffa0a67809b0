//! Several GPUs of one worker as one device: language models are computed by all of them together, other models by the first.
//! Fails as one: whatever breaks one GPU ends the worker, which is replaced with all of them.

use super::cuda::{CudaHost, SPLIT_REHEARSED, not_placed, rehearsed};
use super::cuda_weights::{Grouped, GroupedError, place_group};
use super::decoder_model::{DecoderModel, SequenceRoom, not_loaded};
use super::group::{GroupWeights, VectorsOnFirst, of_rank, together};
use super::held_weights::HeldWeights;
use super::native::{Hosted, Loading, NativeDevice, NativeModel};
use super::{CudaDevice, Failure, FilledImage, GroupLayout, HeldVectors, Label, LayerSplit, RankSums};
use crate::decoder::{Decoder, DecoderFiles, LoadDecoderError};
use crate::gpu::{GpuError, MemoryStats};
use crate::spec::GenerateSpec;
use magray_core::Precision;
use magray_device::cpu::Cpu;
use magray_device::cuda::{Cuda, CudaDecoderOps, DeviceError, Site, WeightsBlock};
use magray_device::{KvFormat, RankError, Split, SplitError, StageError};
use std::convert::Infallible;
use std::sync::Arc;

pub(crate) struct CudaGroup {
    first: CudaHost,
    others: Vec<CudaHost>,
}

/// The CPU with the first layers, and a group with the others.
type Parted = Split<Arc<Cpu>, Arc<Grouped>>;
type PartedError = SplitError<Infallible, GroupedError>;

impl CudaGroup {
    /// Opens all of them; of the memory of each no more is taken than the limit allows.
    pub(crate) fn open(devices: &[CudaDevice], memory_limit_bytes: Option<u64>) -> Result<Self, Failure> {
        let hosts = devices.iter().map(|device| CudaHost::open(device, memory_limit_bytes));
        let mut hosts = hosts.collect::<Result<Vec<_>, _>>()?.into_iter();
        let first = hosts.next().ok_or_else(|| Failure::unsupported("a group without GPUs"))?;
        Ok(Self { first, others: hosts.collect() })
    }

    fn all(&self) -> impl Iterator<Item = &CudaHost> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Parts of pages are equal: each GPU counts as the one that has least.
    fn kv_bytes(&self) -> u64 {
        let least = self.all().map(CudaHost::kv_bytes).min().unwrap_or(0);
        least.saturating_mul(self.all().count() as u64)
    }

    fn gpus(&self) -> Vec<Arc<Cuda>> {
        self.all().map(|host| Arc::clone(host.cuda())).collect()
    }

    /// A language model on all GPUs, with its first layers on the CPU where there is a `split`.
    fn load_decoder(
        &self,
        spec: &GenerateSpec,
        layout: &GroupLayout,
        split: Option<LayerSplit>,
        image: Option<FilledImage>,
    ) -> Result<(Box<dyn NativeModel>, Option<RankSums>), Failure> {
        let files = DecoderFiles::of(&spec.source).map_err(Failure::of_model)?;
        let (unread, context) = (files.unread(), spec.decoder.context);
        let read = |is_read: bool| if is_read { &files } else { &unread };
        let (kv_bytes, not_placed) = (self.kv_bytes(), not_placed(image.as_ref()));
        let room = SequenceRoom { kv_bytes, kv: KvFormat::Halves, token_bytes: layout.kv_token_bytes };
        let gpus = self.gpus();
        let stages = Arc::new(layout.over(gpus.clone())?);
        let places: Vec<&Cuda> = gpus.iter().map(|cuda| &**cuda).collect();
        let rank = |at: usize, error| {
            let ranks = layout.ranks.get();
            StageError { stage: at / ranks, error: RankError { rank: at % ranks, error } }
        };
        let Some(split) = split else {
            let pack = |sites: &[Site<'_>], is_read: bool| {
                let sites = layout.over(sites.iter().collect()).map_err(Placing::Layout)?;
                Decoder::<Grouped>::pack(&sites, read(is_read), context).map_err(Placing::Decoder)
            };
            let on_gpu = |at, error| Placing::Decoder(LoadDecoderError::Device(rank(at, error)));
            let placed = place_group(&places, image, pack, on_gpu);
            let (decoder, blocks) =
                placed.map_err(|error| error.into_failure(|error| of_group_by(error, not_placed)))?;
            let ops = layout.ops(&stages, self.decoder_ops(&blocks)?);
            let sums = RankSums::of(&ops);
            let model = DecoderModel::new(&stages, (decoder, ops), spec, room, of_group);
            return Ok((rehearsed(model, held(blocks), SPLIT_REHEARSED)?, sums));
        };
        let (cpu, cpu_layers) = (self.first.beside(split)?, split.cpu_layers.get());
        // While all is measured a site that is nowhere stands for the CPU, so that it takes its layers over once.
        let nowhere = Site::measuring(self.first.cuda());
        let pack = |sites: &[Site<'_>], is_read: bool| {
            let sites = layout.over(sites.iter().collect()).map_err(Placing::Layout)?;
            if !is_read {
                let both = Split::new(&nowhere, &sites, cpu_layers);
                let measured = Decoder::<Split<&Site<'_>, _>>::load(&both, &unread, context);
                let measured = measured.map_err(|error| {
                    Placing::Decoder(error.map_device(|error| match error {
                        SplitError::First(error) => SplitError::Last(rank(0, error)),
                        SplitError::Last(error) => SplitError::Last(error),
                    }))
                });
                return measured.map(|_| None);
            }
            let decoder = Decoder::<Parted>::pack(&Split::new(&**cpu, &sites, cpu_layers), &files, context);
            decoder.map(Some).map_err(Placing::Decoder)
        };
        let on_gpu = |at, error| Placing::Decoder(LoadDecoderError::Device(SplitError::Last(rank(at, error))));
        let placed = place_group(&places, image, pack, on_gpu);
        let (decoder, blocks) = placed.map_err(|error| error.into_failure(|error| of_parted_by(error, not_placed)))?;
        let decoder = decoder.ok_or_else(Failure::not_loaded)?;
        let both = Arc::new(Split::new(Arc::clone(cpu), Arc::clone(&stages), cpu_layers));
        let of_gpus = layout.ops(&stages, self.decoder_ops(&blocks)?);
        let sums = RankSums::of(&of_gpus);
        let ops = both.ops(cpu.decoder(), of_gpus);
        let model = DecoderModel::new(&both, (decoder, ops), spec, room, of_parted);
        Ok((rehearsed(model, held(blocks), SPLIT_REHEARSED)?, sums))
    }

    fn decoder_ops(&self, blocks: &[WeightsBlock]) -> Result<Vec<CudaDecoderOps>, Failure> {
        self.all().zip(blocks).map(|(host, weights)| host.decoder_ops(weights)).collect()
    }
}

/// Why a model has no place.
enum Placing<E: std::error::Error> {
    Layout(Failure),
    Decoder(LoadDecoderError<E>),
}

impl<E: std::error::Error + 'static> Placing<E> {
    fn into_failure(self, of_device: impl FnOnce(E) -> Failure) -> Failure {
        match self {
            Self::Layout(failure) => failure,
            Self::Decoder(error) => not_loaded(error, of_device),
        }
    }
}

fn held(blocks: Vec<WeightsBlock>) -> Box<dyn HeldWeights> {
    Box::new(GroupWeights(blocks))
}

fn of_group(error: GroupedError) -> Failure {
    of_group_by(error, |error| GpuError::from(error).into())
}

fn of_group_by(error: GroupedError, of_device: fn(DeviceError) -> Failure) -> Failure {
    let StageError { stage, error: RankError { rank, error } } = error;
    of_rank(StageError { stage, error: RankError { rank, error: of_device(error) } })
}

fn of_parted(error: PartedError) -> Failure {
    of_parted_by(error, |error| GpuError::from(error).into())
}

/// Of a CPU and a group the latter alone fails.
fn of_parted_by(error: PartedError, of_device: fn(DeviceError) -> Failure) -> Failure {
    match error {
        SplitError::First(never) => match never {},
        SplitError::Last(error) => of_group_by(error, of_device),
    }
}

impl NativeDevice for CudaGroup {
    fn label(&self) -> Label {
        let labels: Vec<Label> = self.all().map(NativeDevice::label).collect();
        let uuids: Vec<&str> = labels.iter().map(|label| &*label.uuid).collect();
        Label { name: format!("{} x {}", labels.len(), labels[0].name), uuid: uuids.join("+") }
    }

    fn memory(&self) -> MemoryStats {
        together(&self.all().map(NativeDevice::memory).collect::<Vec<_>>())
    }

    fn load(&self, loading: Loading<'_>) -> Result<Hosted, Failure> {
        let (Some(generate), Some(layout)) = (loading.spec.generates(), loading.group) else {
            return Ok(self.first.load(loading)?.on_first_of(self.all().count()));
        };
        if loading.kv != KvFormat::Halves {
            return Err(Failure::unsupported("keys and values of 8 bits"));
        }
        let (model, sums) = self.load_decoder(generate, layout, loading.split, loading.image)?;
        Ok(Hosted { model, precision: Precision::Bf16, sums, counts: 1 })
    }

    fn hold_vectors(&self, dims: usize, room: usize) -> Result<Box<dyn HeldVectors>, Failure> {
        let vectors = self.first.hold_vectors(dims, room)?;
        Ok(Box::new(VectorsOnFirst { vectors, devices: self.all().count() }))
    }

    /// Operations make the context of their GPU the thread's own; what is asked for beside them is the first one's.
    fn bind(&self) -> Result<(), Failure> {
        self.first.bind()
    }

    fn tend(&self) {
        self.all().for_each(NativeDevice::tend);
    }
}
