//! What the host's memory has for the weights of language models: what was available when the engine started, less what models were granted.
//! Holds nothing of it: who places a model asks, takes and gives back.

use super::EngineOptions;
use crate::decoder::{DecoderBytes, DecoderFiles};
use crate::encoder::LoadError;
use crate::executors::available_memory::available_bytes;
use crate::spec::decoder::DecoderSource;
use crate::spec::{GenerateSpec, ModelSpec};
use magray_core::CpuPath;
use magray_device::cpu::{available_paths, decoder_linear_bytes};

/// No form of weights, on a GPU or on the CPU, has more than this many times the bytes of its file.
pub(super) const GROWTH_MOST: u64 = 4;

/// The memory of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostMemory {
    /// Bytes that were free for programs; all that can be where the system does not say.
    at_start: u64,
    /// What models were granted of that.
    granted: u64,
    /// How the CPU computes, which decides the form of its weights.
    path: CpuPath,
}

impl HostMemory {
    /// As it is now: to be asked before models take their part.
    pub(super) fn of(options: &EngineOptions) -> Self {
        #[cfg(feature = "testing")]
        let available = options.host_bytes.unwrap_or_else(available_bytes);
        #[cfg(not(feature = "testing"))]
        let available = available_bytes();
        let path = options.encoder.cpu_path.or_else(|| available_paths().pop()).unwrap_or(CpuPath::Portable);
        Self { path, ..Self::with(available) }
    }

    /// One with so many bytes, for weights as they are stored; none: it is not known.
    pub(super) fn with(available: u64) -> Self {
        let at_start = if available == 0 { u64::MAX } else { available };
        Self { at_start, granted: 0, path: CpuPath::Portable }
    }

    /// More than this cannot be there at once, for all models together.
    pub(super) fn at_start(self) -> u64 {
        self.at_start
    }

    /// What models were granted of it.
    pub(super) fn granted(self) -> u64 {
        self.granted
    }

    /// What can still be had.
    pub(super) fn available(self) -> u64 {
        self.at_start.saturating_sub(self.granted)
    }

    /// What more weights may take of it beside all else: three quarters are for weights.
    pub(super) fn for_weights(self) -> u64 {
        (self.at_start / 4 * 3).saturating_sub(self.granted)
    }

    /// A model has so much of it from now on.
    pub(super) fn take(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_add(bytes);
    }

    /// A model has it no more.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_sub(bytes);
    }

    /// What the parts of a language model take of it where the CPU computes them.
    pub(super) fn sizes(self, files: &DecoderFiles) -> Result<DecoderBytes, LoadError> {
        Ok(DecoderBytes::of(files, |source, _| decoder_linear_bytes(self.path, source))?)
    }

    /// What all of one takes where the CPU computes it.
    pub(super) fn whole(self, spec: &GenerateSpec) -> Result<u64, LoadError> {
        match &spec.source {
            DecoderSource::Path(_) => Ok(self.sizes(&DecoderFiles::of(&spec.source)?)?.whole()),
            // Its numbers would be made for this; each of its formats has a form of its size.
            DecoderSource::Synthetic(_) => Ok(spec.weight_bytes),
        }
    }

    /// Takes room for this number of copies of a model beside all else, where there is some. Encoders are small: they do not count.
    pub(super) fn take_copies(&mut self, spec: &ModelSpec, copies: u64) -> Result<bool, LoadError> {
        let Some(generate) = spec.generates() else { return Ok(true) };
        let bytes = self.whole(generate)?.saturating_mul(copies);
        let fits = bytes <= self.for_weights();
        if fits {
            self.take(bytes);
        }
        Ok(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executors::ModelSource;
    use crate::testing::tiny_decoder;

    #[test]
    fn the_cpu_may_have_models_that_the_host_has_room_for() {
        let source = ModelSource::Decoder(DecoderSource::Synthetic("llama-8b".parse().unwrap()));
        let spec = source.spec().unwrap();
        let may = |bytes| HostMemory::with(bytes).take_copies(&spec, 1).unwrap();
        assert_eq!([22_000_000_000, 20_000_000_000, 0].map(may), [true, false, true], "nothing is known of the last");
        let copies = |copies| HostMemory::with(44_000_000_000).take_copies(&spec, copies).unwrap();
        assert_eq!([1, 2, 3].map(copies), [true, true, false]);
        let encoder = ModelSource::Synthetic("tiny".parse().unwrap()).spec().unwrap();
        assert!(HostMemory::with(1).take_copies(&encoder, 1).unwrap(), "encoders are small");
    }

    #[test]
    fn models_share_what_the_host_has() {
        let source = ModelSource::Decoder(DecoderSource::Synthetic("llama-8b".parse().unwrap()));
        let spec = source.spec().unwrap();
        let whole = HostMemory::with(0).whole(spec.generates().unwrap()).unwrap();
        let mut host = HostMemory::with(whole / 3 * 9);
        assert_eq!([1, 1, 1].map(|copies| host.take_copies(&spec, copies).unwrap()), [true, true, false]);
        assert_eq!(host.granted(), 2 * whole, "one that has no room takes none");
        host.give_back(whole);
        assert!(host.take_copies(&spec, 1).unwrap());
        host.take(u64::MAX);
        assert_eq!((host.available(), host.for_weights()), (0, 0));
    }

    #[test]
    fn weights_count_as_the_cpu_keeps_them() {
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write(folder.path(), 4).unwrap();
        let spec = ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned())).spec().unwrap();
        let stored = HostMemory::with(0).whole(spec.generates().unwrap()).unwrap();
        for path in available_paths().into_iter().filter(|path| *path != CpuPath::Portable) {
            let host = HostMemory { path, ..HostMemory::with(0) };
            let kept = host.whole(spec.generates().unwrap()).unwrap();
            // 32-bit floats are kept in 16 bits, and rows are filled up.
            assert!(kept < stored / 3 * 2, "{path}: {kept} of {stored}");
            // One copy, and not two.
            let host = HostMemory { path, ..HostMemory::with(kept * 4 / 3 + 4) };
            assert_eq!([1, 2].map(|copies| { host }.take_copies(&spec, copies).unwrap()), [true, false]);
        }
    }
}
