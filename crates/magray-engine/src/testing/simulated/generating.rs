//! Tokens of a simulated GPU: each follows from all before it, by arithmetic.
//! Knows no language; a step that does not begin where its sequence ends is refused.

use crate::executors::{NewTokens, SequenceStep};
use magray_device::cuda::CudaError;
use std::collections::HashMap;

/// One of this many tokens ends a sequence.
const ENDS: u64 = 199;

/// The state of sequences.
pub(super) struct Sequences {
    vocab: u64,
    tokens_max: u64,
    states: HashMap<u64, State>,
}

/// What is known of a sequence: how many tokens it has, and what follows from them.
#[derive(Clone, Copy, Default)]
struct State {
    tokens: u32,
    digest: u64,
}

impl State {
    fn add(&mut self, id: u32) {
        self.tokens += 1;
        let mixed = (self.digest ^ u64::from(id)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.digest = mixed ^ mixed >> 27;
    }
}

impl Sequences {
    pub(super) fn new(vocab: usize, tokens_max: u64) -> Self {
        Self { vocab: vocab.max(1) as u64, tokens_max, states: HashMap::new() }
    }

    /// Adds the tokens of a step and says which follow.
    pub(super) fn advance(&mut self, step: &SequenceStep<'_>) -> Result<NewTokens, CudaError> {
        let taken: u64 = self.states.values().map(|state| u64::from(state.tokens)).sum();
        if taken + step.ids.len() as u64 > self.tokens_max {
            return Err(CudaError::OutOfMemory);
        }
        let state = self.states.entry(step.sequence).or_default();
        if state.tokens != step.from {
            return Err(CudaError::Other { code: 0, name: "state_missing".to_owned() });
        }
        step.ids.iter().for_each(|id| state.add(*id));
        let mut new = NewTokens::default();
        while (new.tokens.len() as u32) < step.new_tokens_max && !new.is_end {
            if let Some(last) = new.tokens.last() {
                state.add(*last);
            }
            new.is_end = state.digest.is_multiple_of(ENDS);
            new.tokens.push((state.digest >> 8).rem_euclid(self.vocab) as u32);
        }
        Ok(new)
    }

    pub(super) fn free(&mut self, sequence: u64) {
        self.states.remove(&sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advance(sequences: &mut Sequences, from: u32, ids: &[u32], new_tokens_max: u32) -> Option<Vec<u32>> {
        let step = SequenceStep { sequence: 1, from, ids, new_tokens_max, sampling: None };
        sequences.advance(&step).ok().map(|new| new.tokens)
    }

    #[test]
    fn tokens_are_the_same_however_a_prompt_is_cut_and_after_its_state_was_lost() {
        let mut sequences = Sequences::new(1000, 100);
        let ids: Vec<u32> = (0..20).collect();
        let whole = advance(&mut sequences, 0, &ids, 3).unwrap();
        assert_eq!(advance(&mut sequences, 0, &ids, 1), None, "it has state of all of them");
        sequences.free(1);
        assert_eq!(advance(&mut sequences, 0, &ids[..7], 0), Some(Vec::new()));
        let mut known = ids.clone();
        let mut from = 7;
        for expected in &whole {
            let new = advance(&mut sequences, from, &known[from as usize..], 1).unwrap();
            assert_eq!(&new, &[*expected]);
            from = known.len() as u32;
            known.extend(new);
        }
    }

    #[test]
    fn more_state_than_there_is_space_for_is_refused() {
        let mut sequences = Sequences::new(1000, 10);
        assert!(advance(&mut sequences, 0, &[1; 11], 1).is_none());
        assert!(advance(&mut sequences, 0, &[1; 10], 1).is_some());
    }
}
