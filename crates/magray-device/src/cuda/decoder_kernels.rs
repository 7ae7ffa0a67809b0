//! Every form in which the kernels of decoders are used, and the forms of the weights that they read.
//! Chooses none of them.

use super::compile::{KernelSpec, Needs};

/// Tiles whose blocks have a multiprocessor each, with the longest rings.
pub(super) const DEEP_TILES: [(usize, usize); 3] = [(32, 10), (64, 8), (128, 6)];
/// Warps of a block of products of few rows with weights of 4 bits.
pub(super) const NIBBLE_WARPS: usize = 16;
/// Tiles of products of prompts: warpgroups that multiply 64 outputs each, rows, and the length of the ring.
pub(super) const WIDE_TILES: [(usize, usize, usize); 3] = [(2, 256, 4), (3, 128, 5), (2, 128, 6)];
/// Head sizes that the tensor cores' attention is made for.
pub(super) const DECODER_HEADS: [usize; 5] = [32, 64, 96, 128, 256];
/// The largest head whose single tokens have blocks of 8 warps too: larger ones take too many registers.
pub(super) const WIDE_HEAD_MOST: usize = 64;
/// Rows that products of few rows are made for.
pub(super) const STREAM_TOKENS: [usize; 2] = [8, 16];
/// Outputs of a pass of these, in eights.
pub(super) const STREAM_EIGHTS: usize = 4;
/// Rows of a tile of products of many rows, and the length of its ring.
pub(super) const TILES: [(usize, usize); 3] = [(32, 5), (64, 4), (128, 3)];
/// The same for weights of 4 bits.
pub(super) const NIBBLE_TILES: [(usize, usize); 4] = [(8, 8), (16, 7), (32, 6), (64, 4)];

/// How weights lie in the GPU's memory: see `kernels/decoder.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Form {
    Numbers,
    Bytes,
    Nibbles,
    /// 4 bits without offsets.
    Centred,
}

impl Form {
    #[cfg(test)]
    pub(super) const ALL: [Self; 4] = [Self::Numbers, Self::Bytes, Self::Nibbles, Self::Centred];
    const STREAMED: [Self; 2] = [Self::Numbers, Self::Bytes];
    const OF_4_BITS: [Self; 2] = [Self::Nibbles, Self::Centred];

    pub(super) fn number(self) -> usize {
        self as usize
    }

    /// Inputs of a block.
    pub(super) fn unit(self) -> usize {
        if self.is_4_bits() { 128 } else { 64 }
    }

    /// Bytes of a block of 8 rows.
    pub(super) fn block_bytes(self) -> usize {
        match self {
            Self::Numbers => 1024,
            Self::Bytes | Self::Centred => 512 + 64,
            Self::Nibbles => 512 + 128,
        }
    }

    pub(super) fn is_4_bits(self) -> bool {
        Self::OF_4_BITS.contains(&self)
    }
}

/// A kernel of decoders, in one of its forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum DecoderKernel {
    Embed,
    Add,
    Sum,
    Append,
    Keep,
    AttendOne { head: usize, warps: usize },
    AttendPrompt { head: usize },
    AttendPlain,
    Choose,
    Draw,
    Mask,
    Plain,
    Stream { tokens: usize, eights: usize, form: Form },
    Tile { tokens: usize, stages: usize },
    Nibbles { eights: usize, form: Form },
    TileNibbles { tokens: usize, stages: usize, form: Form },
    Wide { groups: usize, tokens: usize, stages: usize },
    Unpack,
}

impl DecoderKernel {
    /// Every form.
    pub(super) fn all() -> Vec<Self> {
        let mut all = vec![Self::Embed, Self::Add, Self::Sum, Self::Append, Self::Keep, Self::AttendPlain];
        all.extend([Self::Choose, Self::Draw, Self::Mask, Self::Plain, Self::Unpack]);
        for head in DECODER_HEADS {
            all.extend([Self::AttendOne { head, warps: 4 }, Self::AttendPrompt { head }]);
            if head <= WIDE_HEAD_MOST {
                all.push(Self::AttendOne { head, warps: 8 });
            }
        }
        for tokens in STREAM_TOKENS {
            for eights in 1..=STREAM_EIGHTS {
                all.extend(Form::STREAMED.map(|form| Self::Stream { tokens, eights, form }));
            }
        }
        for form in Form::OF_4_BITS {
            all.extend((1..=STREAM_EIGHTS).map(|eights| Self::Nibbles { eights, form }));
            all.extend(NIBBLE_TILES.map(|(tokens, stages)| Self::TileNibbles { tokens, stages, form }));
        }
        all.extend(WIDE_TILES.map(|(groups, tokens, stages)| Self::Wide { groups, tokens, stages }));
        all.extend(TILES.map(|(tokens, stages)| Self::Tile { tokens, stages }));
        all.extend(DEEP_TILES.map(|(tokens, stages)| Self::Tile { tokens, stages }));
        all
    }

    /// This one, and those that plans take in its place for other numbers of rows or longer sequences.
    pub(super) fn siblings(self) -> Vec<Self> {
        let (most, _) = TILES[TILES.len() - 1];
        match self {
            Self::Tile { tokens, .. } if tokens < most => {
                let tiles = TILES.into_iter().chain(DEEP_TILES).filter(|tile| tile.0 == tokens);
                tiles.map(|(tokens, stages)| Self::Tile { tokens, stages }).collect()
            }
            Self::Tile { .. } | Self::Wide { .. } => {
                let tiles = TILES.into_iter().chain(DEEP_TILES).filter(|tile| tile.0 == most);
                let mut all: Vec<Self> = tiles.map(|(tokens, stages)| Self::Tile { tokens, stages }).collect();
                all.extend(WIDE_TILES.map(|(groups, tokens, stages)| Self::Wide { groups, tokens, stages }));
                all
            }
            Self::AttendOne { head, .. } if head <= WIDE_HEAD_MOST => {
                [4, 8].map(|warps| Self::AttendOne { head, warps }).to_vec()
            }
            alone => vec![alone],
        }
    }

    pub(super) fn spec(self) -> KernelSpec {
        match self {
            Self::Embed => KernelSpec::new("decoder_embed.cu", "decoder_embed"),
            Self::Add => KernelSpec::new("decoder_add.cu", "decoder_add"),
            Self::Sum => KernelSpec::new("decoder_sum.cu", "decoder_sum"),
            Self::Append => KernelSpec::new("decoder_append.cu", "decoder_append"),
            Self::Keep => KernelSpec::new("decoder_keep.cu", "decoder_keep"),
            Self::AttendOne { head, warps } => KernelSpec::new("decoder_attend_one.cu", "decoder_attend_one")
                .define("HEAD", head)
                .define("WARPS", warps)
                .needs(Needs::Ampere),
            Self::AttendPrompt { head } => KernelSpec::new("decoder_attend_prompt.cu", "decoder_attend_prompt")
                .define("HEAD", head)
                .needs(Needs::Ampere),
            Self::AttendPlain => KernelSpec::new("decoder_attend_plain.cu", "decoder_attend_plain"),
            Self::Choose => KernelSpec::new("decoder_choose.cu", "decoder_choose"),
            Self::Draw => KernelSpec::new("decoder_draw.cu", "decoder_draw"),
            Self::Mask => KernelSpec::new("decoder_mask.cu", "decoder_mask"),
            Self::Plain => KernelSpec::new("decoder_plain.cu", "decoder_plain"),
            Self::Stream { tokens, eights, form } => KernelSpec::new("decoder_stream.cu", "decoder_stream")
                .define("TOKENS", tokens)
                .define("EIGHTS", eights)
                .define("FORM", form.number())
                .needs(Needs::Hopper),
            Self::Tile { tokens, stages } => KernelSpec::new("decoder_tile.cu", "decoder_tile")
                .define("BN", tokens)
                .define("STAGES", stages)
                .needs(Needs::Hopper),
            Self::Nibbles { eights, form } => KernelSpec::new("decoder_nibbles.cu", "decoder_nibbles")
                .define("EIGHTS", eights)
                .define("FORM", form.number())
                .define("WARPS", NIBBLE_WARPS)
                .needs(Needs::Hopper),
            Self::TileNibbles { tokens, stages, form } => {
                KernelSpec::new("decoder_tile_nibbles.cu", "decoder_tile_nibbles")
                    .define("BN", tokens)
                    .define("STAGES", stages)
                    .define("FORM", form.number())
                    .needs(Needs::Hopper)
            }
            Self::Wide { groups, tokens, stages } => KernelSpec::new("decoder_wide.cu", "decoder_wide")
                .define("GROUPS", groups)
                .define("BN", tokens)
                .define("STAGES", stages)
                .needs(Needs::Hopper),
            Self::Unpack => KernelSpec::new("decoder_unpack.cu", "decoder_unpack"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_in_place_of_each_other_are_made_together() {
        let all = DecoderKernel::all();
        for kernel in &all {
            let siblings = kernel.siblings();
            assert!(siblings.contains(kernel) && siblings.iter().all(|sibling| all.contains(sibling)), "{kernel:?}");
            assert!(siblings.iter().all(|sibling| sibling.siblings() == siblings), "{kernel:?}");
        }
        let wide = all.iter().filter(|kernel| matches!(kernel, DecoderKernel::Wide { .. })).count();
        assert_eq!(DecoderKernel::Wide { groups: 2, tokens: 256, stages: 4 }.siblings().len(), wide + 2);
    }
}
