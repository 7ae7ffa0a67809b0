//! How tokens are drawn, as the kernel reads it: see `kernels/decoder_draw.cu`.

use crate::Choice;

/// Words of a choice.
pub(super) const CHOICE_WORDS: usize = 6;

/// Writes choices, and takes the most likely token for rows that have none.
pub(super) fn stage(choices: &[Choice], words: &mut [u32]) {
    words.fill(0);
    for (choice, words) in choices.iter().zip(words.as_chunks_mut::<CHOICE_WORDS>().0) {
        let Choice { temperature, top_k, top_p, min_p, draw } = *choice;
        let inverse = if temperature > 0.0 { 1.0 / temperature } else { 0.0 };
        let numbers = [inverse, top_p, min_p].map(f32::to_bits);
        words[..3].copy_from_slice(&numbers);
        words[3..].copy_from_slice(&[top_k, draw as u32, (draw >> 32) as u32]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_six_words_and_rows_without_one_are_zeros() {
        let choice = Choice { temperature: 0.5, top_k: 7, top_p: 0.9, min_p: 0.25, draw: 3 << 32 | 5 };
        let mut words = [9; 12];
        stage(&[choice], &mut words);
        assert_eq!(words[..6], [2f32.to_bits(), 0.9f32.to_bits(), 0.25f32.to_bits(), 7, 5, 3]);
        assert_eq!(words[6..], [0; 6]);
    }
}
