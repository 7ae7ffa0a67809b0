//! Token ids to measure with: random ones that are the same in every run.
//! Reads no texts and runs nothing.

use magray_core::SplitMix64;

/// What limits the ids of a model.
#[derive(Clone, Copy, Debug)]
pub struct Vocabulary {
    /// Ids are below this.
    pub size: usize,
    /// Tokens of a text at most.
    pub tokens_max: usize,
}

/// How long the texts of a batch are.
#[derive(Clone, Copy, Debug)]
pub enum Lengths {
    /// All alike.
    Equal(usize),
    /// Log-normal, like sentences that people write.
    Ragged,
}

/// The ids that real words of the common vocabularies have; below are special and rare ones.
const WORD_IDS: std::ops::Range<u64> = 1000..29000;

/// Makes a batch. The same arguments make the same batch.
pub fn batch(texts: usize, lengths: Lengths, vocabulary: &Vocabulary) -> Vec<Vec<u32>> {
    let mut chance = SplitMix64::new(texts as u64);
    let end = WORD_IDS.end.min(vocabulary.size as u64);
    let start = if WORD_IDS.start < end { WORD_IDS.start } else { 0 };
    let mut text = || {
        let tokens = match lengths {
            Lengths::Equal(tokens) => tokens,
            Lengths::Ragged => ragged_length(&mut chance),
        };
        let tokens = tokens.min(vocabulary.tokens_max);
        (0..tokens).map(|_| (start + chance.bits() % (end - start)) as u32).collect()
    };
    (0..texts).map(|_| text()).collect()
}

fn ragged_length(chance: &mut SplitMix64) -> usize {
    // Exp of a normal value of mean 3.0 and deviation 0.8, and 3 more for the special tokens.
    let length = (3.0 + 0.8 * chance.normal()).exp() as usize + 3;
    length.clamp(5, 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BERT: Vocabulary = Vocabulary { size: 30522, tokens_max: 512 };

    #[test]
    fn batches_repeat_and_stay_in_the_vocabulary() {
        let equal = batch(32, Lengths::Equal(128), &BERT);
        assert_eq!(equal, batch(32, Lengths::Equal(128), &BERT));
        assert!(equal.iter().all(|text| text.len() == 128));
        assert!(equal.iter().flatten().all(|id| (1000..29000).contains(id)));
        let tiny = Vocabulary { size: 120, tokens_max: 16 };
        let short = batch(8, Lengths::Equal(128), &tiny);
        assert!(short.iter().all(|text| text.len() == 16 && text.iter().all(|id| *id < 120)));
    }

    #[test]
    fn ragged_lengths_follow_their_law() {
        let lengths: Vec<usize> = batch(20_000, Lengths::Ragged, &BERT).iter().map(Vec::len).collect();
        assert!(lengths.iter().all(|length| (5..=256).contains(length)));
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        // exp(3 + 0.8^2 / 2) is 27.7; plus 3, less half a token for cutting down to whole ones.
        assert!((mean - 30.2).abs() < 1.0, "{mean}");
    }
}
