//! What the parts of a decoder take of a device's memory.
//! Reads where tensors lie, not what is in them.

use super::files::{DecoderFiles, LayerSource};
use super::names::Part;
use crate::spec::decoder::DecoderSpec;
use crate::weights::WeightsError;
use magray_core::several_gpus::ModelNeeds;
use magray_device::BlockLinear;

/// Bytes of a decoder's weights on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecoderBytes {
    /// Without the head that it may be too.
    table: u64,
    head: u64,
    layers: Vec<u64>,
}

/// What a matrix takes on a device; whether its outputs are gates and what they gate.
pub(crate) type LinearBytes = fn(&BlockLinear, bool) -> u64;

/// What a matrix takes in its file.
pub(crate) fn stored_bytes(source: &BlockLinear, _: bool) -> u64 {
    let parts = source.parts.iter().map(|part| part.byte_len() as u64);
    parts.sum::<u64>() + 4 * source.bias.len() as u64
}

impl DecoderBytes {
    /// Of these files, on a device where a matrix takes so much.
    pub(crate) fn of(files: &DecoderFiles, linear: impl Fn(&BlockLinear, bool) -> u64) -> Result<Self, WeightsError> {
        let spec = files.spec();
        let matrix = |part| Ok(linear(&files.linear(0, &[(part, spec.vocab)], spec.hidden, false)?, false));
        let norms = 4 * spec.hidden as u64 * if spec.norms.after { 4 } else { 2 };
        let layer = |layer| {
            let LayerSource { qkv, output, gate_up, down } = files.layer(layer)?;
            let linears = [(qkv, false), (output, false), (gate_up, true), (down, false)];
            Ok(norms + linears.iter().map(|(source, is_gated)| linear(source, *is_gated)).sum::<u64>())
        };
        let table = matrix(Part::Table)?;
        Ok(Self {
            table: if spec.tied_head { 0 } else { table },
            head: if spec.tied_head { table } else { matrix(Part::Head)? },
            layers: (0..spec.layers.len()).map(layer).collect::<Result<_, WeightsError>>()?,
        })
    }

    /// What is planned by. A table that is the head too counts as the head.
    pub(crate) fn needs(&self, spec: &DecoderSpec) -> ModelNeeds {
        ModelNeeds {
            layers: self.layers.len(),
            layer_bytes: self.layers.iter().copied().max().unwrap_or(0),
            table_bytes: self.table,
            head_bytes: self.head,
            tied_bytes: if spec.tied_head { self.head } else { 0 },
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            inner: spec.ffn,
        }
    }

    /// All of it.
    pub(crate) fn whole(&self) -> u64 {
        self.table + self.last(self.layers.len())
    }

    /// This many of the last layers, and the head.
    pub(crate) fn last(&self, layers: usize) -> u64 {
        self.head + self.layers.iter().rev().take(layers).sum::<u64>()
    }

    /// The table, which may be the head too, and this many of the first layers.
    pub(crate) fn first(&self, layers: usize) -> u64 {
        let table = if self.table == 0 { self.head } else { self.table };
        table + self.layers.iter().take(layers).sum::<u64>()
    }

    /// How many of the last layers there is room for beside the head.
    pub(crate) fn layers_within(&self, room: u64) -> usize {
        (1..=self.layers.len()).take_while(|layers| self.last(*layers) <= room).count()
    }
}

#[cfg(test)]
impl DecoderBytes {
    /// Of a model with so many layers of one size.
    pub(crate) fn even(layers: usize, layer: u64, table: u64, head: u64) -> Self {
        Self { table, head, layers: vec![layer; layers] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::decoder::SyntheticDecoder;

    #[test]
    fn the_last_layers_that_fit_are_counted_with_the_head() {
        let bytes = DecoderBytes { table: 50, head: 7, layers: vec![1_000, 100, 20, 10] };
        assert_eq!((bytes.whole(), bytes.last(1), bytes.last(3)), (1_187, 17, 137));
        assert_eq!((bytes.first(0), bytes.first(2)), (50, 1_150));
        let within = [0, 16, 17, 36, 37, 136, 137, 1_136, 1_137].map(|room| bytes.layers_within(room));
        assert_eq!(within, [0, 0, 1, 1, 2, 2, 3, 3, 4]);
    }

    #[test]
    fn a_table_that_is_the_head_too_is_told_of_beside_the_head() {
        let needs = |name: &str, table| {
            let spec = name.parse::<SyntheticDecoder>().unwrap().spec();
            DecoderBytes::even(2, 10, table, 7).needs(&spec)
        };
        let tied = needs("llama-1b", 0);
        assert_eq!((tied.table_bytes, tied.head_bytes, tied.tied_bytes, tied.whole()), (0, 7, 7, 27));
        let own = needs("llama-8b", 5);
        assert_eq!((own.table_bytes, own.head_bytes, own.tied_bytes, own.whole()), (5, 7, 0, 32));
        assert_eq!((own.layers, own.heads, own.kv_heads, own.inner), (2, 32, 8, 14_336));
    }
}
