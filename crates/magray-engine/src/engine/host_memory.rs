//! What the host's memory has for the weights of language models, as it was when the engine started.
//! Holds nothing of it: who places a model asks.

use super::EngineOptions;
use crate::decoder::{DecoderBytes, DecoderFiles};
use crate::encoder::LoadError;
use crate::executors::cpu::available_bytes;
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
    available: u64,
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
        Self { available: if available == 0 { u64::MAX } else { available }, path: CpuPath::Portable }
    }

    /// More than this cannot be there at once.
    pub(super) fn available(self) -> u64 {
        self.available
    }

    /// What weights may take of it beside all else: three quarters.
    pub(super) fn for_weights(self) -> u64 {
        self.available / 4 * 3
    }

    /// What the parts of a language model take of it where the CPU computes them.
    pub(super) fn sizes(self, files: &DecoderFiles) -> Result<DecoderBytes, LoadError> {
        Ok(DecoderBytes::of(files, |source, _| decoder_linear_bytes(self.path, source))?)
    }

    /// What all of one takes.
    pub(super) fn whole(self, spec: &GenerateSpec) -> Result<u64, LoadError> {
        match &spec.source {
            DecoderSource::Path(_) => Ok(self.sizes(&DecoderFiles::of(&spec.source)?)?.whole()),
            // Its numbers would be made for this; each of its formats has a form of its size.
            DecoderSource::Synthetic(_) => Ok(spec.weight_bytes),
        }
    }

    /// Whether it has room for so many copies of a model beside all else.
    pub(super) fn may_have(self, spec: &ModelSpec, copies: u64) -> Result<bool, LoadError> {
        let Some(generate) = spec.generates() else { return Ok(true) };
        let fit = |bytes: u64| bytes.saturating_mul(copies) <= self.for_weights();
        // Where there is plenty, no file is looked into.
        Ok(fit(generate.weight_bytes.saturating_mul(GROWTH_MOST)) || fit(self.whole(generate)?))
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
        let may = |bytes| HostMemory::with(bytes).may_have(&spec, 1).unwrap();
        assert_eq!([22_000_000_000, 20_000_000_000, 0].map(may), [true, false, true], "nothing is known of the last");
        let copies = |copies| HostMemory::with(44_000_000_000).may_have(&spec, copies).unwrap();
        assert_eq!([1, 2, 3].map(copies), [true, true, false]);
        let encoder = ModelSource::Synthetic("tiny".parse().unwrap()).spec().unwrap();
        assert!(HostMemory::with(1).may_have(&encoder, 1).unwrap(), "encoders are small");
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
            let host = HostMemory { available: kept * 4 / 3 + 4, path };
            assert_eq!([1, 2].map(|copies| host.may_have(&spec, copies).unwrap()), [true, false]);
        }
    }
}
