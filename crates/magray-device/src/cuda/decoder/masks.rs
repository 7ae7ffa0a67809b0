//! Tokens that are chosen behind their step, under masks that were not known when it began: those of constrained output.
//! Chooses as a step does by itself; only the masks come before.

use super::CudaDecoderOps;
use super::arguments::{Argument, int};
use super::launches::Launch;
use super::results::{CHOOSERS, CHOSEN_MOST, Results, Unchosen};
use crate::Mask;
use crate::cuda::decoder_kernels::DecoderKernel;
use crate::cuda::device_error::DeviceError;
use crate::cuda::function::LaunchShape;
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::pinned_buffers::PinnedWords;

/// A word that names no mask.
const NONE: u32 = u32::MAX;
/// Masks begin where a transaction of the GPU's memory does.
const ALIGN_WORDS: usize = 32;

/// Words of the places of masks, and of a mask.
fn layout(rows: usize, vocabulary: usize) -> (usize, usize) {
    (rows.next_multiple_of(ALIGN_WORDS), vocabulary.div_ceil(32).next_multiple_of(ALIGN_WORDS))
}

/// Writes masks as `kernels/decoder_mask.cu` reads them. Tokens beyond the end of a mask are ruled out.
fn stage(masks: &[Mask<'_>], vocabulary: usize, to: &mut [u32]) {
    let (first, words) = layout(masks.len(), vocabulary);
    to.fill(0);
    let mut place = 0;
    for (row, mask) in masks.iter().enumerate() {
        to[row] = NONE;
        if let Some(mask) = mask {
            let known = mask.len().min(words);
            to[first + place * words..][..known].copy_from_slice(&mask[..known]);
            to[row] = place as u32;
            place += 1;
        }
    }
}

impl CudaDecoderOps {
    /// The kernels that choose the tokens of a step with logits: the likeliest of each row, or one that is drawn.
    pub(super) fn choosing(&self, step: &Unchosen, rows: usize) -> Vec<Launch> {
        let Unchosen { logits, found, vocabulary, choices, .. } = *step;
        let chosen = Argument::Address(self.results.chosen());
        let rows = rows as u32;
        let likeliest = vec![Argument::Address(logits), int(vocabulary), Argument::Address(found), chosen];
        let shape = LaunchShape::new([CHOOSERS as u32, rows, 1], [256, 1, 1]);
        let mut launches =
            vec![Launch { kernel: DecoderKernel::Choose, shape, arguments: likeliest, is_strict: false }];
        if let Some(choices) = choices {
            let arguments = vec![Argument::Address(logits), int(vocabulary), Argument::Address(choices), chosen];
            let shape = LaunchShape::new([rows, 1, 1], [1024, 1, 1]);
            launches.push(Launch { kernel: DecoderKernel::Draw, shape, arguments, is_strict: false });
        }
        launches
    }

    /// Chooses the tokens of the step that waits for it, if one does.
    pub(super) fn choose_step(&mut self, masks: &[Mask<'_>]) {
        let Some(step) = self.results.unchosen.take() else { return };
        if self.failure.is_none()
            && let Err(error) = self.try_choose(step, masks)
        {
            self.fail(error);
        }
    }

    fn try_choose(&mut self, step: Unchosen, masks: &[Mask<'_>]) -> Result<(), DeviceError> {
        let Unchosen { logits, vocabulary, slot, rows, .. } = step;
        let mut launches = Vec::new();
        if rows > 0 && rows <= CHOSEN_MOST {
            if masks.iter().any(Option::is_some) {
                assert_eq!(masks.len(), rows, "a mask, or none, for each wanted row");
                let (first, words) = layout(rows, vocabulary);
                let at = self.bring_masks(slot, masks, vocabulary)?;
                let arguments =
                    vec![Argument::Address(logits), int(vocabulary), Argument::Address(at), int(first), int(words)];
                let shape = LaunchShape::new([CHOOSERS as u32, rows as u32, 1], [256, 1, 1]);
                launches.push(Launch { kernel: DecoderKernel::Mask, shape, arguments, is_strict: false });
            }
            launches.extend(self.choosing(&step, rows));
        }
        self.recordings.put(&self.cuda, &self.stream, &launches)?;
        self.end_step(slot, rows)
    }

    /// Copies masks to the GPU behind the step; returns where they are.
    fn bring_masks(&mut self, slot: usize, masks: &[Mask<'_>], vocabulary: usize) -> Result<u64, DeviceError> {
        let Results { context, slots, masks: device, .. } = &mut self.results;
        let (first, words) = layout(masks.len(), vocabulary);
        let words = first + words * masks.iter().flatten().count();
        if device.bytes() < words * 4 {
            // Steps that are under way read the old one, which goes when they are done.
            *device = DeviceBuffer::private(&self.stream, words.next_power_of_two() * 4)?;
        }
        // Its step waited until no copy reads this memory any more.
        let host = &mut slots[slot].masks;
        if host.as_ref().is_none_or(|host| host.len() < words) {
            *host = Some(PinnedWords::zeroed(context, words.next_power_of_two())?);
        }
        let Some(host) = host else { return Ok(0) };
        stage(masks, vocabulary, &mut host.as_mut_slice()[..words]);
        let from = host.address();
        slots[slot].is_read = true;
        context.bind()?;
        // SAFETY: both hold this many words. The slot is written again only after its mark, which is moved behind this copy before; the masks
        // on the GPU are written in the order of the stream.
        unsafe { self.stream.copy_in(device.address(), from, words * 4) }?;
        Ok(device.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_a_mask_name_it_and_what_a_mask_does_not_say_is_ruled_out() {
        let (first, words) = layout(3, 100);
        assert_eq!((first, words), (32, 32));
        let mut to = vec![7; first + 2 * words];
        stage(&[Some(&[5, 6, 7, 8]), None, Some(&[9])], 100, &mut to);
        assert_eq!(to[..3], [0, NONE, 1]);
        assert_eq!(to[first..][..5], [5, 6, 7, 8, 0]);
        assert_eq!(to[first + words..][..3], [9, 0, 0]);
    }
}
